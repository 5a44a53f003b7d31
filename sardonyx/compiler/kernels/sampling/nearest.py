"""Resizing to the nearest element: lines of elements, or of runs of bytes, read by tables of places."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.arguments import Read, Record, Rest, Size, Table, Write, kernel
from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import I64
from sardonyx.compiler.llvm.walk import Row, runs, share
from sardonyx.compiler.native.movement.copy import CHUNK_BYTES
from sardonyx.compiler.native.movement.gather import BLOBS
from sardonyx.light_dataclass import dataclass

# No element lies so far before the source's first one.
_NO_PLACE = -(1 << 62)


@dataclass(frozen=True)
class NearestSpec:
    """Elements of `blob` bytes (0: of a length known at run time), each of them read where a table says."""

    blob: int


class Arguments(Record):
    source = Read()
    output = Write()
    tables = Table(I64)  # byte offsets of the elements of a line, of the lines of a plane, of each slower dimension
    lines = Size()
    per_chunk = Size()  # lines
    size = Size()  # elements of a line
    nbytes = Size()  # of an element
    rows = Size()  # lines of a plane
    rank = Size()  # of the dimensions over planes
    sizes = Rest()  # of these, the fastest one first


@kernel(Arguments)
def emit_nearest(k: Function, a: Arguments, spec: NearestSpec) -> None:
    """Lines whose elements lie, in the source, where tables say; a line that is like the one before is a copy of it."""
    source, output = a.source, a.output
    across = a.tables
    size, nbytes, rows = a.size, k.constant(I64, spec.blob) if spec.blob else a.nbytes, a.rows
    down = across.offset(size)
    row, line = Row(k, spec.blob, nbytes), Row(k, 0, size * nbytes)
    begin, end = share(k, a.lines, a.per_chunk)
    with runs(k, begin, end, rows) as (plane, first, last):
        from_plane = source.offset(_place(k, plane, down.offset(rows), a.sizes, a.rank))
        before = k.variable(I64, _NO_PLACE)
        with k.loop(first, last) as index:
            place = down.load(index)
            to = output.offset((plane * rows + index) * (size * nbytes))
            again = place.equals(before.get())
            with k.when(again):
                line.copy(to.offset(-(size * nbytes)), to)
            with k.otherwise(again), k.loop(0, size) as element:
                row.copy(from_plane.offset(place + across.load(element)), to.offset(element * nbytes))
            before.set(place)


def _place(k: Function, index: Value, tables: Pointer, sizes: Pointer, rank: Value) -> Value:
    """The byte offset of the `index`-th place of `rank` dimensions: the sum of what their tables say."""
    rest, total, table = k.variable(I64, index), k.variable(I64, 0), k.variable(I64, 0)
    with k.loop(0, rank) as dimension:
        size, counted = sizes.load(dimension), rest.get()
        quotient = counted // size
        total.set(total.get() + tables.load(table.get() + (counted - quotient * size)))
        table.set(table.get() + size)
        rest.set(quotient)
    return total.get()


def by_tables(binder: Binder, x: Tensor, result: Tensor, positions: Sequence[Array], run: int) -> None:
    """Elements of `run` elements each, read at any places."""
    item, axes = x.dtype.itemsize, len(positions)
    tables = [places * stride * item for places, stride in zip(positions, x.strides, strict=False)]
    size, nbytes = len(tables[-1]), run * item
    lines = math.prod(map(len, tables[:-1]))
    per_chunk = max(1, CHUNK_BYTES // (size * nbytes))
    binder.step(
        emit_nearest,
        NearestSpec(nbytes if nbytes in BLOBS else 0),
        Arguments(
            source=x,
            output=result,
            tables=binder.constant(np.concatenate(tables[::-1]).astype(np.int64)),
            lines=lines,
            per_chunk=per_chunk,
            size=size,
            nbytes=nbytes,
            rows=len(tables[-2]),
            rank=axes - 2,
            sizes=[len(table) for table in tables[-3::-1]],
        ),
        chunks=-(-lines // per_chunk),
        detail=f"{lines} lines of {size} x {nbytes} bytes",
    )
