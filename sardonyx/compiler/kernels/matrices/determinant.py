"""Det: determinants by elimination with the largest pivot of each column."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sardonyx.compiler.arguments import Read, Record, Size, Write, kernel
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F64, I64, Type, type_of
from sardonyx.compiler.llvm.walk import share
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.graph.types import numpy_dtype
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.linear_algebra import check_square


@dataclass(frozen=True)
class DeterminantSpec:
    """Matrices of elements of `type`."""

    type: Type


def scratch_bytes(target: Target, rows: int) -> int:
    """Room for a matrix whose rows are whole vectors."""
    lanes = target.lanes(F64)
    return rows * -(-rows // lanes) * lanes * F64.nbytes


class Arguments(Record):
    data = Read(lambda spec: spec.type)
    results = Write(lambda spec: spec.type)
    count = Size()  # of matrices
    per_chunk = Size()
    rows = Size()  # of a matrix


@kernel(Arguments)
def emit_determinant(k: Function, a: Arguments, spec: DeterminantSpec) -> None:
    """The determinants, computed in float64 and rounded once."""
    data, results, count, per_chunk, rows = a.data, a.results, a.count, a.per_chunk, a.rows
    matrix = _Matrix(k, k.pointer("scratch", F64), rows)
    begin, end = share(k, count, per_chunk)
    with k.loop(begin, end) as number:
        matrix.read(data.offset(number * rows * rows))
        results.store(matrix.determinant().to(spec.type), number)


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


# Multiply-adds that are worth a claim of their own.
_CHUNK = 1 << 14


@template("determinant")
class Determinant(NativeKernel):
    """The determinants of the matrices in the last two dimensions."""

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        x = inputs[0]
        type_ = None if x is None or x.dtype is None else type_of(numpy_dtype(x.dtype))
        return None if type_ is not None and type_.is_float else "no kernel eliminates elements of this type"

    def bind(self, binder: Binder, x: Tensor) -> Sequence[Tensor]:
        check_square(x.shape)
        rows = x.shape[-1]
        x = contiguous(binder, x)
        result = binder.new(x.dtype, x.shape[:-2])
        count = math.prod(result.shape)
        type_ = type_of(x.dtype)
        assert type_ is not None
        per_chunk = max(1, _CHUNK // max(1, rows**3))
        binder.step(
            emit_determinant,
            DeterminantSpec(type_),
            Arguments(data=x, results=result, count=count, per_chunk=per_chunk, rows=rows),
            chunks=-(-count // per_chunk),
            scratch=scratch_bytes(binder.target, rows),
            flops=2 / 3 * rows**3 * count,
            detail=f"{count} matrices of {rows} rows",
        )
        return [result]
