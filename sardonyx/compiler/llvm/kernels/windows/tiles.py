"""Depthwise windows in tiles of several lines and places, all of whose sums wait in registers.

Every tap is written out, and a line of the input is read once for all lines of the tile that it belongs to. An item is
a strip of the map, as wide as a tile, and a block of channels: it goes down the tiles of the strip, and in each through
the vectors of the block, so that what two tiles read stays in the nearest cache however wide the map is. Nothing is
padded: lines outside are left out, and columns that may be outside are asked for, by masks where there are these. The
last strip is moved back to end with the map, as is the last vector of the channels; lines that are left over have tiles
of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.expression import working_type
from sardonyx.compiler.llvm.kernels.movement.walk import kernel_frame, share
from sardonyx.compiler.llvm.kernels.rows.row_access import as_loaded, memory_type
from sardonyx.compiler.llvm.kernels.windows.finish import Finish, Finishing, storage_of
from sardonyx.compiler.llvm.kernels.windows.frame import Along, Arguments, Spot, within
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, Type


@dataclass(frozen=True)
class TileSpec:
    """Windows over elements of the dtype `x`; `lanes` channels make a vector, `weights` is the type of the weights.

    A tile has `down.places` lines of `along.places` windows; of the lines of a map, `rest` are left over. The columns
    of a tile from the first up to the last (excluded) of `sure` are no padding wherever the tile is.
    """

    x: str
    weights: Type
    lanes: int
    down: Along
    along: Along
    rest: int
    sure: tuple[int, int]
    finish: Finish

    def argument_names(self) -> tuple[str, ...]:
        """The words of the kernel's arguments.

        Addresses and byte strides; items, items of a chunk; lines of windows in a band, bands of a strip, strips of a
        map; blocks of channels, channels of a block and in all; along lines (h) and places (w) the size, how many
        windows there are, and where the first begins. The weights lie as [vectors, taps, lanes].
        """
        own = ("items", "per_chunk", "band", "bands", "strips", "blocks", "block", "channels")
        windows = ("size_h", "size_w", "out_h", "out_w", "begin_h", "begin_w")
        return ("x", "x_n", "x_h", "x_w", "weights", *own, *windows, *self.finish.names())


def emit_window_tiles(target: Target, spec: TileSpec) -> str:
    """The module of a kernel; its arguments are those that the specification names."""
    k, words = kernel_frame(target)
    a = Arguments(words, spec.argument_names())
    writer = _Writer(k, a, spec)
    begin, end = share(k, a["items"], a["per_chunk"])
    with k.loop(begin, end) as item:
        writer.item(item)
    return k.finish()


class _Writer:
    """Writes the code of an item."""

    def __init__(self, k: Function, a: Arguments, spec: TileSpec) -> None:
        self.k, self.a, self.spec = k, a, spec
        self.storage = storage_of(spec.x)
        self.working = working_type(np.dtype(spec.x)).vector(spec.lanes)
        self.finishing = Finishing(k, a, spec.finish, spec.lanes)
        self.has_masks = k.target.has_masks and spec.lanes > 1

    def item(self, item: Value) -> None:
        k, a, spec = self.k, self.a, self.spec
        above, band = _divided(item, a["bands"])
        above, strip = _divided(above, a["strips"])
        batch, block = _divided(above, a["blocks"])
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
            sums = self._sums(start.offset(channel), lines, top, asked, channel)
            for number, windows in enumerate(sums):
                self.finishing.start_row(Spot(batch, k.constant(I64, 0), k.constant(I64, 0), line + number))
                self.finishing.store([[value] for value in windows], place, channel)

    def _sums(
        self, start: Pointer, lines: int, top: Value, asked: dict[int, Value], channel: Value
    ) -> list[list[Value]]:
        """The sums of a tile, by lines; `start` is the first tap of the first window."""
        k, a, spec, along = self.k, self.a, self.spec, self.spec.along
        down = Along(lines, spec.down.taps, spec.down.stride, spec.down.dilation)
        zero = k.constant(self.working, 0)
        sums = [[k.variable(self.working, zero) for _ in range(along.places)] for _ in range(lines)]
        filters = self._filters(channel)
        line, above = start, 0
        for number in down.columns:
            if number != above:
                line, above = Pointer(k.advance(line.address, a["x_h"] * (number - above), 1), start.scalar), number
            with k.when(within(k, top + number, a["size_h"])):
                readers = [(window, self._row(filters, tap)) for window, tap in down.readers(number)]
                at, before = Pointer(k.opaque(line.address), start.scalar), 0
                for offset in along.columns:
                    if offset != before:
                        at, before = Pointer(k.advance(at.address, a["x_w"] * (offset - before), 1), at.scalar), offset
                    k.keep_order()
                    with self._column(at, asked.get(offset)) as element:
                        for window, weights in readers:
                            for index, tap in along.readers(offset):
                                total = sums[window][index]
                                total.set(k.fma(element, weights[tap], total.get()))
        return [[total.get() for total in windows] for windows in sums]

    def _filters(self, channel: Value) -> Pointer:
        """The first weights of the filters of a vector of channels."""
        spec, lanes = self.spec, self.spec.lanes
        vector = (channel + (lanes - 1)) // lanes
        start = self.k.pointer(self.a["weights"], memory_type(spec.weights))
        return start.offset(vector * (spec.down.taps * spec.along.taps * lanes))

    def _row(self, filters: Pointer, tap: int) -> list[Value]:
        """The weights of a line of taps."""
        spec, lanes, across = self.spec, self.spec.lanes, self.spec.along.taps
        places = [filters.offset((tap * across + at) * lanes) for at in range(across)]
        return [as_loaded(place.load(0, lanes), spec.weights).to(self.working.scalar) for place in places]

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


def _divided(number: Value, size: Value) -> tuple[Value, Value]:
    """Quotient and remainder."""
    quotient = number // size
    return quotient, number - quotient * size
