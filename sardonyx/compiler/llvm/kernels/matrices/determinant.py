"""Determinants by elimination with the largest pivot of each column."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F64, I64, Type
from sardonyx.compiler.llvm.walk import kernel_frame, share
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class DeterminantSpec:
    """Matrices of elements of `type`."""

    type: Type


def scratch_bytes(target: Target, rows: int) -> int:
    """Room for a matrix whose rows are whole vectors."""
    lanes = target.lanes(F64)
    return rows * -(-rows // lanes) * lanes * F64.nbytes


def emit_determinant(target: Target, spec: DeterminantSpec) -> str:
    """Arguments: matrices, results, their number, how many a chunk has, rows of a matrix.

    Everything is computed in float64 and rounded once.
    """
    k, words = kernel_frame(target)
    data, results = k.pointer(words.load(0), spec.type), k.pointer(words.load(1), spec.type)
    count, per_chunk, rows = words.load(2), words.load(3), words.load(4)
    matrix = _Matrix(k, k.pointer("scratch", F64), rows)
    begin, end = share(k, count, per_chunk)
    with k.loop(begin, end) as number:
        matrix.read(data.offset(number * rows * rows))
        results.store(matrix.determinant().to(spec.type), number)
    return k.finish()


class _Matrix:
    """A square matrix in scratch memory; behind each row there are zeros up to a whole vector."""

    def __init__(self, k: Function, start: Pointer, rows: Value) -> None:
        self._k, self._start, self._rows = k, start, rows
        self._lanes = k.target.lanes(F64)
        self._stride = (rows + (self._lanes - 1)) & -self._lanes

    def _row(self, row: Value) -> Pointer:
        return self._start.offset(row * self._stride)

    def read(self, source: Pointer) -> None:
        k = self._k
        with k.loop(0, self._rows) as row:
            to, from_ = self._row(row), source.offset(row * self._rows)
            with k.loop(0, self._rows) as column:
                to.store(from_.load(column).to(F64), column)
            with k.loop(self._rows, self._stride) as column:
                to.store(0.0, column)

    def determinant(self) -> Value:
        """The product of the pivots; what was read is overwritten."""
        k = self._k
        product = k.variable(F64, 1.0)
        with k.loop(0, self._rows) as column:
            best = self._pivot_row(column)
            with k.when(best.differs(column)):
                self._swap(best, column)
                product.set(-product.get())
            pivot = self._row(column).load(column)
            product.set(product.get() * pivot)
            with k.when(pivot.differs(0.0)), k.loop(column + 1, self._rows) as row:
                self._eliminate(row, column, pivot)
        return product.get()

    def _pivot_row(self, column: Value) -> Value:
        """The first row from `column` on with the largest magnitude there; a NaN in the first of them stays."""
        k = self._k
        best = k.variable(I64, column)
        largest = k.variable(F64, k.unary("fabs", self._row(column).load(column)))
        with k.loop(column + 1, self._rows) as row:
            magnitude = k.unary("fabs", self._row(row).load(column))
            with k.when(magnitude > largest.get()):
                largest.set(magnitude)
                best.set(row)
        return best.get()

    def _swap(self, one: Value, other: Value) -> None:
        first, second = self._row(one), self._row(other)
        with self._k.loop(0, self._stride, self._lanes) as column:
            left, right = first.load(column, self._lanes), second.load(column, self._lanes)
            first.store(right, column)
            second.store(left, column)

    def _eliminate(self, row: Value, column: Value, pivot: Value) -> None:
        """Take a multiple of the pivot's row away, from whole vectors: nothing before `column` is read again."""
        k = self._k
        to, from_ = self._row(row), self._row(column)
        factor = k.splat(-(to.load(column) / pivot), self._lanes)
        with k.loop((column + 1) & -self._lanes, self._stride, self._lanes) as place:
            to.store(k.fma(factor, from_.load(place, self._lanes), to.load(place, self._lanes)), place)
