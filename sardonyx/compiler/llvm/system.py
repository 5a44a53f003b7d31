"""Calls of the operating system from generated code: the clock, giving up the core, sleeping until woken.

Linux has futexes. Elsewhere `sleep_while` sleeps for a short time and `wake` does nothing: the sleeper looks again by
itself, which is correct, if less prompt.
"""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import I32, I64, PTR, VOID

_FUTEX = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT_PRIVATE = 128
_FUTEX_WAKE_PRIVATE = 129
_CLOCK_MONOTONIC = {"linux": 1, "apple": 6}
_NAP_NANOSECONDS = 100_000
_MASK_WORDS = 16  # processors in an affinity mask, by 64


def has_futex(k: Function) -> bool:
    return "linux" in k.target.triple


def _is_windows(k: Function) -> bool:
    return "windows" in k.target.triple


def nanoseconds(k: Function) -> Value:
    """The monotonic clock in nanoseconds, the one of `time.monotonic_ns` (on Windows that of the system's time)."""
    now = k.stack(I64, 2)
    if _is_windows(k):
        k.call("GetSystemTimePreciseAsFileTime", VOID, now.address)
        return now.load() * 100
    clock = _CLOCK_MONOTONIC["linux" if has_futex(k) else "apple"]
    k.call("clock_gettime", I32, k.constant(I32, clock), now.address)
    return now.load(0) * 1_000_000_000 + now.load(1)


def give_way(k: Function) -> None:
    """Let another thread have the core."""
    k.call("SwitchToThread" if _is_windows(k) else "sched_yield", I32)


def sleep_while(word: Pointer, value: Value) -> None:
    """Sleep while the i32 at `word` holds `value`; may return early for no reason."""
    k = word.function
    if has_futex(k):
        _futex(word, _FUTEX_WAIT_PRIVATE, value)
    elif _is_windows(k):
        k.call("Sleep", VOID, k.constant(I32, max(1, _NAP_NANOSECONDS // 1_000_000)))
    else:
        time = k.stack(I64, 2)
        time.store(0, 0)
        time.store(_NAP_NANOSECONDS, 1)
        k.call("nanosleep", I32, time.address, Value(k, "null", PTR))


def wake(word: Pointer, count: Value) -> None:
    """Wake up to `count` (i32) threads that sleep on `word`, whose value was changed before."""
    if has_futex(word.function):
        _futex(word, _FUTEX_WAKE_PRIVATE, count)


def processor(k: Function) -> Value:
    """The number of the processor that this thread runs on (i64); -1 where the system does not tell."""
    if not has_futex(k):
        return k.constant(I64, -1)
    return k.call("sched_getcpu", I32).to(I64)


def leave_processors(k: Function, taken: Pointer, count: Value) -> None:
    """Move this thread to a processor that is not one of `count` (i64 numbers at `taken`; negative ones are none).

    Its affinity allows the same processors afterwards. Nothing happens where it allows no others.
    """
    if not has_futex(k):
        return
    allowed, others = k.stack(I64, _MASK_WORDS), k.stack(I64, _MASK_WORDS)
    nbytes = k.constant(I64, 8 * _MASK_WORDS)
    itself = k.constant(I32, 0)
    for mask in (allowed, others):
        with k.loop(0, _MASK_WORDS) as i:
            mask.store(0, i)
        k.call("sched_getaffinity", I32, itself, nbytes, mask.address)
    with k.loop(0, count) as i:
        number = taken.load(i)
        with k.when((number >= 0) & (number < 64 * _MASK_WORDS)):
            bit = k.constant(I64, 1) << (number & 63)
            others.store(others.load(number >> 6) & ~bit, number >> 6)
    left = k.variable(I64, 0)
    with k.loop(0, _MASK_WORDS) as i:
        left.set(left.get() | others.load(i))
    with k.when(left.get().differs(0)):
        for mask in (others, allowed):
            k.call("sched_setaffinity", I32, itself, nbytes, mask.address)


def _futex(word: Pointer, operation: int, value: Value) -> None:
    """The system call, through the C library's `syscall`, which takes a variable number of arguments."""
    k = word.function
    number = _FUTEX[k.target.architecture]
    k.declare_text("syscall", "declare i64 @syscall(i64, ...)")
    k.emit(
        I64,
        f"call i64 (i64, ...) @syscall(i64 {number}, ptr {word.address.name}, i32 {operation}, "
        f"i32 {value.name}, ptr null, ptr null, i32 0)",
    )
