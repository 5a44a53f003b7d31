"""Small windows in tiles of several lines and places, all of whose values wait in registers.

They are those of depthwise convolutions and of pools. Every tap is written out, and a line of the input is read once
for all lines of the tile that it belongs to. An item is a strip of the map, as wide as a tile, and a block of channels:
it goes down the tiles of the strip, and in each through the vectors of the block, so that what two tiles read stays in
the nearest cache however wide the map is. Nothing is padded: lines outside are left out, and columns that may be
outside are asked for, by masks where there are these. The last strip is moved back to end with the map, as is the last
vector of the channels; lines that are left over have tiles of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.expression import working_type
from sardonyx.compiler.llvm.kernels.rows.row_access import as_loaded, memory_type
from sardonyx.compiler.llvm.kernels.windows.finish import Finish, Finishing
from sardonyx.compiler.llvm.kernels.windows.folds import Combine, Combining, Correlate, may_watch
from sardonyx.compiler.llvm.kernels.windows.frame import Along, Arguments, Spot, divided, within, written
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, dtype_type
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class TileSpec:
    """Windows over elements of the dtype `x`; `lanes` channels make a vector. Products have one channel of a group,
    but for those of `group_tiles`.

    A tile has `down.places` lines of `along.places` windows; of the lines of a map, `rest` are left over. The columns
    of a tile from the first up to the last (excluded) of `sure` are no padding wherever the tile is. `asks_ahead` says
    that a tile asks for what the one below it reads: a strip goes from line to line, which no machine expects;
    `asks_results`, that it asks for what that one writes.
    """

    x: str
    fold: Combine | Correlate
    lanes: int
    down: Along
    along: Along
    rest: int
    sure: tuple[int, int]
    finish: Finish
    asks_ahead: bool
    asks_results: bool

    def argument_names(self) -> tuple[str, ...]:
        """The words of the kernel's arguments.

        Addresses and byte strides; items, items of a chunk; lines of windows in a band, bands of a strip, strips of a
        map; blocks of channels, channels of a block and in all; along lines (h) and places (w) the size, how many
        windows there are, and where the first begins; for `Correlate` the address of the weights, which lie as
        [vectors, taps, lanes].
        """
        own = ("items", "per_chunk", "band", "bands", "strips", "blocks", "block", "channels")
        windows = ("size_h", "size_w", "out_h", "out_w", "begin_h", "begin_w")
        more = ("weights",) if isinstance(self.fold, Correlate) else ()
        return ("x", "x_n", "x_h", "x_w", *own, *windows, *more, *self.finish.names())


def emit_window_tiles(target: Target, spec: TileSpec) -> str:
    """The module of a kernel; its arguments are those that the specification names."""
    return written(target, spec, TileWriter)


# Takes a column of a line, by its place among the columns, and its elements.
Take = Callable[[int, Value], None]


@dataclass(frozen=True)
class Tile:
    """A tile while its code is written: the first tap of its first window, its windows down, the coordinate of the
    first line that they read, and for columns that may be padding what tells."""

    start: Pointer
    down: Along
    top: Value
    asked: dict[int, Value]


def _windows(states: Sequence[Combining]) -> list[list[Value]]:
    return [[value for (value,) in state.finish()] for state in states]


class TileWriter:
    """Writes the code of an item."""

    def __init__(self, k: Function, a: Arguments, spec: TileSpec) -> None:
        self.k, self.a, self.spec = k, a, spec
        self.storage = dtype_type(spec.x)
        self.working = working_type(np.dtype(spec.x)).vector(spec.lanes)
        self.finishing = Finishing(k, a, spec.finish, spec.lanes)
        self.has_masks = k.target.has_masks and spec.lanes > 1

    def item(self, item: Value) -> None:
        k, a, spec = self.k, self.a, self.spec
        above, band = divided(item, a["bands"])
        above, strip = divided(above, a["strips"])
        batch, block = divided(above, a["blocks"])
        channels = block * a["block"], k.smaller(a["channels"], (block + 1) * a["block"])
        place = k.smaller(strip * spec.along.places, a["out_w"] - spec.along.places)
        first = band * a["band"]
        last = k.smaller(first + a["band"], a["out_h"])
        rest = (last - first) % spec.down.places if spec.rest else k.constant(I64, 0)
        with k.loop(first, last - rest, spec.down.places) as line:
            self._tiles(batch, line, spec.down.places, place, channels)
        if spec.rest:
            with k.when(rest > 0):
                self._tiles(batch, last - rest, spec.rest, place, channels)

    def _tiles(self, batch: Value, line: Value, lines: int, place: Value, channels: tuple[Value, Value]) -> None:
        """The windows of some lines from a place on, for the channels from the first up to the last (excluded)."""
        k, a = self.k, self.a
        top, column = line * self.spec.down.stride - a["begin_h"], place * self.spec.along.stride - a["begin_w"]
        address = k.pointer(a["x"], self.storage).address
        address = k.advance(address, a.counted("x", {"n": batch, "h": top, "w": column}), 1)
        start = Pointer(address, memory_type(self.storage))
        asked = {offset: self._asked(column + offset) for offset in self._unsure()}
        with k.loop(*channels, self.spec.lanes) as at:
            channel = k.smaller(at, a["channels"] - self.spec.lanes)
            down = Along(lines, self.spec.down.taps, self.spec.down.stride, self.spec.down.dilation)
            if self.spec.asks_results:
                self._ask_for_results(batch, line, lines, place, channel)
            values = self._values(Tile(start.offset(self._first_read(channel)), down, top, asked), channel)
            for number, windows in enumerate(values):
                self.finishing.start_row(Spot(batch, k.constant(I64, 0), k.constant(I64, 0), line + number))
                self.finishing.store([[value] for value in windows], place, channel)

    def _ask_for_results(self, batch: Value, line: Value, lines: int, place: Value, channel: Value) -> None:
        """Ask for what the tile below writes."""
        k, a = self.k, self.a
        for number in range(lines, 2 * lines):
            self.finishing.start_row(Spot(batch, k.constant(I64, 0), k.constant(I64, 0), line + number))
            at = self.finishing.result_row().offset(channel)
            for column in range(self.spec.along.places):
                Pointer(k.advance(at.address, a["output0_step"] * (place + column), 1), at.scalar).prefetch()

    def _first_read(self, channel: Value) -> Value:
        """The first channel that those of the result from one on read."""
        return channel

    def _values(self, tile: Tile, channel: Value) -> list[list[Value]]:
        """The windows of a tile, by lines."""
        if isinstance(self.spec.fold, Correlate):
            return self._sums(tile, self.spec.fold, channel)
        if not may_watch(self.spec.fold, self.working.scalar):
            return _windows(self._combined(tile, self.spec.fold, watches=False))
        k = self.k
        quick = self._combined(tile, self.spec.fold, watches=True)
        found = [[k.variable(value.type, value) for value in windows] for windows in _windows(quick)]
        met_nan = quick[0].met_nan()
        for state in quick[1:]:
            met_nan = met_nan | state.met_nan()
        with k.when(met_nan):
            careful = _windows(self._combined(tile, self.spec.fold, watches=False))
            for variables, windows in zip(found, careful, strict=True):
                for variable, value in zip(variables, windows, strict=True):
                    variable.set(value)
        return [[variable.get() for variable in variables] for variables in found]

    def _combined(self, tile: Tile, fold: Combine, *, watches: bool) -> list[Combining]:
        """What lines of windows combine, as folds that have seen everything."""
        k, spec = self.k, self.spec
        states = [
            Combining(k, fold, spec.along, self.working.scalar, spec.lanes, in_turns=False, watches=watches)
            for _ in range(tile.down.places)
        ]
        for state in states:
            state.begin()

        def line(number: int) -> Take:
            readers = tile.down.readers(number)

            def take(index: int, element: Value) -> None:
                asked = tile.asked.get(spec.along.columns[index]) if self.has_masks else None
                for window, _ in readers:
                    states[window].column(index, element, asked)

            return take

        self._walk(tile, line)
        return states

    def _sums(self, tile: Tile, fold: Correlate, channel: Value) -> list[list[Value]]:
        """The sums of products of a tile."""
        k, spec, along = self.k, self.spec, self.spec.along
        zero = k.constant(self.working, 0)
        sums = [[k.variable(self.working, zero) for _ in range(along.places)] for _ in range(tile.down.places)]
        vector = (channel + (spec.lanes - 1)) // spec.lanes
        filters = k.pointer(self.a["weights"], memory_type(fold.weights))
        filters = filters.offset(vector * (spec.down.taps * along.taps * spec.lanes))

        def weights(tap: int) -> list[Value]:
            places = [filters.offset((tap * along.taps + at) * spec.lanes) for at in range(along.taps)]
            return [as_loaded(place.load(0, spec.lanes), fold.weights).to(self.working.scalar) for place in places]

        def line(number: int) -> Take:
            readers = [(window, tap, weights(tap)) for window, tap in tile.down.readers(number)]

            def take(index: int, element: Value) -> None:
                for window, tap_h, of_line in readers:
                    for place, tap in along.readers(along.columns[index]):
                        total, weight = sums[window][place], of_line[tap]
                        is_first = tap_h == tap == 0
                        total.set(element * weight if is_first else k.fma(element, weight, total.get()))

            return take

        self._walk(tile, line)
        return [[total.get() for total in windows] for windows in sums]

    def _walk(self, tile: Tile, line_of: Callable[[int], Take]) -> None:
        """Show what the taps of a tile read: `line_of` gives what takes the columns of a line, by its number."""
        k, a = self.k, self.a
        # Lines of the tile below that this one does not read lie this far below its last ones.
        fresh = tile.down.places * tile.down.stride
        below = a["x_h"] * fresh
        unread = range(tile.down.columns[-1] + 1 - fresh, tile.down.columns[-1] + 1) if self.spec.asks_ahead else ()
        line, above = tile.start, 0
        for number in tile.down.columns:
            if number != above:
                line, above = Pointer(k.advance(line.address, a["x_h"] * (number - above), 1), line.scalar), number
            with k.when(within(k, tile.top + number, a["size_h"])):
                take = line_of(number)
                at, before = Pointer(k.opaque(line.address), line.scalar), 0
                for index, offset in enumerate(self.spec.along.columns):
                    if offset != before:
                        at, before = Pointer(k.advance(at.address, a["x_w"] * (offset - before), 1), at.scalar), offset
                    k.keep_order()  # columns that are loaded early would wait in registers
                    with self._column(at, tile.asked.get(offset)) as element:
                        take(index, element)
                    if number in unread:
                        Pointer(k.advance(at.address, below, 1), at.scalar).prefetch()

    def _unsure(self) -> list[int]:
        """The columns of a tile that may be padding."""
        first, last = self.spec.sure
        return [offset for offset in self.spec.along.columns if not first <= offset < last]

    def _asked(self, column: Value) -> Value:
        """Whether a column is no padding, as a mask of its elements where there are masks."""
        inside = within(self.k, column, self.a["size_w"])
        return self.k.splat(inside, self.spec.lanes) if self.has_masks else inside

    @contextmanager
    def _column(self, at: Pointer, asked: Value | None) -> Iterator[Value]:
        """The elements of a column; zeros, or nothing at all, where it is padding."""
        k, lanes = self.k, self.spec.lanes
        if asked is None or self.has_masks:
            yield as_loaded(at.load(0, lanes, asked), self.storage)
        else:
            with k.when(asked):
                yield as_loaded(at.load(0, lanes), self.storage)
