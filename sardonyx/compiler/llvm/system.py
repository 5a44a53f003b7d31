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


def _futex(word: Pointer, operation: int, value: Value) -> None:
    """The system call, through the C library's `syscall`, which takes a variable number of arguments."""
    k = word.function
    number = _FUTEX[k.target.triple.split("-")[0]]
    k.declare_text("syscall", "declare i64 @syscall(i64, ...)")
    k.emit(
        I64,
        f"call i64 (i64, ...) @syscall(i64 {number}, ptr {word.address.name}, i32 {operation}, "
        f"i32 {value.name}, ptr null, ptr null, i32 0)",
    )
