"""Rows and elements by index. An index out of bounds is noted as a fault and its place is left as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, I64, U8, U64, Type
from sardonyx.compiler.llvm.walk import Row, copy_blob, kernel_frame, note, places, runs, share
from sardonyx.light_dataclass import dataclass

# Outer places whose rows an index is looked up for once.
ABREAST = 4
_FAULT_BYTES = 16


@dataclass(frozen=True)
class GatherSpec:
    """`blob` bytes per row (0: known at run time); `depth` indices of `index` bits for each row.

    Negative ones count `from_end`, or are out of bounds.
    """

    blob: int
    index: int
    depth: int = 1
    from_end: bool = True


def emit_gather(target: Target, spec: GatherSpec) -> str:
    """Rows of the data, each at the place that its indices name.

    Arguments: data, indices, output, faults (one for each index of a row), items, items per chunk, rows under one
    outer place, bytes between outer places of the data, indices between outer places, bytes of a row, pieces of a row,
    bytes of a piece, and the table (size, stride) of the axes that the indices of a row address. Items are outer
    places times rows, times pieces where the bytes of a row are known at run time alone.
    """
    k, words = kernel_frame(target)
    gather = _Gathering(k, words, spec)
    begin, end = share(k, words.load(4), words.load(5))
    if spec.blob:
        with runs(k, begin, end, gather.rows) as (outer, first, last):
            gather.whole(outer, first, last, spec.blob, lambda from_, to: copy_blob(from_, to, spec.blob))
    else:
        pieces, piece_bytes = words.load(10), words.load(11)
        whole = Row(k, 0, piece_bytes)
        in_one = pieces <= 1
        with k.when(in_one), runs(k, begin, end, gather.rows) as (outer, first, last):
            gather.whole(outer, first, last, gather.row_bytes, whole.copy)
        with k.otherwise(in_one), k.loop(begin, end) as item:
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


def emit_gather_abreast(target: Target, spec: GatherSpec) -> str:
    """Short rows under many outer places: an index is read and checked once for `ABREAST` of them.

    Arguments: those of `emit_gather` up to the bytes of a row, the items being outer places, and from the 12th on the
    table.
    """
    k, words = kernel_frame(target)
    gather = _Gathering(k, words, spec)
    begin, end = share(k, words.load(4), words.load(5))
    alone = end - (end - begin) % ABREAST
    with k.loop(begin, alone, ABREAST) as outer:
        gather.abreast(outer, ABREAST)
    with k.loop(alone, end) as outer:
        gather.abreast(outer, 1)
    return k.finish()


class _Gathering:
    """The arguments of `emit_gather`, and what is done for each row."""

    def __init__(self, k: Function, words: Pointer, spec: GatherSpec) -> None:
        self._k, self._spec = k, spec
        self._data, self._output = k.pointer(words.load(0), U8), k.pointer(words.load(2), U8)
        self._indices = k.pointer(words.load(1), Type("i", spec.index))
        self.rows = words.load(6)
        self._data_step, self._index_step, self.row_bytes = words.load(7), words.load(8), words.load(9)
        faults = k.pointer(words.load(3), U8)
        self._addressed = Addressed(k, words.offset(12), faults, spec.depth, from_end=spec.from_end)

    def whole(
        self, outer: Value, first: Value, last: Value, nbytes: Value | int, copy: Callable[[Pointer, Pointer], None]
    ) -> None:
        """Whole rows under one outer place."""
        from_, to = self._data.offset(outer * self._data_step), self._output.offset(outer * self.rows * self.row_bytes)
        indices = self._indices.offset(outer * self._index_step)
        with self._k.loop(first, last) as row:
            offset, good = self._addressed.place(indices.offset(row * self._spec.depth))
            with self._k.when(good):
                copy(from_.offset(offset), to.offset(row * nbytes))

    def abreast(self, outer: Value, count: int) -> None:
        """Whole rows of `blob` bytes under so many outer places, by the same indices."""
        blob = self._spec.blob
        sources = [self._data.offset((outer + place) * self._data_step) for place in range(count)]
        results = [self._output.offset((outer + place) * self.rows * blob) for place in range(count)]
        with self._k.loop(0, self.rows) as row:
            offset, good = self._addressed.place(self._indices.offset(row))
            with self._k.when(good):
                for source, result in zip(sources, results, strict=True):
                    copy_blob(source.offset(offset), result.offset(row * blob), blob)

    def row(self, outer: Value, row: Value, at: Value, copied: Row) -> None:
        """A part of a row, from byte `at` on."""
        offset, good = self._addressed.place(self._indices.offset(outer * self._index_step + row * self._spec.depth))
        with self._k.when(good):
            from_ = self._data.offset(outer * self._data_step + offset + at)
            copied.copy(from_, self._output.offset((outer * self.rows + row) * self.row_bytes + at))


class Addressed:
    """The axes that the indices of a row address: a table of their sizes and strides (in bytes), and their faults."""

    def __init__(self, k: Function, table: Pointer, faults: Pointer, depth: int, *, from_end: bool = True) -> None:
        self._k, self._from_end = k, from_end
        self._axes = [
            (table.load(2 * axis), table.load(2 * axis + 1), faults.offset(axis * _FAULT_BYTES))
            for axis in range(depth)
        ]

    def place(self, indices: Pointer) -> tuple[Value, Value]:
        """The byte offset that the indices from a place on name, and whether all are in bounds; a fault is noted."""
        k = self._k
        offset, fine = k.constant(I64, 0), k.constant(BOOL, True)
        for number, (size, stride, fault) in enumerate(self._axes):
            index = indices.load(number).to(I64)
            counted = index + k.select(index < 0, size, 0) if self._from_end else index
            good = counted.to(U64) < size.to(U64)
            with k.otherwise(good):
                note(k, fault, index)
            offset, fine = (counted * stride, good) if number == 0 else (offset + counted * stride, fine & good)
        return offset, fine


@dataclass(frozen=True)
class ElementsSpec:
    """Elements of `blob` bytes, indices of `index` bits."""

    blob: int
    index: int


def emit_gather_elements(target: Target, spec: ElementsSpec) -> str:
    """For each index the element of the data at its place, the coordinate on one axis replaced.

    Arguments: those of `IndexedElements`, the other tensor being the output.
    """
    k, words = kernel_frame(target)
    with IndexedElements(k, words, spec.index).each(spec.blob) as (element, other):
        copy_blob(element, other, spec.blob)
    return k.finish()


class IndexedElements:
    """Elements of the data that indices name one by one, beside the tensor of the indices' shape that they go with.

    Arguments: data, indices, the other tensor, fault, rows of indices, rows per chunk, indices of a row, bytes between
    the elements of the data along a row (0 where the index replaces that coordinate), size and stride of the axis,
    rank and table (size, data stride) of the dimensions over rows.
    """

    def __init__(self, k: Function, words: Pointer, index: int) -> None:
        self._k, self._words = k, words
        self._data, self._other = k.pointer(words.load(0), U8), k.pointer(words.load(2), U8)
        self._indices, fault = k.pointer(words.load(1), Type("i", index)), k.pointer(words.load(3), U8)
        self._count, self._step = words.load(6), words.load(7)
        self._addressed = Addressed(k, words.offset(8), fault, 1)

    @contextmanager
    def each(self, blob: int) -> Iterator[tuple[Pointer, Pointer]]:
        """A block for each index that is in bounds: its element of the data, and that of the other tensor."""
        k, words, count = self._k, self._words, self._count
        begin, end = share(k, words.load(4), words.load(5))
        with k.loop(begin, end) as row:
            (start,) = places(k, row, words.offset(11), words.load(10), 1)
            data, indices = self._data.offset(start), self._indices.offset(row * count)
            other = self._other.offset(row * count * blob)
            with k.loop(0, count) as column:
                offset, good = self._addressed.place(indices.offset(column))
                with k.when(good):
                    yield data.offset(column * self._step + offset), other.offset(column * blob)
