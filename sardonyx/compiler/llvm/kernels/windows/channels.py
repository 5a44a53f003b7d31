"""Windows over tensors whose channels lie together: a vector holds channels of one place.

An item is a row of places of one block of channels. A tile of neighbouring places is computed at once, so that a
column of the input is read once for all windows that it belongs to. Nothing is padded: taps outside along the slower
dimensions are left out of the loops, and the tiles that meet the border along the last one ask for the outer columns
whether they are there. The last tile of a row is moved back to end with it, as is the last vector of the channels, so
there are no partial ones: what they compute twice is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.expression import working_type
from sardonyx.compiler.llvm.kernels.rows.row_access import as_loaded, memory_type
from sardonyx.compiler.llvm.kernels.windows.finish import Finish, Finishing
from sardonyx.compiler.llvm.kernels.windows.folds import (
    Columns,
    Combine,
    Combining,
    Correlate,
    Fold,
    Folding,
    Locate,
    Row,
    folding,
    may_watch,
)
from sardonyx.compiler.llvm.kernels.windows.frame import Along, Arguments, Spot, Taps, spot_of, window_names, within
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, dtype_type
from sardonyx.compiler.llvm.walk import kernel_frame, share
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class ChannelSpec:
    """Windows over elements of the dtype `x`; `lanes` channels make a vector.

    `in_turns` says that a window has more taps along the last dimension than are written out. The columns of a tile
    from the first up to the last (excluded) of `sure` are no padding wherever the tile is.
    """

    x: str
    lanes: int
    along: Along
    fold: Fold
    finish: Finish
    in_turns: bool = False
    sure: tuple[int, int] = (0, 0)

    def argument_names(self) -> tuple[str, ...]:
        """The words of the kernel's arguments.

        Addresses and byte strides; items, items of a chunk; blocks of channels, channels of a block and in all; the
        windows, whose `kernel_w` counts turns; for `Correlate` the address of the weights; for `Locate` how elements
        of a map are numbered, and how many there are.
        """
        more: tuple[str, ...] = ()
        if isinstance(self.fold, Correlate):
            more = ("weights",)
        elif isinstance(self.fold, Locate):
            more = ("number_d", "number_h", "number_w", "map")
        own = ("items", "per_chunk", "blocks", "block", "channels")
        return ("x", "x_n", "x_d", "x_h", "x_w", *own, *window_names(), *more, *self.finish.names())


def emit_channel_windows(target: Target, spec: ChannelSpec) -> str:
    """The module of a kernel; its arguments are those that the specification names."""
    k, words = kernel_frame(target)
    a = Arguments(words, spec.argument_names())
    writer = _Writer(k, a, spec)
    begin, end = share(k, a["items"], a["per_chunk"])
    with k.loop(begin, end) as item:
        writer.item(spot_of(item, a))
    return k.finish()


class _Writer:
    """Writes the code of an item."""

    def __init__(self, k: Function, a: Arguments, spec: ChannelSpec) -> None:
        self.k, self.a, self.spec = k, a, spec
        self.storage = dtype_type(spec.x)
        self.working = working_type(np.dtype(spec.x))
        self.finishing = Finishing(k, a, spec.finish, spec.lanes)
        fold = spec.fold
        self.channels_read, self.filters = (fold.channels, fold.filters) if isinstance(fold, Correlate) else (1, 1)

    def item(self, spot: Spot) -> None:
        k, a, along = self.k, self.a, self.spec.along
        taps = Taps(k, a, spot)
        plane = k.advance(k.pointer(a["x"], self.storage).address, spot.batch * a["x_n"], 1)
        self.finishing.start_row(spot)
        first = spot.block * a["block"]
        last = k.smaller(a["channels"], first + a["block"])
        reach = along.columns[-1] + 1 + (a["kernel_w"] - 1) * (along.taps * along.dilation)
        with k.loop(0, a["out_w"], along.places) as turn:
            place = k.smaller(turn, a["out_w"] - along.places)
            column = place * along.stride - a["begin_w"]
            inside = (column >= 0) & (column + reach <= a["size_w"])
            for block, guarded in ((k.when(inside), False), (k.otherwise(inside), True)):
                with block, k.loop(first, last, self.spec.lanes) as at:
                    channel = k.smaller(at, a["channels"] - self.spec.lanes)
                    self._tile(spot, taps, plane, place, column, channel, guarded)

    def _tile(
        self, spot: Spot, taps: Taps, plane: Value, place: Value, column: Value, channel: Value, guarded: bool
    ) -> None:
        """The windows of a tile of places for one vector of channels."""
        k, spec, along = self.k, self.spec, self.spec.along

        def fill(state: Folding) -> list[list[Value]]:
            self._show(state, taps, plane, column, channel, guarded)
            return state.finish()

        careful = folding(k, spec.fold, along, self.working, spec.lanes, in_turns=spec.in_turns)
        if isinstance(spec.fold, Combine) and may_watch(spec.fold, self.working):
            quick = Combining(k, spec.fold, along, self.working, spec.lanes, in_turns=spec.in_turns, watches=True)
            found = [[k.variable(value.type, value) for value in window] for window in fill(quick)]
            with k.when(quick.met_nan()):
                for variables, window in zip(found, fill(careful), strict=True):
                    for variable, value in zip(variables, window, strict=True):
                        variable.set(value)
            values = [[variable.get() for variable in window] for window in found]
        else:
            values = fill(careful)
        if isinstance(spec.fold, Locate):
            before = self._numbers_before(spot, channel)
            values = [[best, number + before] for best, number in values]
        self.finishing.store(values, place, channel)

    def _show(self, state: Folding, taps: Taps, plane: Value, column: Value, channel: Value, guarded: bool) -> None:
        """Show a fold what the windows of a tile read."""
        k, a, spec, along = self.k, self.a, self.spec, self.spec.along
        group = channel if self.filters == 1 else channel // self.filters
        read = group if self.channels_read == 1 else group * self.channels_read
        start = Pointer(plane, memory_type(self.storage)).offset(read)
        state.begin()
        with self._turns() as turn:
            left = column + turn * (along.taps * along.dilation)
            with taps.each() as (tap_d, tap_h, d, h):
                address = k.advance(start.address, a.counted("x", {"d": d, "h": h, "w": left}), 1)
                line = Pointer(k.opaque(address), start.scalar)  # one address goes from row to row, not one a column

                def columns(
                    line: Pointer = line, left: Value = left
                ) -> Iterator[tuple[int, int, AbstractContextManager[Value]]]:
                    at, before = line, 0
                    for index, offset in enumerate(along.columns):
                        if offset != before:
                            step = a["x_w"] if offset - before == 1 else a["x_w"] * (offset - before)
                            at, before = Pointer(k.advance(at.address, step, 1), at.scalar), offset
                        asks = guarded and not spec.sure[0] <= offset < spec.sure[1]
                        yield index, offset, self._column(at, left + offset if asks else None)

                state.row(self._row(columns, tap_d, tap_h, turn, d, h, left, channel))
            state.settle()

    def _turns(self) -> AbstractContextManager[Value]:
        if self.spec.in_turns:
            return self.k.loop(0, self.a["kernel_w"])
        return nullcontext(self.k.constant(I64, 0))

    @contextmanager
    def _column(self, at: Pointer, coordinate: Value | None) -> Iterator[Value]:
        """The elements of a column, where it is no padding."""
        k = self.k
        count = self.spec.lanes // self.filters * self.channels_read
        guard = nullcontext() if coordinate is None else k.when(within(k, coordinate, self.a["size_w"]))
        with guard:
            yield as_loaded(at.load(0, count), self.storage)

    def _row(
        self, columns: Columns, tap_d: Value, tap_h: Value, turn: Value, d: Value, h: Value, left: Value, channel: Value
    ) -> Row:
        a, fold = self.a, self.spec.fold
        if isinstance(fold, Correlate):
            lanes, taps = self.spec.lanes, self.spec.along.taps * fold.channels
            vector = (channel + (lanes - 1)) // lanes
            rows = ((vector * a["kernel_d"] + tap_d) * a["kernel_h"] + tap_h) * a["kernel_w"] + turn
            return Row(columns, weights=self.k.pointer(a["weights"], fold.weights).offset(rows * (taps * lanes)))
        if isinstance(fold, Locate):
            number = d * a["number_d"] + h * a["number_h"] + left * a["number_w"]
            return Row(columns, number=number, step=a["number_w"])
        return Row(columns)

    def _numbers_before(self, spot: Spot, channel: Value) -> Value:
        """How many elements of the whole tensor come before the maps of a vector of channels."""
        k, lanes = self.k, self.spec.lanes
        maps = k.splat(spot.batch * self.a["channels"] + channel, lanes)
        if lanes > 1:
            maps = maps + k.iota(I64, lanes)
        return maps * self.a["map"]
