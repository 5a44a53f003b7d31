"""Windows over tensors whose last dimension lies together: a vector holds neighbouring windows.

An item is some rows of places of one map, or a piece of them. What their windows read is laid out in the thread's own
memory first: with the padding in place, and in as many parts as the stride has steps, so that neighbouring windows
read neighbouring elements at every tap. Combinations that go over rows and columns alike are made over the rows while
they are laid out. All rows of an item are laid out before any is read, so that what is read has left the store queue.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.expression import emit_working, working_type
from sardonyx.compiler.llvm.kernels.rows.reducing import combined, neutral
from sardonyx.compiler.llvm.kernels.rows.row_access import as_loaded, memory_type
from sardonyx.compiler.llvm.kernels.windows.finish import Finish, Finishing
from sardonyx.compiler.llvm.kernels.windows.folds import Combine, Correlate
from sardonyx.compiler.llvm.kernels.windows.frame import Arguments, Spot, Taps, window_names, within
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, dtype_type
from sardonyx.compiler.llvm.walk import kernel_frame, share
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class RowSpec:
    """Windows over elements of the dtype `x`, `stride` apart along the last dimension.

    `lanes` windows make a vector, `vectors` of them (a power of two) are computed at once.
    """

    x: str
    lanes: int
    vectors: int
    stride: int
    fold: Combine | Correlate
    finish: Finish

    def argument_names(self) -> tuple[str, ...]:
        """The words of the kernel's arguments.

        Addresses and byte strides, those of maps called `x_c` and, in the result, steps; items, items of a chunk;
        maps; rows of places of an item, and blocks of them; places of an item's rows, and pieces of a row; rows of
        the input that an item reads along `h`, elements of a part of one; the windows; for `Correlate` the weights,
        which lie as [maps, taps], and how many belong to a map.
        """
        own = ("items", "per_chunk", "maps", "rows", "blocks", "piece", "pieces", "span", "part", "dilation_w")
        more = ("weights", "of_map") if isinstance(self.fold, Correlate) else ()
        return ("x", "x_n", "x_c", "x_d", "x_h", *own, *window_names(), *more, *self.finish.names())


def emit_row_windows(target: Target, spec: RowSpec) -> str:
    """The module of a kernel; its arguments are those that the specification names."""
    k, words = kernel_frame(target)
    a = Arguments(words, spec.argument_names())
    writer = _Sums(k, a, spec) if isinstance(spec.fold, Correlate) else _Combinations(k, a, spec)
    begin, end = share(k, a["items"], a["per_chunk"])
    with k.loop(begin, end) as item:
        above = item // a["pieces"]
        place = k.smaller((item - above * a["pieces"]) * a["piece"], a["out_w"] - a["piece"])
        higher = above // a["blocks"]
        h = k.smaller((above - higher * a["blocks"]) * a["rows"], a["out_h"] - a["rows"])
        outer = higher // a["out_d"]
        batch = outer // a["maps"]
        writer.item(Spot(batch, outer - batch * a["maps"], higher - outer * a["out_d"], h), place)
    return k.finish()


class _Staging:
    """A thread's own memory, in which a row of the input lies in `stride` parts, with its padding."""

    def __init__(self, k: Function, a: Arguments, spec: RowSpec) -> None:
        self.k, self.a, self.spec = k, a, spec
        self.storage = dtype_type(spec.x)
        self.working = working_type(np.dtype(spec.x))
        self.room = k.pointer("scratch", self.working)

    def at(self, index: Value) -> Value:
        """Where the element with this number, counted with the padding, lies in its row."""
        stride = self.spec.stride
        if stride == 1:
            return index
        number = index // stride
        return (index - number * stride) * self.a["part"] + number

    def range(self, first: Value) -> tuple[Value, Value, Value]:
        """The elements of a row whose first one has the coordinate `first`: where the padding before the data ends,
        where that behind them begins, and their number."""
        k, a = self.k, self.a
        length = (a["piece"] - 1) * self.spec.stride + (a["kernel_w"] - 1) * a["dilation_w"] + 1
        begin = k.smaller(k.larger(-first, 0), length)
        return begin, k.larger(k.smaller(length, a["size_w"] - first), begin), length

    def pad(self, row: Pointer, first: Value, padding: Value) -> None:
        """Lay out the padding of a row whose first element has the coordinate `first`."""
        begin, end, length = self.range(first)
        for low, high in ((self.k.constant(I64, 0), begin), (end, length)):
            with self.k.loop(low, high) as index:
                row.store(padding, self.at(index))

    def fill(self, row: Pointer, first: Value, read: Callable[[Value, int], Value]) -> None:
        """Lay out the data of a row; `read` gives a vector of so many elements from a coordinate on."""
        k, lanes = self.k, self.spec.lanes
        begin, end, _ = self.range(first)
        long = end - begin >= lanes
        with k.when(long), k.loop(begin, end, lanes) as turn:
            index = k.smaller(turn, end - lanes)
            self._spread(row, index, read(first + index, lanes))
        with k.otherwise(long), k.loop(begin, end) as index:
            row.store(read(first + index, 1), self.at(index))

    def _spread(self, row: Pointer, index: Value, vector: Value) -> None:
        """Store neighbouring elements, each to its part."""
        stride, lanes = self.spec.stride, vector.type.lanes
        for offset in range(min(stride, lanes)):
            chosen = range(offset, lanes, stride)
            if stride == 1 or lanes == 1:
                part = vector
            elif len(chosen) == 1:
                part = vector.lane(offset)
            else:
                part = self.k.shuffle(vector, None, chosen)
            row.store(part, self.at(index + offset))

    def tap(self, tap: Value) -> Value:
        """Where the first window's element at a tap lies."""
        return self.at(tap * self.a["dilation_w"])


