"""Pools over maps whose rows lie together: a vector holds neighbouring places of a line.

Nothing is laid out. An item goes down a strip of a map, a few vectors wide: each line is read once and combined with
those above it while these wait in registers (`running.py`), then neighbours in the line are combined. Ends of lines
are read and written by masks, so this is for targets that have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.expression import emit_working, working_type
from sardonyx.compiler.llvm.kernels.rows.reducing import neutral
from sardonyx.compiler.llvm.kernels.rows.row_access import as_loaded, memory_type
from sardonyx.compiler.llvm.kernels.windows.finish import Finish, Finishing
from sardonyx.compiler.llvm.kernels.windows.folds import Combine, Watch, may_watch
from sardonyx.compiler.llvm.kernels.windows.frame import Along, Arguments, Spot, divided, within, written
from sardonyx.compiler.llvm.kernels.windows.running import Combination, Neighbours, Running, RunningPairs, combination
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, dtype_type
from sardonyx.compiler.llvm.values import Variable
from sardonyx.kernel.expr import Input
from sardonyx.light_dataclass import dataclass

# Writes a line of windows, from the combinations down it by places.
_PlaceWindows = Callable[[Sequence[Value]], None]


@dataclass(frozen=True)
class RowStripSpec:
    """Windows over elements of the dtype `x`; `lanes` of them make a vector.

    A strip reads as many vectors of a line as there are in `masked`, which tells those that may have places outside,
    from `lead` places behind its first window's first tap on, and makes `results` vectors. If these do not reach to
    the last tap of its last window, there is nothing but padding beyond them. The last vector has `rest` lanes, read
    and made: fewer than the others only where there are as many of both, with stride 1. Where it `fills` the strip,
    all of its windows are made.
    """

    x: str
    lanes: int
    down: Along
    along: Along
    masked: tuple[bool, ...]
    lead: int
    results: int
    rest: int
    fills: bool
    fold: Combine
    finish: Finish

    def argument_names(self) -> tuple[str, ...]:
        """The words of the kernel's arguments.

        Address and byte strides, that of maps called `x_c`; items, items of a chunk; maps; lines of windows in a band,
        and bands; places of a strip, and strips; along lines (h) and places (w) the size, how many windows there are,
        and where the first begins.
        """
        own = ("items", "per_chunk", "maps", "band", "bands", "strip", "strips")
        windows = ("size_h", "size_w", "out_h", "out_w", "begin_h", "begin_w")
        return ("x", "x_n", "x_c", "x_h", *own, *windows, *self.finish.names())


def emit_row_strips(target: Target, spec: RowStripSpec) -> str:
    """The module of a kernel; its arguments are those that the specification names."""
    return written(target, spec, _Writer)


@dataclass(frozen=True)
class _Strip:
    """Where a strip begins: its map, its lines of windows from the first up to the last (excluded), its first place."""

    batch: Value
    map: Value
    first: Value
    last: Value
    place: Value


@dataclass(frozen=True)
class _Walk:
    """Where the next line lies, its number, and which of its places there are."""

    line: Variable
    number: Variable
    masks: Sequence[Value | None]
    careful: bool


class _Writer:
    """Writes the code of an item."""

    def __init__(self, k: Function, a: Arguments, spec: RowStripSpec) -> None:
        self.k, self.a, self.spec = k, a, spec
        self.storage = dtype_type(spec.x)
        self.working = working_type(np.dtype(spec.x)).vector(spec.lanes)
        self.neutral = neutral(k, spec.fold.kind, self.working)
        self.finishing = self.ending = Finishing(k, a, spec.finish, spec.lanes)
        self.neutrals = [self.neutral] * len(spec.masked)
        if spec.rest < spec.lanes:
            self.ending = Finishing(k, a, spec.finish, spec.rest)
            self.neutrals[-1] = neutral(k, spec.fold.kind, self.working.scalar.vector(spec.rest))
        may = may_watch(spec.fold, self.working.scalar)
        self.watch = Watch(k, self.working, 2 * len(spec.masked), self.neutrals[-1].type) if may else None

    def item(self, item: Value) -> None:
        k, a = self.k, self.a
        above, band = divided(item, a["bands"])
        above, number = divided(above, a["strips"])
        batch, map_ = divided(above, a["maps"])
        first = band * a["band"]
        last = k.smaller(first + a["band"], a["out_h"])
        strip = _Strip(batch, map_, first, last, k.smaller(number * a["strip"], a["out_w"] - a["strip"]))
        if self.watch is None:
            self._lines(strip, True)
        else:
            self.watch.over(partial(self._lines, strip))

    def _lines(self, strip: _Strip, careful: bool) -> None:
        k, a, spec = self.k, self.a, self.spec
        combine = combination(k, spec.fold, careful=careful)
        column = strip.place * spec.along.stride - a["begin_w"] + spec.lead
        masks = [
            self._below(a["size_w"], column + index * spec.lanes, one.type.lanes) if masked else None
            for index, (masked, one) in enumerate(zip(spec.masked, self.neutrals, strict=True))
        ]
        plane = k.advance(k.pointer(a["x"], self.storage).address, strip.batch * a["x_n"] + strip.map * a["x_c"], 1)
        top = strip.first * spec.down.stride - a["begin_h"]
        start = Pointer(k.advance(plane, top * a["x_h"], 1), memory_type(self.storage)).offset(column)
        walk = _Walk(k.variable(start.address.type, start.address), k.variable(I64, top), masks, careful)
        left = spec.results * spec.lanes - spec.lanes
        rest = None if spec.fills else k.lanes_below(a["strip"] - left, spec.rest)
        writers = [self.finishing] * (spec.results - 1) + [self.ending]
        spot = Spot(strip.batch, strip.map, k.constant(I64, 0), strip.first)
        rows = {writer: writer.start_rows(spot) for writer in writers}

        def place_windows(combinations: Sequence[Value]) -> None:
            for writer, at in rows.items():
                writer.take_row(at)
            windows = self._along(combinations, combine)
            for index, (writer, found) in enumerate(zip(writers, windows, strict=True)):
                mask = rest if index == spec.results - 1 else None
                writer.store([[found]], strip.map, strip.place + index * spec.lanes, along_lanes=True, mask=mask)

        if spec.down.stride == 1 and spec.down.taps >= 3 and spec.down.taps % 2:
            self._by_twos(strip, walk, combine, place_windows)
        else:
            self._by_ones(strip, walk, combine, place_windows)

    def _along(self, combinations: Sequence[Value], combine: Combination) -> Iterator[Value]:
        """The windows of a line, in the vectors that are stored."""
        k, spec, end = self.k, self.spec, self.neutrals[-1]
        if spec.rest == spec.lanes:
            along = Neighbours(k, combinations, self.neutral, combine, spec.along.stride)
            yield from (along.windows(spec.along.taps, spec.lead, index) for index in range(spec.results))
            return
        *whole, last = combinations
        # Those beyond its lanes do not matter where no window but its own reaches them.
        beyond = -1 if spec.along.taps - 1 - spec.lead <= spec.rest else spec.rest
        lanes = [*range(spec.rest), *[beyond] * (spec.lanes - spec.rest)]
        along = Neighbours(k, [*whole, k.shuffle(last, end, lanes)], self.neutral, combine, 1)
        yield from (along.windows(spec.along.taps, spec.lead, index) for index in range(spec.results - 1))
        # The last vector: with the ends of that before it, in vectors of its own length.
        before = range(-(-spec.lead // spec.rest) * -spec.rest, 0, spec.rest)
        ends = [k.shuffle(whole[-1], None, range(spec.lanes + at, spec.lanes + at + spec.rest)) for at in before]
        yield Neighbours(k, [*ends, last], end, combine, 1).windows(spec.along.taps, spec.lead, len(ends))

    def _by_ones(self, strip: _Strip, walk: _Walk, combine: Combination, place: _PlaceWindows) -> None:
        """Go down a strip a line of windows at a time."""
        k, down = self.k, self.spec.down
        columns = [Running(k, one.type, down.taps, combine) for one in self.neutrals]
        for column, one in zip(columns, self.neutrals, strict=True):
            column.begin(one)

        def line() -> list[Value]:
            return [column.line(value) for column, value in zip(columns, self._read(walk), strict=True)]

        for _ in range(max(0, down.taps - down.stride)):
            line()
        own = min(down.taps, down.stride)
        with k.loop(strip.first, strip.last):
            for _ in range(own):
                combinations = line()
            if own < down.stride:
                self._move(walk, down.stride - own)
            place(combinations)

    def _by_twos(self, strip: _Strip, walk: _Walk, combine: Combination, place: _PlaceWindows) -> None:
        """Go down a strip two lines of windows at a time; the last of an odd number of them is alone."""
        k, taps = self.k, self.spec.down.taps
        columns = [RunningPairs(k, one.type, taps, combine) for one in self.neutrals]
        for column, one in zip(columns, self.neutrals, strict=True):
            column.begin(one)

        def lines() -> tuple[list[Value], list[Value]]:
            read = zip(columns, self._read(walk), self._read(walk, len(columns)), strict=True)
            both = [column.lines(first, second) for column, first, second in read]
            return [first for first, _ in both], [second for _, second in both]

        for _ in range(taps // 2):
            lines()
        with k.loop(strip.first, strip.last, 2) as at:
            first, second = lines()
            place(first)
            with k.when(at + 1 < strip.last):
                place(second)

    def _read(self, walk: _Walk, watched: int = 0) -> list[Value]:
        """Read a line, of padding if there is none, and go on to the next."""
        k, a, lanes = self.k, self.a, self.spec.lanes
        read = [k.variable(one.type, one) for one in self.neutrals]
        line = Pointer(walk.line.get(), memory_type(self.storage))
        with k.when(within(k, walk.number.get(), a["size_h"])):
            for index, (variable, mask) in enumerate(zip(read, walk.masks, strict=True)):
                element = self._element(line.offset(index * lanes), mask, self.neutrals[index])
                variable.set(element)
                if not walk.careful and self.watch is not None:
                    self.watch.see(watched + index, element)
        self._move(walk, 1)
        return [variable.get() for variable in read]

    def _element(self, place: Pointer, mask: Value | None, outside: Value) -> Value:
        """The elements of a vector, in their working type; those that a mask leaves out are `outside`."""
        k, (root,), lanes = self.k, self.spec.fold.element.roots, outside.type.lanes
        if isinstance(root, Input) and self.storage == outside.type.scalar:
            return place.load(0, lanes, mask, outside=outside)
        (element,) = emit_working(k, [root], [as_loaded(place.load(0, lanes, mask), self.storage)])
        return element if mask is None else k.select(mask, element, outside)

    def _move(self, walk: _Walk, lines: int) -> None:
        walk.line.set(self.k.advance(walk.line.get(), self.a["x_h"] * lines, 1))
        walk.number.set(walk.number.get() + lines)

    def _below(self, size: Value, start: Value, lanes: int) -> Value:
        """Which lanes of a vector that begins at a place are no padding."""
        return self.k.lanes_below(size - start, lanes) & ~self.k.lanes_below(-start, lanes)
