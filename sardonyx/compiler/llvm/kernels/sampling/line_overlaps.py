"""Sums of overlapping windows that move by single steps along a line, of columns that lie place by place.

Each tap's elements are then a line of the columns that is added to a line of the result, shifted by the tap. Vectors of
the result stay in registers while all lines that reach them are added, in one order for any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.movement.walk import kernel_frame, share
from sardonyx.compiler.llvm.kernels.sampling.elements import Elements, blocked_loop, working_type
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I32, I64, U8, U32, Type

# Registers of sums that are added up at once, at most.
MOST_VECTORS = 4


@dataclass(frozen=True)
class LineOverlapSpec:
    """Elements of `type`; `vectors` of sums are added up at once."""

    type: Type
    vectors: int


def emit_line_overlaps(target: Target, spec: LineOverlapSpec) -> str:
    """Lines of a result [planes, z, y, x].

    Arguments: columns, table (int64), result, lines, lines per chunk, sizes along z, y and x; along x: elements of a
    line of the columns, taps, dilation, places that are cut off before the result, bytes between taps; bytes of the
    columns of a plane. The table holds, for z and for y, where the entries of each place begin and, of the last one,
    end; then the entries: the bytes to what is read, from the start of the plane.
    """
    k, words = kernel_frame(target)
    table, result = k.pointer(words.load(1), I64), k.pointer(words.load(2), U8)
    begin, end = share(k, words.load(3), words.load(4))
    deep, high, width = (words.load(at) for at in range(5, 8))
    line = _Line(k, spec, words, table.offset(deep + high + 2))
    to = Elements(result, spec.type, line.working)
    with k.loop(begin, end) as row:
        above = row // high
        plane = above // deep
        ranges = [
            (starts.load(place), starts.load(place + 1))
            for starts, place in ((table, above - plane * deep), (table.offset(deep + 1), row - above * high))
        ]
        line.add(plane, ranges, to.offset(row * width), width)
    return k.finish()


class _Line:
    """What is added up along x."""

    def __init__(self, k: Function, spec: LineOverlapSpec, words: Pointer, entries: Pointer) -> None:
        self.k, self.spec, self.entries = k, spec, entries
        self.working = working_type(spec.type)
        self.lanes = k.target.lanes(self.working)
        self.columns = k.pointer(words.load(0), U8)
        self.length, self.taps, self.dilation, self.cut, self.tap_step = (words.load(at) for at in range(8, 13))
        self.plane_step = words.load(13)

    def add(self, plane: Value, ranges: list[tuple[Value, Value]], to: Elements, width: Value) -> None:
        """Write a line of the result of `width` elements; `ranges` are those of the entries along z and y."""
        k, lanes = self.k, self.lanes
        from_ = self.columns.offset(plane * self.plane_step)
        if k.target.has_masks:
            with k.loop(0, width, lanes * self.spec.vectors) as at:
                totals = self._totals(from_, ranges, at, self.spec.vectors, lanes, clipped=True)
                for index, total in enumerate(totals):
                    place = at + index * lanes
                    to.store(total, place, k.lanes_below(width - place, lanes))
            return
        # Between these every tap reaches an element.
        first = k.smaller(k.larger((self.taps - 1) * self.dilation - self.cut, 0), width)
        last = k.larger(k.smaller(self.length - self.cut, width), first)
        for begin, end in ((k.constant(I64, 0), first), (last, width)):
            with k.loop(begin, end) as at:
                to.store(self._totals(from_, ranges, at, 1, 1, clipped=True)[0], at)

        def between(at: Value, count: int, lanes: int, mask: Value | None) -> None:
            totals = self._totals(from_, ranges, first + at, count, lanes, clipped=False)
            for index, total in enumerate(totals):
                to.store(total, first + at + index * lanes, mask)

        blocked_loop(k, last - first, lanes, self.spec.vectors, between)

    def _totals(
        self, from_: Pointer, ranges: list[tuple[Value, Value]], at: Value, count: int, lanes: int, *, clipped: bool
    ) -> list[Value]:
        """`count` vectors of sums from a place on; where `clipped`, taps may reach no element there."""
        k, entries = self.k, self.entries
        totals = [k.variable(self.working.vector(lanes), 0) for _ in range(count)]
        (z, z_end), (y, y_end) = ranges
        with k.loop(z, z_end) as slow, k.loop(y, y_end) as middle:
            lines = from_.offset(entries.load(slow) + entries.load(middle))
            with k.loop(0, self.taps) as tap:
                element = at + self.cut - tap * self.dilation
                read = Elements(lines.offset(tap * self.tap_step), self.spec.type, self.working).offset(element)
                if clipped and lanes == 1:
                    with k.when((element >= 0) & (element < self.length)):
                        totals[0].set(totals[0].get() + read.load())
                else:
                    for index, total in enumerate(totals):
                        mask = self._inside(element + index * lanes, lanes) if clipped else None
                        total.set(total.get() + read.load(index * lanes, lanes, mask))
        return [total.get() for total in totals]

    def _inside(self, element: Value, lanes: int) -> Value:
        """Which of the elements from one on are there: those before the first one count as very far behind it."""
        k = self.k
        numbers = k.iota(I32, lanes) + k.splat(element.to(I32), lanes)
        return numbers.bits_as(U32) < k.splat(self.length.to(I32).bits_as(U32), lanes)


__all__ = ["MOST_VECTORS", "LineOverlapSpec", "emit_line_overlaps"]