class _Rows:
    """What both forms of the kernel share."""

    def __init__(self, k: Function, a: Arguments, spec: RowSpec) -> None:
        self.k, self.a, self.spec = k, a, spec
        self.staging = _Staging(k, a, spec)
        self.storage, self.working = self.staging.storage, self.staging.working
        self.finishing = Finishing(k, a, spec.finish, spec.lanes)

    def plane(self, spot: Spot, map_: Value) -> Pointer:
        """The first element of a map of the input."""
        k, a = self.k, self.a
        address = k.advance(k.pointer(a["x"], self.storage).address, spot.batch * a["x_n"] + map_ * a["x_c"], 1)
        return Pointer(address, memory_type(self.storage))

    def line(self, plane: Pointer, d: Value, h: Value) -> Pointer:
        """The row of a map with these coordinates."""
        return Pointer(self.k.advance(plane.address, self.a.counted("x", {"d": d, "h": h}), 1), plane.scalar)

    def windows(self, spot: Spot, place: Value, fold: Callable[[Value, int], list[Value]]) -> None:
        """The places of a row: `fold` gives so many vectors of windows from one on, counted in the piece."""
        k, a, lanes, vectors = self.k, self.a, self.spec.lanes, self.spec.vectors
        self.finishing.start_row(spot)
        start: Value | int = 0
        while vectors > 1:
            width = lanes * vectors
            end = a["piece"] - a["piece"] % width
            with k.loop(start, end, width) as window:
                self._store(fold(window, vectors), spot, place + window)
            start, vectors = end, vectors // 2
        with k.loop(start, a["piece"], lanes) as turn:
            window = k.smaller(turn, a["piece"] - lanes)
            self._store(fold(window, 1), spot, place + window)

    def _store(self, found: list[Value], spot: Spot, place: Value) -> None:
        self.finishing.store([[value] for value in found], spot.block, place, along_lanes=True)


def _below(spot: Spot, rows: Value) -> Spot:
    """So many rows of places further on."""
    return Spot(spot.batch, spot.block, spot.d, spot.h + rows)


