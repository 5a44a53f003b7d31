"""Sums of overlapping windows along lines, of columns that lie place by place.

Each tap's elements are then a line of the columns that is added to the result, shifted by the tap. Where windows move
by several places, every so many places of the result form a phase: the taps that reach it are the same at all of its
places. The sums of all phases are made side by side and put together in registers. All lines that reach a place are
added in one order for any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable
from sardonyx.compiler.llvm.expression import emit_expression
from sardonyx.compiler.llvm.kernels.rows.row_access import as_loaded, memory_type
from sardonyx.compiler.llvm.kernels.sampling.elements import Elements, blocked_loop, interleaved, working_type
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I32, I64, U8, U32, Type, type_of
from sardonyx.compiler.llvm.walk import kernel_frame, share
from sardonyx.kernel.canonical import Canonical
from sardonyx.light_dataclass import dataclass

# Registers of sums that are added up at once, at most; so many phases there may be.
MOST_VECTORS = 4
# Words of an operand: its address and its steps.
_OPERAND_WORDS = 5


@dataclass(frozen=True)
class LineOverlapSpec:
    """Columns of a type; `vectors` of sums of every one of `phases` (a power of two) are added up at once.

    `body` has the sum as input 0 and operand i as input 1 + i, whose type and whether it differs from place to place
    along a line `operands` tell.
    """

    columns: Type
    vectors: int
    phases: int
    operands: tuple[tuple[Type, bool], ...]
    body: Canonical


def emit_line_overlaps(target: Target, spec: LineOverlapSpec) -> str:
    """Lines of a result [batch, filters, z, y, x].

    Arguments: columns, table (I64), lines, lines per chunk, sizes along z, y and x, filters; the elements of a line of
    the columns, the bytes of the columns of a filter; from which to which place of a phase every tap reaches an
    element; the address and the steps in bytes along batch, filters, z, y and x of each operand; the address of each
    output, which is contiguous.

    The table holds, for each phase, for z and for y, where the entries of each place begin and, of the last one, end;
    then the entries. Those of a phase are two words for each of its taps: the element that reaches the phase's first
    place, and the bytes of the tap; those of z and y are the bytes to what is read. All count from the filter's start.
    """
    k, words = kernel_frame(target)
    begin, end = share(k, words.load(2), words.load(3))
    deep, high, width, filters = (words.load(at) for at in range(4, 8))
    line = _Line(k, spec, words)
    with k.loop(begin, end) as row:
        above = row // high
        plane = above // deep
        batch = plane // filters
        at = (batch, plane - batch * filters, above - plane * deep, row - above * high)
        line.add(plane, at, row * width, width)
    return k.finish()


class _Line:
    """The sums of one line after the other."""

    def __init__(self, k: Function, spec: LineOverlapSpec, words: Pointer) -> None:
        self.k, self.spec = k, spec
        self.working = working_type(spec.columns)
        self.lanes = k.target.lanes(self.working)
        self.columns = k.pointer(words.load(0), U8)
        self.phases = k.pointer(words.load(1), I64)
        self.deep = self.phases.offset(spec.phases + 1)
        self.high = self.deep.offset(words.load(4) + 1)
        self.entries = self.high.offset(words.load(5) + 1)
        self.length, self.plane_step, self.first, self.last = (words.load(at) for at in range(8, 12))
        begin = 12
        self.operands = [
            [words.load(begin + _OPERAND_WORDS * index + word) for word in range(_OPERAND_WORDS)]
            for index in range(len(spec.operands))
        ]
        begin += _OPERAND_WORDS * len(spec.operands)
        self.outputs = [words.load(begin + index) for index in range(len(spec.body.roots))]

    def add(self, plane: Value, at: Sequence[Value], first: Value, width: Value) -> None:
        """The line at [batch, filter, z, y], `width` places of the results from their `first` one on."""
        k, lanes, vectors = self.k, self.lanes, self.spec.vectors
        from_ = self.columns.offset(plane * self.plane_step)
        ranges = [
            (starts.load(one), starts.load(one + 1)) for starts, one in zip((self.deep, self.high), at[2:], strict=True)
        ]
        operands = [
            k.pointer(address, U8).offset(
                sum((one * step for one, step in zip(at, steps, strict=True)), start=k.constant(I64, 0))
            )
            for address, *steps in self.operands
        ]
        places = (width + (self.spec.phases - 1)) // self.spec.phases
        if k.target.has_masks:
            with k.loop(0, places, lanes * vectors) as place:
                totals = self._totals(from_, ranges, place, vectors, lanes, clipped=True)
                self._finish(totals, operands, place, first, width)
            return
        for begin, end in ((k.constant(I64, 0), self.first), (self.last, places)):
            with k.loop(begin, end) as place:
                self._finish(self._totals(from_, ranges, place, 1, 1, clipped=True), operands, place, first, width)

        def between(at: Value, count: int, lanes: int, mask: Value | None) -> None:
            place = self.first + at
            totals = self._totals(from_, ranges, place, count, lanes, clipped=False)
            self._finish(totals, operands, place, first, None)

        blocked_loop(k, self.last - self.first, lanes, vectors, between)

    def _totals(
        self,
        from_: Pointer,
        ranges: Sequence[tuple[Value, Value]],
        place: Value,
        count: int,
        lanes: int,
        *,
        clipped: bool,
    ) -> list[list[Value]]:
        """For each phase `count` vectors of sums from a place on; where `clipped`, taps may reach no element there."""
        k, entries = self.k, self.entries
        totals = [[k.variable(self.working.vector(lanes), 0) for _ in range(count)] for _ in range(self.spec.phases)]
        (z, z_end), (y, y_end) = ranges
        with k.loop(z, z_end) as slow, k.loop(y, y_end) as middle:
            lines = from_.offset(entries.load(slow) + entries.load(middle))
            for phase, sums in enumerate(totals):
                with k.loop(self.phases.load(phase), self.phases.load(phase + 1), 2) as tap:
                    element = place + entries.load(tap)
                    read = Elements(lines.offset(entries.load(tap + 1)), self.spec.columns, self.working)
                    self._add(sums, read.offset(element), element, lanes, clipped=clipped)
        return [[total.get() for total in sums] for sums in totals]

    def _add(self, sums: Sequence[Variable], read: Elements, element: Value, lanes: int, *, clipped: bool) -> None:
        """The elements of a tap's line from one on."""
        k = self.k
        if clipped and lanes == 1:
            with k.when((element >= 0) & (element < self.length)):
                sums[0].set(sums[0].get() + read.load())
            return
        for index, total in enumerate(sums):
            mask = self._inside(element + index * lanes, lanes) if clipped else None
            total.set(total.get() + read.load(index * lanes, lanes, mask))

    def _inside(self, element: Value, lanes: int) -> Value:
        """Which of the elements from one on are there: those before the first one count as very far behind it."""
        k = self.k
        numbers = k.iota(I32, lanes) + k.splat(element.to(I32), lanes)
        return numbers.bits_as(U32) < k.splat(self.length.to(I32).bits_as(U32), lanes)

    def _finish(
        self,
        totals: Sequence[Sequence[Value]],
        operands: Sequence[Pointer],
        place: Value,
        first: Value,
        width: Value | None,
    ) -> None:
        """The expressions of the sums of all phases from a place on, stored up to `width`, if there is one."""
        k, phases = self.k, self.spec.phases
        for index, sums in enumerate(zip(*totals, strict=True)):
            lanes = sums[0].type.lanes
            begin = (place + index * lanes) * phases
            for part, total in enumerate(interleaved(k, sums) if lanes > 1 else sums):
                at = begin + part * lanes
                if width is None:
                    self._store(total, operands, at, first, None)
                elif lanes > 1:
                    self._store(total, operands, at, first, k.lanes_below(width - at, lanes))
                else:
                    with k.when(at < width):
                        self._store(total, operands, at, first, None)

    def _store(self, total: Value, operands: Sequence[Pointer], at: Value, first: Value, mask: Value | None) -> None:
        k, lanes = self.k, total.type.lanes
        values = [total]
        for line, (type_, by_place) in zip(operands, self.spec.operands, strict=True):
            memory = line.cast(memory_type(type_))
            loaded = memory.load(at, lanes, mask) if by_place else k.splat(memory.load(0), lanes)
            values.append(as_loaded(loaded, type_))
        results = emit_expression(k, self.spec.body.roots, values)
        for root, address, result in zip(self.spec.body.roots, self.outputs, results, strict=True):
            stored = type_of(root.dtype)
            assert stored is not None
            k.pointer(address, stored).store(k.splat(result, lanes), first + at, mask)


__all__ = ["MOST_VECTORS", "LineOverlapSpec", "emit_line_overlaps"]
