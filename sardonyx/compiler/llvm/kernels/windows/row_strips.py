"""Pools over maps whose rows lie together: a vector holds neighbouring places of a line.

Nothing is laid out. An item goes down a strip of a map, a few vectors wide: each line is read once and combined with
those above it while these wait in registers (`running.py`), then neighbours in the line are combined. Ends of lines
are read and written by masks, so this is for targets that have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.expression import emit_working, working_type
from sardonyx.compiler.llvm.kernels.rows.reducing import neutral
from sardonyx.compiler.llvm.kernels.rows.row_access import as_loaded, memory_type
from sardonyx.compiler.llvm.kernels.windows.finish import Finish, Finishing, storage_of
from sardonyx.compiler.llvm.kernels.windows.folds import Combine, Watch, may_watch
from sardonyx.compiler.llvm.kernels.windows.frame import Along, Arguments, Spot, divided, within, written
from sardonyx.compiler.llvm.kernels.windows.running import Neighbours, Running, combination
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I32, I64, Type
from sardonyx.compiler.llvm.values import Variable

_U32 = Type("u", 32)


@dataclass(frozen=True)
class RowStripSpec:
    """Windows over elements of the dtype `x`; `lanes` of them make a vector.

    A strip reads as many vectors of a line as there are in `masked`, which tells those that may have places outside,
    from `lead` places behind its first window's first tap on, and makes `results` vectors. If these do not reach to
    the last tap of its last window, there is nothing but padding beyond them.
    """

    x: str
    lanes: int
    down: Along
    along: Along
    masked: tuple[bool, ...]
    lead: int
    results: int
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
    """Where the next line lies, its number, which of its places there are, and what has been combined so far."""

    line: Variable
    number: Variable
    masks: Sequence[Value | None]
    columns: Sequence[Running]
    careful: bool


class _Writer:
    """Writes the code of an item."""

    def __init__(self, k: Function, a: Arguments, spec: RowStripSpec) -> None:
        self.k, self.a, self.spec = k, a, spec
        self.storage = storage_of(spec.x)
        self.working = working_type(np.dtype(spec.x)).vector(spec.lanes)
        self.neutral = neutral(k, spec.fold.kind, self.working)
        self.finishing = Finishing(k, a, spec.finish, spec.lanes)
        may = may_watch(spec.fold, self.working.scalar)
        self.watch = Watch(k, self.working, len(spec.masked)) if may else None

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
        columns = [Running(k, self.working, spec.down.taps, combine) for _ in spec.masked]
        for one in columns:
            one.begin(self.neutral)
        column = strip.place * spec.along.stride - a["begin_w"] + spec.lead
        masks = [
            self._below(a["size_w"], column + index * spec.lanes) if masked else None
            for index, masked in enumerate(spec.masked)
        ]
        left = spec.results * spec.lanes - spec.lanes
        rest = k.lanes_below(a["strip"] - left, spec.lanes)
        plane = k.advance(k.pointer(a["x"], self.storage).address, strip.batch * a["x_n"] + strip.map * a["x_c"], 1)
        top = strip.first * spec.down.stride - a["begin_h"]
        start = Pointer(k.advance(plane, top * a["x_h"], 1), memory_type(self.storage)).offset(column)
        walk = _Walk(k.variable(start.address.type, start.address), k.variable(I64, top), masks, columns, careful)
        waiting, own = max(0, spec.down.taps - spec.down.stride), min(spec.down.taps, spec.down.stride)
        for _ in range(waiting):
            self._line(walk)
        rows = self.finishing.start_rows(Spot(strip.batch, strip.map, k.constant(I64, 0), strip.first))
        with k.loop(strip.first, strip.last):
            for _ in range(own):
                combinations = self._line(walk)
            if own < spec.down.stride:
                self._move(walk, spec.down.stride - own)
            along = Neighbours(k, combinations, self.neutral, combine, spec.along.stride)
            self.finishing.take_row(rows)
            for index in range(spec.results):
                found = along.windows(spec.along.taps, spec.lead, index)
                mask = rest if index == spec.results - 1 else None
                place = strip.place + index * spec.lanes
                self.finishing.store([[found]], strip.map, place, along_lanes=True, mask=mask)

    def _line(self, walk: _Walk) -> list[Value]:
        """Read a line and go on to the next; the combinations of the windows that it ends, by places."""
        k, a, lanes = self.k, self.a, self.spec.lanes
        read = [k.variable(self.working, self.neutral) for _ in walk.columns]
        line = Pointer(walk.line.get(), memory_type(self.storage))
        with k.when(within(k, walk.number.get(), a["size_h"])):
            for index, (variable, mask) in enumerate(zip(read, walk.masks, strict=True)):
                loaded = as_loaded(line.load(index * lanes, lanes, mask), self.storage)
                (element,) = emit_working(k, self.spec.fold.element.roots, [loaded])
                if mask is not None:
                    element = k.select(mask, element, self.neutral)
                variable.set(element)
                if not walk.careful and self.watch is not None:
                    self.watch.see(index, element)
        self._move(walk, 1)
        return [column.line(variable.get()) for column, variable in zip(walk.columns, read, strict=True)]

    def _move(self, walk: _Walk, lines: int) -> None:
        walk.line.set(self.k.advance(walk.line.get(), self.a["x_h"] * lines, 1))
        walk.number.set(walk.number.get() + lines)

    def _below(self, size: Value, start: Value) -> Value:
        """Which lanes of a vector that begins at a place are no padding."""
        k, lanes = self.k, self.spec.lanes
        places = k.iota(I32, lanes) + k.splat(start.to(I32), lanes)
        return places.bits_as(_U32) < k.splat(size.to(_U32), lanes)
