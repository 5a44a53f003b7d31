"""Pools with the channels together whose windows share lines: a vector holds channels of one place.

An item goes down a strip of the map, a few places wide, for one vector of channels after the other: each line is read
once, windows along it are combined, and these with those above, which wait in registers (`running.py`). Tiles read
each line as often as windows share it; where places lie a power of two apart, not even from the nearest cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.llvm.builder import Pointer, Value
from sardonyx.compiler.llvm.expression import emit_working
from sardonyx.compiler.llvm.kernels.rows.reducing import neutral
from sardonyx.compiler.llvm.kernels.rows.row_access import memory_type
from sardonyx.compiler.llvm.kernels.windows.folds import Combine, Watch, may_watch, windows_along
from sardonyx.compiler.llvm.kernels.windows.frame import Spot, divided, within, written
from sardonyx.compiler.llvm.kernels.windows.running import Combination, Running, combination
from sardonyx.compiler.llvm.kernels.windows.tiles import TileSpec, TileWriter
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64
from sardonyx.compiler.llvm.values import Variable
from sardonyx.light_dataclass import dataclass


def emit_channel_strips(target: Target, spec: TileSpec) -> str:
    """The module of a kernel; its arguments are those that the specification of tiles names, each of one line."""
    return written(target, spec, _Writer)


@dataclass(frozen=True)
class _Strip:
    """A strip: its batch, its lines of windows from the first up to the last (excluded), its first place and where
    that one's first tap lies, the coordinate of the first line read, and for columns that may be padding what tells."""

    batch: Value
    first: Value
    last: Value
    place: Value
    start: Pointer
    top: Value
    asked: dict[int, Value]


@dataclass(frozen=True)
class _Walk:
    """Where the next line lies, its number, what has been combined so far, and how."""

    line: Variable
    number: Variable
    places: Sequence[Running]
    combine: Combination
    watch: Watch | None


class _Writer(TileWriter):
    """Writes the code of an item."""

    def item(self, item: Value) -> None:
        k, a, spec = self.k, self.a, self.spec
        above, band = divided(item, a["bands"])
        above, number = divided(above, a["strips"])
        batch, block = divided(above, a["blocks"])
        channels = block * a["block"], k.smaller(a["channels"], (block + 1) * a["block"])
        place = k.smaller(number * spec.along.places, a["out_w"] - spec.along.places)
        first = band * a["band"]
        last = k.smaller(first + a["band"], a["out_h"])
        top, column = first * spec.down.stride - a["begin_h"], place * spec.along.stride - a["begin_w"]
        address = k.pointer(a["x"], self.storage).address
        address = k.advance(address, a.counted("x", {"n": batch, "h": top, "w": column}), 1)
        start = Pointer(address, memory_type(self.storage))
        asked = {offset: self._asked(column + offset) for offset in self._unsure()}
        strip = _Strip(batch, first, last, place, start, top, asked)
        with k.loop(*channels, spec.lanes) as at:
            self._vector(strip, k.smaller(at, a["channels"] - spec.lanes))

    def _vector(self, strip: _Strip, channel: Value) -> None:
        """The windows of a strip for a vector of channels."""
        if not may_watch(self.spec.fold, self.working.scalar):
            self._lines(strip, channel, None)
            return
        watch = Watch(self.k, self.working)
        watch.over(lambda careful: self._lines(strip, channel, None if careful else watch))

    def _lines(self, strip: _Strip, channel: Value, watch: Watch | None) -> None:
        """The lines of a strip, with care for NaN unless a `watch` sees all elements."""
        k, spec = self.k, self.spec
        assert isinstance(spec.fold, Combine)
        combine = combination(k, spec.fold, careful=watch is None)
        nothing = neutral(k, self._kind, self.working)
        places = [Running(k, self.working, spec.down.taps, combine) for _ in range(spec.along.places)]
        for one in places:
            one.begin(nothing)
        start = strip.start.offset(channel).address
        walk = _Walk(k.variable(start.type, start), k.variable(I64, strip.top), places, combine, watch)
        for _ in range(spec.down.taps - spec.down.stride):
            self._line(strip, walk, nothing)
        rows = self.finishing.start_rows(Spot(strip.batch, k.constant(I64, 0), k.constant(I64, 0), strip.first))
        with k.loop(strip.first, strip.last):
            for _ in range(spec.down.stride):
                windows = self._line(strip, walk, nothing)
            self.finishing.take_row(rows)
            self.finishing.store([[window] for window in windows], strip.place, channel)

    @property
    def _kind(self) -> str:
        assert isinstance(self.spec.fold, Combine)
        return self.spec.fold.kind

    def _line(self, strip: _Strip, walk: _Walk, nothing: Value) -> list[Value]:
        """Read a line and go on to the next; the combinations of the windows that it ends."""
        k, a, along = self.k, self.a, self.spec.along
        found = [k.variable(self.working, nothing) for _ in range(along.places)]
        line = Pointer(walk.line.get(), strip.start.scalar)
        with k.when(within(k, walk.number.get(), a["size_h"])):
            columns = self._columns(strip, walk, line, nothing)
            for variable, value in zip(found, windows_along(along, columns, walk.combine), strict=True):
                variable.set(value)
        walk.line.set(k.advance(line.address, a["x_h"], 1))
        walk.number.set(walk.number.get() + 1)
        return [place.line(variable.get()) for place, variable in zip(walk.places, found, strict=True)]

    def _columns(self, strip: _Strip, walk: _Walk, line: Pointer, nothing: Value) -> list[Value]:
        """The columns of a line; what is padding changes no combination."""
        k, a, fold = self.k, self.a, self.spec.fold
        assert isinstance(fold, Combine)
        columns, at, before = [], line, 0
        for index, offset in enumerate(self.spec.along.columns):
            if offset != before:
                at, before = Pointer(k.advance(at.address, a["x_w"] * (offset - before), 1), at.scalar), offset
            asked = strip.asked.get(offset)
            column = k.variable(self.working, nothing)
            with self._column(at, asked) as element:
                (value,) = emit_working(k, fold.element.roots, [element])
                if asked is not None and self.has_masks:
                    value = k.select(asked, value, nothing)
                column.set(value)
                if walk.watch is not None:
                    walk.watch.see(index, value)
            if self.spec.asks_ahead:
                Pointer(k.advance(at.address, a["x_h"] * self.spec.down.stride, 1), at.scalar).prefetch()
            columns.append(column.get())
        return columns
