"""Resizing to the nearest element: lines of elements, or of runs of bytes, read by tables of places."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.movement.walk import Row, copy_blob, kernel_frame, share
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, U8, Type


@dataclass(frozen=True)
class NearestSpec:
    """Lines of elements of `blob` bytes (0: runs of a length known at run time).

    With `repeat` above 0, a line is that of the source with each element as often as that.
    """

    blob: int
    repeat: int = 0


def emit_nearest(target: Target, spec: NearestSpec) -> str:
    """Lines whose elements lie, in the source, where tables say; a line that is like the one before is a copy of it.

    Arguments: source, output, tables (I64), lines, lines per chunk, elements of a line, bytes of an element, rank of
    the dimensions over lines and their sizes, the fastest one first. The tables hold byte offsets: those of the
    elements of a line, then those of each dimension over lines, in that order.
    """
    k, words = kernel_frame(target)
    source, output = k.pointer(words.load(0), U8), k.pointer(words.load(1), U8)
    line_table = k.pointer(words.load(2), I64)
    size, nbytes = words.load(5), k.constant(I64, spec.blob) if spec.blob else words.load(6)
    row = Row(k, spec.blob, nbytes)
    line_bytes = size * nbytes
    before = k.variable(I64, -(1 << 62))
    begin, end = share(k, words.load(3), words.load(4))
    with k.loop(begin, end) as line:
        place = table_place(k, line, line_table.offset(size), words.offset(8), words.load(7))
        from_, to = source.offset(place), output.offset(line * line_bytes)
        again = place.equals(before.get())
        with k.when(again):
            k.copy(to, to.offset(-line_bytes), line_bytes)
        with k.otherwise(again):
            if spec.repeat:
                _repeated(k, from_, to, size, spec)
            else:
                with k.loop(0, size) as element:
                    row.copy(from_.offset(line_table.load(element)), to.offset(element * nbytes))
        before.set(place)
    return k.finish()


def table_place(k: Function, index: Value, tables: Pointer, sizes: Pointer, rank: Value) -> Value:
    """The byte offset of the `index`-th place of `rank` dimensions: the sum of what their tables say."""
    rest, total, table = k.variable(I64, index), k.variable(I64, 0), k.variable(I64, 0)
    with k.loop(0, rank) as dimension:
        size, counted = sizes.load(dimension), rest.get()
        quotient = counted // size
        total.set(total.get() + tables.load(table.get() + (counted - quotient * size)))
        table.set(table.get() + size)
        rest.set(quotient)
    return total.get()


def _repeated(k: Function, from_: Pointer, to: Pointer, size: Value, spec: NearestSpec) -> None:
    """A line of `size` elements in which each of the source's comes `repeat` times."""
    scalar, times = Type("u", 8 * spec.blob), spec.repeat
    lanes = k.target.lanes(scalar)
    read, written = from_.cast(scalar), to.cast(scalar)
    count = size // times
    whole = count & -lanes
    with k.loop(0, whole, lanes) as at:
        vector = read.load(at, lanes, align=1)
        for part in range(times):
            spread = k.shuffle(vector, None, [(part * lanes + lane) // times for lane in range(lanes)])
            written.store(spread, at * times + part * lanes, align=1)
    with k.loop(whole, count) as at:
        for part in range(times):
            copy_blob(from_.offset(at * spec.blob), to.offset((at * times + part) * spec.blob), spec.blob)
