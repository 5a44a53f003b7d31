"""Pools with a stride of 2 over maps whose rows lie together: a vector holds neighbouring windows.

Nothing is laid out. Rows are combined where they lie, in pairs of vectors: the even elements of a pair are one tap of
all windows of a vector, the odd ones the next tap. Pairs that reach over the ends of a row are read by masks, so this
is for targets that have them. An item is a band of lines of one map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.expression import emit_working, working_type
from sardonyx.compiler.llvm.kernels.movement.walk import kernel_frame, share
from sardonyx.compiler.llvm.kernels.rows.reducing import combined, neutral
from sardonyx.compiler.llvm.kernels.rows.row_access import as_loaded, memory_type
from sardonyx.compiler.llvm.kernels.windows.finish import Finish, Finishing, storage_of
from sardonyx.compiler.llvm.kernels.windows.folds import Combine, may_watch
from sardonyx.compiler.llvm.kernels.windows.frame import Along, Arguments, Spot, within
from sardonyx.compiler.llvm.mathematics import any_lane
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I32, I64, Type
from sardonyx.compiler.llvm.values import Variable

STRIDE = 2
_U32 = Type("u", 32)


@dataclass(frozen=True)
class RowPairSpec:
    """Windows over elements of the dtype `x`; `lanes` of them make a vector. `taps` are those along a row."""

    x: str
    lanes: int
    down: Along
    taps: int
    fold: Combine
    finish: Finish

    @property
    def pairs(self) -> int:
        """Pairs of vectors that a vector of windows reads of a row."""
        return -(-self.taps // STRIDE)

    @property
    def span(self) -> int:
        """Elements that these reach over."""
        return STRIDE * (self.lanes + self.pairs - 1)

    def argument_names(self) -> tuple[str, ...]:
        """The words of the kernel's arguments.

        Address and byte strides, that of maps called `x_c`; items, items of a chunk; maps; lines of windows in a band,
        and bands; along lines (h) and places (w) the size, how many windows there are, and where the first begins.
        """
        own = ("items", "per_chunk", "maps", "band", "bands")
        windows = ("size_h", "size_w", "out_h", "out_w", "begin_h", "begin_w")
        return ("x", "x_n", "x_c", "x_h", *own, *windows, *self.finish.names())


def emit_row_pairs(target: Target, spec: RowPairSpec) -> str:
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

    def __init__(self, k: Function, a: Arguments, spec: RowPairSpec) -> None:
        self.k, self.a, self.spec = k, a, spec
        self.storage = storage_of(spec.x)
        self.working = working_type(np.dtype(spec.x)).vector(spec.lanes)
        self.neutral = neutral(k, spec.fold.kind, self.working)
        self.finishing = Finishing(k, a, spec.finish, spec.lanes)
        watches = STRIDE * spec.pairs if may_watch(spec.fold, self.working.scalar) else 0
        self.watches = [k.variable(self.working) for _ in range(watches)]  # see `Combining`

    def item(self, item: Value) -> None:
        k, a = self.k, self.a
        above = item // a["bands"]
        first = (item - above * a["bands"]) * a["band"]
        last = k.smaller(first + a["band"], a["out_h"])
        batch = above // a["maps"]
        spot = Spot(batch, above - batch * a["maps"], k.constant(I64, 0), first)
        if not self.watches:
            self._lines(spot, last, careful=True)
            return
        for watch in self.watches:
            watch.set(k.constant(self.working, 0))
        self._lines(spot, last, careful=False)
        total = self.watches[0].get()
        for watch in self.watches[1:]:
            total = total + watch.get()
        with k.when(any_lane(k, total.differs(total))):
            self._lines(spot, last, careful=True)

    def _lines(self, spot: Spot, last: Value, *, careful: bool) -> None:
        """The lines of windows from that of the spot up to the last (excluded)."""
        k, a, spec = self.k, self.a, self.spec
        address = k.advance(k.pointer(a["x"], self.storage).address, spot.batch * a["x_n"] + spot.block * a["x_c"], 1)
        with k.loop(spot.h, last) as h:
            self.finishing.start_row(Spot(spot.batch, spot.block, spot.d, h))
            top = h * spec.down.stride - a["begin_h"]
            line = Pointer(k.advance(address, top * a["x_h"], 1), memory_type(self.storage))
            with k.loop(0, a["out_w"], spec.lanes) as turn:
                place = k.smaller(turn, a["out_w"] - spec.lanes)
                column = place * STRIDE - a["begin_w"]
                inside = (column >= 0) & (column + spec.span <= a["size_w"])
                values = [k.variable(self.working) for _ in range(STRIDE * spec.pairs)]
                for block, masked in ((k.when(inside), False), (k.otherwise(inside), True)):
                    with block:
                        self._down(values, line, top, column, masked=masked, careful=careful)
                found = self._along([value.get() for value in values], careful=careful)
                self.finishing.store([[found]], spot.block, place, along_lanes=True)

    def _down(
        self, values: Sequence[Variable], line: Pointer, top: Value, column: Value, *, masked: bool, careful: bool
    ) -> None:
        """Combine the rows that a vector of windows reads: the halves of its pairs, from a column on."""
        k, a, lanes = self.k, self.a, self.spec.lanes
        starts = [STRIDE * (half // 2) + lanes * (half % 2) for half in range(len(values))]
        masks = [self._inside(column + start) if masked else None for start in starts]
        for value in values:
            value.set(self.neutral)
        row, above = line, 0
        for number in self.spec.down.columns:
            if number != above:
                row, above = Pointer(k.advance(row.address, a["x_h"] * (number - above), 1), row.scalar), number
            with k.when(within(k, top + number, a["size_h"])):
                for half, (value, start, mask) in enumerate(zip(values, starts, masks, strict=True)):
                    loaded = as_loaded(row.load(column + start, lanes, mask), self.storage)
                    (element,) = emit_working(k, self.spec.fold.element.roots, [loaded])
                    if mask is not None:
                        element = k.select(mask, element, self.neutral)
                    value.set(self._combined(value.get(), element, careful=careful))
                    if not careful:
                        watch = self.watches[half]
                        watch.set(watch.get() + element)

    def _inside(self, start: Value) -> Value:
        """Which lanes of a vector of a row are no padding."""
        k, lanes = self.k, self.spec.lanes
        columns = k.iota(I32, lanes) + k.splat(start.to(I32), lanes)
        return columns.bits_as(_U32) < k.splat(self.a["size_w"].to(_U32), lanes)

    def _along(self, halves: Sequence[Value], *, careful: bool) -> Value:
        """Combine the taps of windows, which are every second element of a pair."""
        lanes, total = self.spec.lanes, self.neutral
        for tap in range(self.spec.taps):
            low, high = halves[tap - tap % STRIDE], halves[tap - tap % STRIDE + 1]
            part = self.k.shuffle(low, high, [STRIDE * lane + tap % STRIDE for lane in range(lanes)])
            total = self._combined(total, part, careful=careful) if tap else part
        return total

    def _combined(self, left: Value, right: Value, *, careful: bool) -> Value:
        k, kind = self.k, self.spec.fold.kind
        if careful:
            return combined(k, kind, left, right)
        return (k.faster_larger if kind == "maximum" else k.faster_smaller)(left, right)
