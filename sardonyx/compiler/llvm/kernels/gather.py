"""Rows and elements by index. An index out of bounds is noted as a fault and its place is left as it is."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.walk import Row, copy_blob, kernel_frame, note, places, runs, share
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, I64, U8, U64, Type

_FAULT_BYTES = 16


@dataclass(frozen=True)
class GatherSpec:
    """`blob` bytes per row (0: known at run time), indices of `index` bits, one or several of them for each row."""

    blob: int
    index: int
    several: bool = False


def emit_gather(target: Target, spec: GatherSpec) -> str:
    """Rows of the data, each at the place that its indices name.

    Arguments: data, indices, output, faults (one for each index of a row), items, items per chunk, rows under one
    outer place, bytes between outer places of the data, indices between outer places, bytes of a row, pieces of a row,
    bytes of a piece, indices of a row, and the table (size, stride) of the axes that they address. Items are outer
    places times rows, times pieces where the bytes of a row are known at run time alone.
    """
    k, words = kernel_frame(target)
    gather = _Gathering(k, words, spec)
    begin, end = share(k, words.load(4), words.load(5))
    if spec.blob:
        with runs(k, begin, end, gather.rows) as (outer, first, last), k.loop(first, last) as row:
            gather.row(outer, row, k.constant(I64, 0), Row(k, spec.blob, gather.row_bytes))
    else:
        pieces, piece_bytes = words.load(10), words.load(11)
        whole = Row(k, 0, piece_bytes)
        with k.loop(begin, end) as item:
            above = item // pieces
            at = (item - above * pieces) * piece_bytes
            outer = above // gather.rows
            row = above - outer * gather.rows
            left = gather.row_bytes - at
            complete = left >= piece_bytes
            with k.when(complete):
                gather.row(outer, row, at, whole)
            with k.otherwise(complete):
                gather.row(outer, row, at, Row(k, 0, left))
    return k.finish()


class _Gathering:
    """The arguments of `emit_gather`, and what is done for each row."""

    def __init__(self, k: Function, words: Pointer, spec: GatherSpec) -> None:
        self._k, self._spec = k, spec
        self._data, self._output = k.pointer(words.load(0), U8), k.pointer(words.load(2), U8)
        self._indices = k.pointer(words.load(1), Type("i", spec.index))
        self._faults = k.pointer(words.load(3), U8)
        self.rows = words.load(6)
        self._data_step, self._index_step, self.row_bytes = words.load(7), words.load(8), words.load(9)
        self._depth, self._table = words.load(12), words.offset(13)

    def row(self, outer: Value, row: Value, at: Value, copied: Row) -> None:
        k = self._k
        first = outer * self._index_step + (row * self._depth if self._spec.several else row)
        offset, good = placed(
            k, self._indices.offset(first), self._table, self._depth, self._faults, several=self._spec.several
        )
        with k.when(good):
            from_ = self._data.offset(outer * self._data_step + offset + at)
            copied.copy(from_, self._output.offset((outer * self.rows + row) * self.row_bytes + at))


def placed(
    k: Function, indices: Pointer, table: Pointer, depth: Value, faults: Pointer, *, several: bool
) -> tuple[Value, Value]:
    """The byte offset that the indices from a place on name, and whether all are in bounds; a fault is noted."""
    if not several:
        index, good = _checked(k, indices.load().to(I64), table.load(0), faults)
        return index * table.load(1), good
    offset, fine = k.variable(I64, 0), k.variable(BOOL, True)
    with k.loop(0, depth) as axis:
        entry = table.offset(axis * 2)
        index, good = _checked(k, indices.load(axis).to(I64), entry.load(0), faults.offset(axis * _FAULT_BYTES))
        offset.set(offset.get() + index * entry.load(1))
        fine.set(fine.get() & good)
    return offset.get(), fine.get()


def _checked(k: Function, index: Value, size: Value, fault: Pointer) -> tuple[Value, Value]:
    """An index counted from the front, and whether it is one."""
    counted = index + k.select(index < 0, size, 0)
    good = counted.to(U64) < size.to(U64)
    with k.otherwise(good):
        note(k, fault, index)
    return counted, good


@dataclass(frozen=True)
class ElementsSpec:
    """Elements of `blob` bytes, indices of `index` bits."""

    blob: int
    index: int


def emit_gather_elements(target: Target, spec: ElementsSpec) -> str:
    """For each index the element of the data at its place, the coordinate on one axis replaced.

    Arguments: data, indices, output, fault, rows of indices, rows per chunk, indices of a row, bytes between the
    elements of the data along a row (0 where the index replaces that coordinate), size and stride of the axis, rank
    and table (size, data stride) of the dimensions over rows.
    """
    k, words = kernel_frame(target)
    data, output = k.pointer(words.load(0), U8), k.pointer(words.load(2), U8)
    indices, fault = k.pointer(words.load(1), Type("i", spec.index)), k.pointer(words.load(3), U8)
    count, step, axis = words.load(6), words.load(7), words.offset(8)
    begin, end = share(k, words.load(4), words.load(5))
    with k.loop(begin, end) as row:
        (start,) = places(k, row, words.offset(11), words.load(10), 1)
        from_, read = data.offset(start), indices.offset(row * count)
        to = output.offset(row * count * spec.blob)
        with k.loop(0, count) as column:
            offset, good = placed(k, read.offset(column), axis, k.constant(I64, 1), fault, several=False)
            with k.when(good):
                copy_blob(from_.offset(column * step + offset), to.offset(column * spec.blob), spec.blob)
    return k.finish()
