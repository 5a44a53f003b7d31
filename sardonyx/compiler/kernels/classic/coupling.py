"""Class probabilities from those between each two classes, row by row."""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.arguments import Read, Record, Size, Write, kernel
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import BOOL, F32, I64
from sardonyx.compiler.llvm.values import Variable
from sardonyx.compiler.llvm.walk import share
from sardonyx.light_dataclass import dataclass

# Elements of matrices that are worth a claim of their own: a few rounds of each.
_COUPLED_ELEMENTS = 512


@dataclass(frozen=True)
class CouplingSpec:
    """Nothing varies: float32."""


class Arguments(Record):
    chances = Read(F32)  # [rows, pairs]: those of the first class of every two against the second one
    results = Write(F32)  # [rows, classes]
    rows = Size()
    per_chunk = Size()
    classes = Size()
    pairs = Size()
    most = Size()  # rounds


@kernel(Arguments)
def emit_coupled(k: Function, a: Arguments, spec: CouplingSpec) -> None:
    """What `ops.ml.coupling.coupled` computes, each row stopping by itself.

    Scratch memory holds a matrix and a vector of the classes.
    """
    chances, results = a.chances, a.results
    rows, per_chunk, classes, pairs, most = a.rows, a.per_chunk, a.classes, a.pairs, a.most
    matrix = _Matrix(k, k.pointer("scratch", F32), classes)
    begin, end = share(k, rows, per_chunk)
    with k.loop(begin, end) as row:
        matrix.read(chances.offset(row * pairs))
        matrix.solve(results.offset(row * classes), most)


class _Matrix:
    """The quadratic form of a row, and its gradient."""

    def __init__(self, k: Function, start: Pointer, classes: Value) -> None:
        self._k, self._start, self._classes = k, start, classes
        self._gradient = start.offset(classes * classes)

    def _row(self, number: Value) -> Pointer:
        return self._start.offset(number * self._classes)

    def read(self, chances: Pointer) -> None:
        """-r_ji r_ij beside the diagonal, where the squares of the r_it of all i are added up."""
        k, classes = self._k, self._classes
        with k.loop(0, classes * classes) as place:
            self._start.store(0.0, place)
        pair = k.variable(I64, 0)
        with k.loop(0, classes) as first, k.loop(first + 1, classes) as second:
            chance = chances.load(pair.get())
            other = 1.0 - chance
            self._row(first).store(-(other * chance), second)
            self._row(second).store(-(other * chance), first)
            for place, number in ((second, chance), (first, other)):
                own = self._row(place)
                own.store(own.load(place) + number * number, place)
            pair.set(pair.get() + 1)

    def solve(self, p: Pointer, most: Value) -> None:
        k, classes = self._k, self._classes
        count = classes.to(F32)
        with k.loop(0, classes) as place:
            p.store(1.0 / count, place)
        turn, going = k.variable(I64, 0), k.variable(BOOL, True)
        level = k.variable(F32)
        with k.loop_while(lambda: going.get() & (turn.get() < most)):
            self._set_gradient(p, level)
            going.set(self._furthest(level.get()) >= 0.005 / count)
            with k.when(going.get()), k.loop(0, classes) as place:
                self._move(p, level, place)
            turn.set(turn.get() + 1)

    def _set_gradient(self, p: Pointer, level: Variable) -> None:
        k = self._k
        level.set(0.0)
        total = k.variable(F32)
        with k.loop(0, self._classes) as row:
            total.set(0.0)
            line = self._row(row)
            with k.loop(0, self._classes) as column:
                total.set(total.get() + line.load(column) * p.load(column))
            self._gradient.store(total.get(), row)
            level.set(level.get() + p.load(row) * total.get())

    def _furthest(self, level: Value) -> Value:
        """The largest distance of the gradient from its mean; NaN if there is one."""
        k = self._k
        found = k.variable(F32, 0.0)
        with k.loop(0, self._classes) as place:
            found.set(k.larger(found.get(), k.unary("fabs", self._gradient.load(place) - level)))
        return found.get()

    def _move(self, p: Pointer, level: Variable, place: Value) -> None:
        """Change one class's probability to the best, and all of them so that their sum is 1."""
        k, line, gradient = self._k, self._row(place), self._gradient
        own, slope = line.load(place), gradient.load(place)
        step = (level.get() - slope) / own
        p.store(p.load(place) + step, place)
        whole = 1.0 + step
        level.set((level.get() + step * (step * own + 2.0 * slope)) / (whole * whole))
        with k.loop(0, self._classes) as other:
            gradient.store((gradient.load(other) + step * line.load(other)) / whole, other)
            p.store(p.load(other) / whole, other)


def couple(binder: Binder, chances: Tensor, classes: int) -> Tensor:
    """The probabilities of the classes, (rows, classes), from those (rows, pairs) between each two, all float32."""
    rows, pairs = chances.shape
    result = binder.new(np.dtype(np.float32), (rows, classes))
    per_chunk = max(1, _COUPLED_ELEMENTS // classes**2)
    binder.step(
        emit_coupled,
        CouplingSpec(),
        Arguments(
            chances=chances,
            results=result,
            rows=rows,
            per_chunk=per_chunk,
            classes=classes,
            pairs=pairs,
            most=max(100, classes),
        ),
        chunks=-(-rows // per_chunk),
        scratch=F32.nbytes * classes * (classes + 1),
        flops=4.0 * rows * classes**2,
        detail=f"{rows} rows of {classes} classes",
    )
    return result
