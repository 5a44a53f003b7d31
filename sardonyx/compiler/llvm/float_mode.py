"""The floating-point mode of a thread: whether denormal numbers are read and written as zero."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.types import I32, I64, VOID

_X86_FLUSH = 0x8040  # MXCSR: results (bit 15) and operands (bit 6)
_ARM_FLUSH = 1 << 24  # FPCR.FZ


@contextmanager
def denormals(k: Function, flushed: Value) -> Iterator[None]:
    """Where `flushed` holds, denormal numbers are zero in the block; the thread's mode is as before after it.

    On other machines than x86 and ARM they are kept.
    """
    is_x86 = k.target.architecture == "x86_64"
    if not is_x86 and k.target.architecture != "aarch64":
        yield
        return
    before = k.variable(I32 if is_x86 else I64, 0)
    slot = k.stack(I32, 1)

    def set_mode(mode: Value) -> None:
        if is_x86:
            slot.store(mode)
            k.call("llvm.x86.sse.ldmxcsr", VOID, slot.address)
        else:
            k.call("llvm.aarch64.set.fpcr", VOID, mode)

    with k.when(flushed):
        if is_x86:
            k.call("llvm.x86.sse.stmxcsr", VOID, slot.address)
            before.set(slot.load())
        else:
            before.set(k.call("llvm.aarch64.get.fpcr", I64))
        set_mode(before.get() | (_X86_FLUSH if is_x86 else _ARM_FLUSH))
    yield
    with k.when(flushed):
        set_mode(before.get())
