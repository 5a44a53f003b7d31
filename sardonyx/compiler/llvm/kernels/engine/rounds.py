"""The native code of `runtime.rounds`: one run of a plan after the other, each with its own table of addresses."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.library import KERNEL
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, I64, U8
from sardonyx.runtime.native.rounds import MoveColumn, RoundsField


def emit_rounds(target: Target, spec: tuple[()]) -> str:
    """A function of the addresses of the words of `RoundsField` and of `interrupts.StopField` (0 for none)."""
    k = Function(KERNEL, target, [("words", I64), ("terminate", I64)])
    words = k.pointer(k["words"], I64)

    def given(field: RoundsField) -> Value:
        return words.load(int(field))

    count, externals = given(RoundsField.COUNT), k.pointer(given(RoundsField.EXTERNALS), I64)
    done, going, status = k.variable(I64, 0), k.variable(BOOL, True), k.variable(I64, 0)
    with k.loop_while(lambda: going.get() & (done.get() < count)):
        now = done.get()
        _move(k, externals, k.pointer(given(RoundsField.MOVES), I64), given(RoundsField.MOVE_COUNT), now)
        plan, execution_context = (
            k.pointer(given(field), I64).address for field in (RoundsField.PLAN, RoundsField.EXECUTION_CONTEXT)
        )
        status.set(
            k.call_address(
                k.pointer(given(RoundsField.RUN), I64).address,
                I64,
                given(RoundsField.THREAD_POOL),
                plan,
                execution_context,
                externals.address,
                k.constant(I64, 0),
                k["terminate"],
            )
        )
        done.set(now + 1)
        going.set(status.get().equals(0) & _holds(k, given(RoundsField.CONDITION)))
        notes = k.pointer(given(RoundsField.NOTES), I64)
        with k.loop(0, given(RoundsField.NOTE_COUNT)) as fault:
            going.set(going.get() & notes.load(fault * 2).equals(0))
    words.store(done.get(), int(RoundsField.DONE))
    words.store(status.get(), int(RoundsField.STATUS))
    return k.finish()


def _move(k: Function, externals: Pointer, moves: Pointer, count: Value, now: Value) -> None:
    """Fill in the addresses of a round."""
    is_odd = (now & 1).differs(0)
    with k.loop(0, count) as index:
        row = moves.offset(index * int(MoveColumn.WORDS))
        start = k.select(is_odd, row.load(int(MoveColumn.ODD)), row.load(int(MoveColumn.EVEN)))
        externals.store(start + now * row.load(int(MoveColumn.STRIDE)), row.load(int(MoveColumn.EXTERNAL)))


def _holds(k: Function, condition: Value) -> Value:
    """Whether the byte at an address, if there is one, is set."""
    holds = k.variable(BOOL, True)
    with k.when(condition.differs(0)):
        holds.set(k.pointer(condition, U8).load().differs(0))
    return holds.get()
