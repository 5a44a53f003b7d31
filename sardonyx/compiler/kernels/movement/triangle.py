"""Trilu: a triangle of each matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sardonyx.compiler.arguments import Read, Record, Size, Write, kernel
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.builder import Function
from sardonyx.compiler.llvm.kernels.movement.copy import fill_row
from sardonyx.compiler.llvm.types import U8
from sardonyx.compiler.llvm.walk import share
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.gather import rows_per_chunk
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class TriangleSpec:
    """Elements of `blob` bytes; the upper triangle is kept, or the lower one."""

    blob: int
    upper: bool


class Arguments(Record):
    """The `edge` is the column where the triangle's edge meets row 0: the first one that is kept of the upper triangle,
    the first one that is not of the lower.
    """

    data = Read()
    output = Write()
    items = Size()  # rows of all matrices
    per_chunk = Size()  # rows
    rows = Size()  # of a matrix
    columns = Size()
    edge = Size()


@kernel(Arguments)
def emit_triangle(k: Function, a: Arguments, spec: TriangleSpec) -> None:
    """A triangle of each matrix, zeros elsewhere."""
    data, output = a.data, a.output
    rows, columns, edge = a.rows, a.columns, a.edge
    zeros = k.constant(U8.vector(k.target.vector_bits // 8), 0)
    begin, end = share(k, a.items, a.per_chunk)
    with k.loop(begin, end) as item:
        row = item % rows
        cut = k.smaller(k.larger(row + edge, 0), columns) * spec.blob
        at, rest = item * columns * spec.blob, columns * spec.blob - cut
        from_, to = data.offset(at), output.offset(at)
        if spec.upper:
            fill_row(k, to, zeros, cut, spec.blob)
            k.copy(to.offset(cut), from_.offset(cut), rest)
        else:
            k.copy(to, from_, cut)
            fill_row(k, to.offset(cut), zeros, rest, spec.blob)


@template("triangle")
class Triangle(NativeKernel):
    """The ``upper`` or lower triangle of each matrix from the diagonal on that the second input names."""

    known_inputs = (1,)

    def bind(self, binder: Binder, data: Tensor, diagonal: Tensor | None = None) -> Sequence[Tensor]:
        if len(data.shape) < 2:
            raise ValueError(f"the input must have at least 2 dimensions, not {len(data.shape)}")
        rows, columns = data.shape[-2:]
        number = 0
        if diagonal is not None:
            assert diagonal.array is not None
            if diagonal.size != 1:
                raise ValueError(f"k must have one element, not shape {list(diagonal.shape)}")
            number = min(max(int(diagonal.array.reshape(-1)[0]), -rows - 1), columns + 1)
        data = contiguous(binder, data)
        result = binder.new(data.dtype, data.shape)
        upper = bool(self.parameters["upper"])
        items = math.prod(data.shape[:-1]) if columns else 0
        per_chunk = rows_per_chunk(columns * data.dtype.itemsize)
        binder.step(
            emit_triangle,
            TriangleSpec(data.dtype.itemsize, upper),
            Arguments(
                data=data,
                output=result,
                items=items,
                per_chunk=per_chunk,
                rows=rows,
                columns=columns,
                edge=number if upper else number + 1,
            ),
            chunks=-(-items // per_chunk),
            detail=lambda: f"{items} rows of {columns}",
        )
        return [result]
