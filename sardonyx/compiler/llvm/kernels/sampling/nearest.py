"""Resizing to the nearest element: lines of elements, or of runs of bytes, read by tables of places."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, U8, Type
from sardonyx.compiler.llvm.walk import Row, kernel_frame, places, runs, share
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class NearestSpec:
    """Elements of `blob` bytes (0: of a length known at run time), each of them read where a table says."""

    blob: int


def emit_nearest(target: Target, spec: NearestSpec) -> str:
    """Lines whose elements lie, in the source, where tables say; a line that is like the one before is a copy of it.

    Arguments: source, output, tables (I64), lines, lines per chunk, elements of a line, bytes of an element, lines of
    a plane, rank of the dimensions over planes and their sizes, the fastest one first. The tables hold byte offsets:
    those of the elements of a line, of the lines of a plane, then those of each dimension over planes, in that order.
    """
    k, words = kernel_frame(target)
    source, output = k.pointer(words.load(0), U8), k.pointer(words.load(1), U8)
    across = k.pointer(words.load(2), I64)
    size, nbytes, rows = words.load(5), k.constant(I64, spec.blob) if spec.blob else words.load(6), words.load(7)
    down = across.offset(size)
    row, line = Row(k, spec.blob, nbytes), Row(k, 0, size * nbytes)
    begin, end = share(k, words.load(3), words.load(4))
    with runs(k, begin, end, rows) as (plane, first, last):
        from_plane = source.offset(_place(k, plane, down.offset(rows), words.offset(9), words.load(8)))
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
    return k.finish()


# No element lies so far before the source's first one.
_NO_PLACE = -(1 << 62)


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


@dataclass(frozen=True)
class RepeatSpec:
    """Elements of `blob` bytes (0: of a length known at run time), as often across and as many lines down as said."""

    blob: int
    across: int
    down: int


def emit_repeat(target: Target, spec: RepeatSpec) -> str:
    """Lines of the source with each element repeated, and each of the resulting lines repeated.

    Arguments: source, output, lines of the source, lines per chunk, elements of a line, bytes of an element, bytes
    between elements of a line; lines of a plane and bytes between them; bytes between elements of the output, where
    these are longer than 8; rank and table (size, source stride) of the dimensions over planes.
    """
    k, words = kernel_frame(target)
    source, output = k.pointer(words.load(0), U8), k.pointer(words.load(1), U8)
    size, nbytes, step = words.load(4), k.constant(I64, spec.blob) if spec.blob else words.load(5), words.load(6)
    rows, line_step, written = words.load(7), words.load(8), words.load(9)
    row_bytes = size * written * spec.across
    begin, end = share(k, words.load(2), words.load(3))
    with runs(k, begin, end, rows) as (plane, first, last):
        (start,) = places(k, plane, words.offset(11), words.load(10), 1)
        with k.loop(first, last) as index:
            from_ = source.offset(start + index * line_step)
            to = output.offset((plane * rows + index) * (row_bytes * spec.down))
            lines = [to.offset(row_bytes * copy) for copy in range(spec.down)]
            if 0 < spec.blob <= 8:
                _repeated_elements(k, spec, from_, lines, size)
            else:
                with k.loop(0, size) as element:
                    at = element * (written * spec.across)
                    ends = [line.offset(at + written * copy) for line in lines for copy in range(spec.across)]
                    _repeated_run(k, from_.offset(element * step), ends, nbytes)
    return k.finish()


def _repeated_elements(k: Function, spec: RepeatSpec, from_: Pointer, lines: list[Pointer], size: Value) -> None:
    """Contiguous elements that registers hold several of."""
    scalar, times = Type("u", 8 * spec.blob), spec.across
    lanes = k.target.lanes(scalar)
    read, written = from_.cast(scalar), [line.cast(scalar) for line in lines]
    whole = size & -lanes
    with k.loop(0, whole, lanes) as at:
        vector = read.load(at, lanes, align=1)
        for part in range(times):
            spread = k.shuffle(vector, None, [(part * lanes + lane) // times for lane in range(lanes)])
            for line in written:
                line.store(spread, at * times + part * lanes, align=1)
    with k.loop(whole, size) as at:
        element = read.load(at, align=1)
        for line in written:
            for part in range(times):
                line.store(element, at * times + part, align=1)


def _repeated_run(k: Function, from_: Pointer, ends: list[Pointer], nbytes: Value) -> None:
    """Bytes copied to several places."""
    width = k.target.vector_bits // 8
    long = nbytes >= width
    with k.when(long):
        rest = nbytes - width
        with k.loop(0, rest, width) as at:
            vector = from_.load(at, width)
            for to in ends:
                to.store(vector, at)
        vector = from_.load(rest, width)  # overlaps what was copied before
        for to in ends:
            to.store(vector, rest)
    with k.otherwise(long):
        if k.target.has_masks:
            mask = k.lanes_below(nbytes, width)
            vector = from_.load(0, width, mask)
            for to in ends:
                to.store(vector, 0, mask)
        else:
            for to in ends:
                k.copy(to, from_, nbytes)
