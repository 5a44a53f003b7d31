"""The native code of `runtime.chain`: walks a program's instructions, running a plan at some of them."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable
from sardonyx.compiler.llvm.library import KERNEL
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, U8, Type
from sardonyx.runtime.native.chain import HEADER_WORDS, INSTRUCTION_WORDS, Do


def emit_chain(target: Target, spec: tuple[()]) -> str:
    """A function with the executor's parameters: ``i64 run(thread pool, program, execution context, places, times,
    terminate)``.

    It gives the answer of the plan that ended the program before its time, else 0.
    """
    parameters = [
        (name, I64) for name in ("thread_pool", "program", "execution_context", "places", "times", "terminate")
    ]
    k = Function(KERNEL, target, parameters, returns=I64)
    walk = _Walk(k)
    with k.loop_while(lambda: walk.at.get() < walk.count):
        walk.step()
    k.give(walk.status.get())
    return k.finish()


class _Walk:
    """The walk over the instructions of one call."""

    def __init__(self, k: Function) -> None:
        self.k = k
        self.program = k.pointer(k["program"], I64)
        self.places = k.pointer(k["places"], I64)
        self.count = self.program.load(1)
        self.at: Variable = k.variable(I64, 0)
        self.status: Variable = k.variable(I64, 0)

    def step(self) -> None:
        """Do one instruction and go on to the next."""
        k = self.k
        row = self.program.offset(self.at.get() * INSTRUCTION_WORDS + HEADER_WORDS)
        self.at.set(self.at.get() + 1)
        what = row.load(0)
        a, b, c, d = (row.load(index) for index in range(1, INSTRUCTION_WORDS))
        with k.when(what.equals(int(Do.RUN))):
            self._run(a, b, c, d)
        with k.when(what.equals(int(Do.UNLESS))):
            self._go(b, self._place(a, U8).load().equals(0))
        with k.when(what.equals(int(Do.UNTIL))):
            self._go(c, self._place(a, I64).load() >= self._place(b, I64).load())
        with k.when(what.equals(int(Do.GO))):
            self.at.set(a)
        with k.when(what.equals(int(Do.COPY))):
            k.copy(self._place(a, U8), self._place(b, U8), c)
        with k.when(what.equals(int(Do.SET))):
            self._place(a, I64).store(b)
        with k.when(what.equals(int(Do.COUNT))):
            self._place(a, I64).store(self._place(a, I64).load() + 1)
        with k.when(what.equals(int(Do.SWAP))):
            first, second = self.places.load(a), self.places.load(b)
            self.places.store(second, a)
            self.places.store(first, b)
        with k.when(what.equals(int(Do.ITEM))):
            self.places.store(self.places.load(b) + self._place(c, I64).load() * d, a)
        with k.when(what.equals(int(Do.SHIFT))):
            self.places.store(self.places.load(b) + c, a)
        with k.when(what.equals(int(Do.DECLINE))):
            self._place(a, I64).store(1)
            self.at.set(self.count)

    def _run(self, plan: Value, numbers: Value, count: Value, externals: Value) -> None:
        k = self.k
        read, table = k.pointer(numbers, I64), k.pointer(externals, I64)
        with k.loop(0, count) as index:
            table.store(self.places.load(read.load(index)), index)
        no_times = k.constant(I64, 0)
        executor = k.pointer(self.program.load(0), I64).address
        given = (k["thread_pool"], plan, k["execution_context"], externals, no_times, k["terminate"])
        status = k.call_address(executor, I64, *given)
        with k.when(status.differs(0)):
            self.status.set(status)
            self.at.set(self.count)

    def _place(self, number: Value, scalar: Type) -> Pointer:
        return self.k.pointer(self.places.load(number), scalar)

    def _go(self, to: Value, condition: Value) -> None:
        with self.k.when(condition):
            self.at.set(to)