class _Combinations(_Rows):
    """Rows are combined while they are laid out, then neighbours in the row."""

    def item(self, spot: Spot, place: Value) -> None:
        k, a, spec, fold = self.k, self.a, self.spec, self.spec.fold
        assert isinstance(fold, Combine)
        row, left = self.spec.stride * a["part"], place * spec.stride - a["begin_w"]
        plane = self.plane(spot, spot.block)
        with k.loop(0, a["rows"]) as above:
            slot = self.staging.room.offset(above * row)
            self.staging.pad(slot, left, neutral(k, fold.kind, self.working))
            self.staging.fill(slot, left, self._over_rows(_below(spot, above), plane))
        with k.loop(0, a["rows"]) as above:
            self.windows(_below(spot, above), place, self._along_row(self.staging.room.offset(above * row)))

    def _over_rows(self, spot: Spot, plane: Pointer) -> Callable[[Value, int], Value]:
        """Reads vectors of the rows that a row of windows takes in, combined."""
        k, fold, taps = self.k, self.spec.fold, Taps(self.k, self.a, spot)
        assert isinstance(fold, Combine)

        def read(coordinate: Value, lanes: int) -> Value:
            kind = self.working.vector(lanes)
            total = k.variable(kind, neutral(k, fold.kind, kind))
            with taps.each() as (_, _, d, h):
                element = as_loaded(self.line(plane, d, h).load(coordinate, lanes), self.storage)
                (value,) = emit_working(k, fold.element.roots, [element])
                total.set(combined(k, fold.kind, total.get(), value))
            return total.get()

        return read

    def _along_row(self, row: Pointer) -> Callable[[Value, int], list[Value]]:
        """Combines what is laid out in a row to windows."""
        k, spec, fold = self.k, self.spec, self.spec.fold
        assert isinstance(fold, Combine)

        def combine(window: Value, vectors: int) -> list[Value]:
            kind = self.working.vector(spec.lanes)
            totals = [k.variable(kind, neutral(k, fold.kind, kind)) for _ in range(vectors)]
            with k.loop(0, self.a["kernel_w"]) as tap:
                at = row.offset(self.staging.tap(tap) + window)
                for index, total in enumerate(totals):
                    total.set(combined(k, fold.kind, total.get(), at.load(index * spec.lanes, spec.lanes)))
            return [total.get() for total in totals]

        return combine


class _Sums(_Rows):
    """Rows are laid out as they are; products with weights, one for each tap of a map, are added up."""

    def item(self, spot: Spot, place: Value) -> None:
        k, a, fold = self.k, self.a, self.spec.fold
        assert isinstance(fold, Correlate)
        plane = self.plane(spot, spot.block if fold.filters == 1 else spot.block // fold.filters)
        first = spot.h * a["stride_h"] - a["begin_h"]
        first_d = spot.d * a["stride_d"] - a["begin_d"]
        row = self.spec.stride * a["part"]
        left = place * self.spec.stride - a["begin_w"]
        with k.loop(0, a["kernel_d"]) as tap_d, k.loop(0, a["span"]) as number:
            d, h = first_d + tap_d * a["dilation_d"], first + number
            with k.when(within(k, d, a["size_d"]) & within(k, h, a["size_h"])):
                line = self.line(plane, d, h)

                def read(coordinate: Value, lanes: int, line: Pointer = line) -> Value:
                    return as_loaded(line.load(coordinate, lanes), self.storage)

                slot = self.staging.room.offset((tap_d * a["span"] + number) * row)
                self.staging.pad(slot, left, k.constant(self.working, 0))
                self.staging.fill(slot, left, read)
        weights = k.pointer(a["weights"], memory_type(fold.weights)).offset(spot.block * a["of_map"])
        with k.loop(0, a["rows"]) as above:
            self._row(_below(spot, above), place, weights, above, row)

    def _row(self, spot: Spot, place: Value, weights: Pointer, above: Value, row: Value) -> None:
        """One row of places, `above` rows below the item's first one; a laid out row has `row` elements."""
        k, a, spec, fold = self.k, self.a, self.spec, self.spec.fold
        assert isinstance(fold, Correlate)
        taps = Taps(k, a, spot)

        def add_up(window: Value, vectors: int) -> list[Value]:
            kind = self.working.vector(spec.lanes)
            sums = [k.variable(kind, k.constant(kind, 0)) for _ in range(vectors)]
            with taps.each() as (tap_d, tap_h, _, _):
                number = above * a["stride_h"] + tap_h * a["dilation_h"]
                slot = self.staging.room.offset((tap_d * a["span"] + number) * row + window)
                first = (tap_d * a["kernel_h"] + tap_h) * a["kernel_w"]
                with k.loop(0, a["kernel_w"]) as tap:
                    weight = as_loaded(weights.load(first + tap), fold.weights).to(self.working)
                    factor = k.splat(weight, spec.lanes)
                    at = slot.offset(self.staging.tap(tap))
                    for index, total in enumerate(sums):
                        total.set(k.fma(at.load(index * spec.lanes, spec.lanes), factor, total.get()))
            return [total.get() for total in sums]

        self.windows(spot, place, add_up)
