"""Calls of the operating system from generated code: the clock, giving up the core, sleeping until woken.

Linux has futexes. Elsewhere `sleep_while` sleeps for a short time and `wake` does nothing: the sleeper looks again by
itself, which is correct, if less prompt.
"""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import I32, I64, PTR, VOID

_FUTEX = {"x86_64": 202, "aarch64": 98}
_GETTID = {"x86_64": 186, "aarch64": 178}
_FUTEX_WAIT_PRIVATE = 128
_FUTEX_WAKE_PRIVATE = 129
_CLOCK_MONOTONIC = {"linux": 1, "apple": 6}
_NAP_NANOSECONDS = 100_000
_THREAD_CLOCK = 6  # the processor time of a thread, whose number is above these bits, complemented
_MASK_WORDS = 16  # processors in an affinity mask, by 64


def has_futex(k: Function) -> bool:
    return "linux" in k.target.triple


def _is_windows(k: Function) -> bool:
    return "windows" in k.target.triple


def has_signals(k: Function) -> bool:
    """Whether the system has POSIX signals."""
    return not _is_windows(k)


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


def task_number(k: Function) -> Value:
    """The system's number of this thread (i64); 0 where there is none that the functions below take."""
    if not has_futex(k):
        return k.constant(I64, 0)
    k.declare_text("syscall", "declare i64 @syscall(i64, ...)")
    return k.emit(I64, f"call i64 (i64, ...) @syscall(i64 {_GETTID[k.target.architecture]})")


def processor_time(k: Function, task: Value) -> Value:
    """Nanoseconds that a thread of this process, by its `task_number`, has had of a processor; Linux only."""
    now = k.stack(I64, 2)
    now.store(0, 0)
    now.store(0, 1)
    clock = ((~task << 3) | _THREAD_CLOCK).to(I32)
    k.call("clock_gettime", I32, clock, now.address)
    return now.load(0) * 1_000_000_000 + now.load(1)


def bring_here(k: Function, task: Value) -> None:
    """Move a thread of this process that waits for its processor to this one, if it may use that; Linux only.

    It may use the same processors afterwards as before.
    """
    allowed, here = k.stack(I64, _MASK_WORDS), k.stack(I64, _MASK_WORDS)
    nbytes, number = k.constant(I64, 8 * _MASK_WORDS), task.to(I32)
    with k.loop(0, _MASK_WORDS) as i:
        allowed.store(0, i)
        here.store(0, i)
    k.call("sched_getaffinity", I32, number, nbytes, allowed.address)
    mine = processor(k)
    with k.when((mine >= 0) & (mine < 64 * _MASK_WORDS)):
        bit = k.constant(I64, 1) << (mine & 63)
        here.store(bit, mine >> 6)
        with k.when((allowed.load(mine >> 6) & bit).differs(0)):
            for mask in (here, allowed):
                k.call("sched_setaffinity", I32, number, nbytes, mask.address)


def leave_processors(k: Function, taken: Pointer, count: Value, stride: int = 1) -> None:
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
        number = taken.load(i * stride)
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
