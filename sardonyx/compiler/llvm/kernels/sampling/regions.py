"""Pooling of regions of interest: RoiAlign and MaxRoiPool. Vectors go over the channels of a place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.sampling.elements import Elements, blocked_loop, working_type
from sardonyx.compiler.llvm.mathematics.elements import absolute, copy_sign
from sardonyx.compiler.llvm.mathematics.rounding import ceil, floor
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F64, I64, U8, U64, Type
from sardonyx.compiler.llvm.walk import kernel_frame, note, share
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.regions import MOST_SAMPLES

# Registers of channels that are computed at once.
UNROLL = 4


@dataclass(frozen=True)
class AlignSpec:
    """Elements of `type`, corners of `regions`, indices of `index` bits; samples are averaged, or their maximum taken.

    With `half_pixel`, coordinates are those of the centres of pixels; without, regions are at least one pixel large.
    """

    type: Type
    regions: Type
    index: int
    maximum: bool
    half_pixel: bool


@dataclass(frozen=True)
class Bin:
    """A bin: its region, its row and column there, the map of the region's item, and where its channels go."""

    region: Value
    row: Value
    column: Value
    map: Elements
    to: Elements


class Maps:
    """The first words of kernels over regions: maps, regions, output, fault; bins, bins per chunk; rows and columns of
    the bins of a region; items of the batch, height, width, channels; elements between items, rows and columns of the
    maps.
    """

    def __init__(self, k: Function, words: Pointer, type_: Type, regions: Type) -> None:
        self.k, working = k, working_type(type_)
        self.maps = Elements(k.pointer(words.load(0), U8), type_, working)
        self.regions = Elements(k.pointer(words.load(1), U8), regions, F64)
        self.output = Elements(k.pointer(words.load(2), U8), type_, working)
        self.fault = k.pointer(words.load(3), U8)
        self.bins, self.per_chunk, self.rows, self.columns = (words.load(at) for at in range(4, 8))
        self.items, self.height, self.width, self.channels = (words.load(at) for at in range(8, 12))
        self.item_step, self.row_step, self.column_step = (words.load(at) for at in range(12, 15))

    @contextmanager
    def each_bin(self, item_of: Callable[[Value], Value]) -> Iterator[Bin]:
        """The bins of this call's chunks, where `item_of` gives the item of a region: an index of the batch.

        One that names no item is noted as a fault, and its bins are left out.
        """
        k = self.k
        with k.loop(*share(k, self.bins, self.per_chunk)) as number:
            above = number // self.columns
            region = above // self.rows
            item = item_of(region)
            good = item.to(U64) < self.items.to(U64)
            with k.otherwise(good):
                note(k, self.fault, item)
            with k.when(good):
                place = region, above - region * self.rows, number - above * self.columns
                map_, to = self.maps.offset(item * self.item_step), self.output.offset(number * self.channels)
                yield Bin(*place, map_, to)


def emit_roi_align(target: Target, spec: AlignSpec) -> str:
    """The bins of regions, [regions, rows, columns, channels].

    Arguments: the words of `Maps`, the indices of the items, samples along a bin (0: as many as the bin is long),
    and the scale of regions (F64). An index that names no item is noted as a fault, and its bins left out.
    """
    k, words = kernel_frame(target)
    known = Maps(k, words, spec.type, spec.regions)
    indices = k.pointer(words.load(15), Type("i", spec.index))
    samples, scale = words.load(16), words.load(17).bits_as(F64)
    with known.each_bin(lambda region: indices.load(region).to(I64)) as one:
        corners = known.regions.offset(one.region * 4)
        offset = 0.5 if spec.half_pixel else 0.0
        left, top, right, bottom = (corners.load(at) * scale - offset for at in range(4))
        down = _Samples(k, spec, top, bottom, one.row, known.rows, samples, known.height)
        across = _Samples(k, spec, left, right, one.column, known.columns, samples, known.width)
        _pool(k, spec, known, (down, across), one.map, one.to)
    return k.finish()


class _Samples:
    """The samples of one bin along one axis: how many there are, and the neighbours of each."""

    def __init__(
        self,
        k: Function,
        spec: AlignSpec,
        start: Value,
        end: Value,
        place: Value,
        bins: Value,
        samples: Value,
        length: Value,
    ) -> None:
        self._k = k
        extent = end - start
        if not spec.half_pixel:
            extent = k.larger(extent, 1.0)
        self._size = extent / bins.to(F64)
        self._first = start + place.to(F64) * self._size
        long = k.select(self._size > 0.0, self._size, k.constant(F64, 0.0))  # 0 for NaN, too
        long = k.select(long < float(MOST_SAMPLES), long, k.constant(F64, float(MOST_SAMPLES)))
        self.count = k.select(samples > 0, samples, ceil(k, long).to(I64))
        self._last = length - 1

    def neighbours(self, sample: Value) -> list[tuple[Value, Value]]:
        """The positions before and behind a sample, and their weights."""
        k = self._k
        place = self._first + (sample.to(F64) + 0.5) / self.count.to(F64) * self._size
        inside = (place >= -1.0) & (place <= (self._last + 1).to(F64))
        place = k.smaller(k.faster_larger(place, 0.0), (self._last + 1).to(F64))  # regions may lie anywhere
        low = k.smaller(place.to(I64), self._last)
        fraction = k.select(low >= self._last, k.constant(F64, 0.0), place - low.to(F64))
        zero = k.constant(F64, 0.0)
        behind = k.smaller(low + 1, self._last)
        return [(low, k.select(inside, 1.0 - fraction, zero)), (behind, k.select(inside, fraction, zero))]


def _pool(
    k: Function, spec: AlignSpec, known: Maps, axes: tuple[_Samples, _Samples], map_: Elements, to: Elements
) -> None:
    """All channels of a bin; 0 where it has no samples."""
    down, across = axes
    working = working_type(spec.type)
    count = down.count * across.count
    share_of_each = k.select(count > 0, 1.0 / count.to(F64), k.constant(F64, 0.0)).to(working)

    def body(at: Value, vectors: int, lanes: int, mask: Value | None) -> None:
        wide = working.vector(lanes)
        start = k.select(count > 0, k.constant(working, float("-inf")), k.constant(working, 0.0))
        totals = [k.variable(wide, k.splat(start, lanes) if spec.maximum else 0) for _ in range(vectors)]
        with k.loop(0, down.count) as y:
            rows = down.neighbours(y)
            with k.loop(0, across.count) as x:
                for row, row_weight in rows:
                    for column, column_weight in across.neighbours(x):
                        place = map_.offset(row * known.row_step + column * known.column_step + at)
                        weight = k.splat((row_weight * column_weight).to(working), lanes)
                        for index, total in enumerate(totals):
                            value = place.load(index * lanes, lanes, mask)
                            if spec.maximum:
                                total.set(k.larger(total.get(), value * weight))
                            else:
                                total.set(k.fma(value, weight, total.get()))
        for index, total in enumerate(totals):
            value = total.get() if spec.maximum else total.get() * share_of_each
            to.store(value, at + index * lanes, mask)

    blocked_loop(k, known.channels, k.target.lanes(working), UNROLL, body)


@dataclass(frozen=True)
class RegionMaximumSpec:
    """Elements of `type`; regions (item, left, top, right, bottom) are of that type, too."""

    type: Type


def emit_region_maximum(target: Target, spec: RegionMaximumSpec) -> str:
    """The maximum of each bin of each region, [regions, rows, columns, channels]; 0 where a bin is empty.

    Arguments: the words of `Maps`, and the scale of regions (F64). An item that there is not is noted as a fault.
    """
    k, words = kernel_frame(target)
    known = Maps(k, words, spec.type, spec.type)
    scale = words.load(15).bits_as(F64)
    working = working_type(spec.type)
    with known.each_bin(lambda region: known.regions.load(region * 5).to(I64)) as one:
        corners = known.regions.offset(one.region * 5)
        left, top, right, bottom = (_rounded(k, corners.load(at) * scale) for at in range(1, 5))
        rows = _bounds(k, top, bottom, one.row, known.rows, known.height)
        columns = _bounds(k, left, right, one.column, known.columns, known.width)
        is_empty = (rows[0] >= rows[1]) | (columns[0] >= columns[1])
        start = k.select(is_empty, k.constant(working, 0.0), k.constant(working, float("-inf")))

        def body(
            at: Value,
            vectors: int,
            lanes: int,
            mask: Value | None,
            map_: Elements = one.map,
            to: Elements = one.to,
            rows: tuple[Value, Value] = rows,
            columns: tuple[Value, Value] = columns,
            start: Value = start,
        ) -> None:
            best = [k.variable(working.vector(lanes), k.splat(start, lanes)) for _ in range(vectors)]
            with k.loop(*rows) as y, k.loop(*columns) as x:
                place = map_.offset(y * known.row_step + x * known.column_step + at)
                for index, value in enumerate(best):
                    value.set(k.larger(value.get(), place.load(index * lanes, lanes, mask)))
            for index, value in enumerate(best):
                to.store(value.get(), at + index * lanes, mask)

        blocked_loop(k, known.channels, target.lanes(working), UNROLL, body)
    return k.finish()


def _rounded(k: Function, x: Value) -> Value:
    """The nearest whole number, halves away from zero."""
    return copy_sign(k, floor(k, absolute(k, x) + 0.5), x)


def _bounds(k: Function, start: Value, end: Value, place: Value, bins: Value, length: Value) -> tuple[Value, Value]:
    """The first and the last position (excluded) of a bin along one axis."""
    size = k.larger(end - start + 1.0, 1.0) / bins.to(F64)
    first = (floor(k, place.to(F64) * size) + start).to(I64)
    last = (ceil(k, (place + 1).to(F64) * size) + start).to(I64)
    return k.smaller(k.larger(first, 0), length), k.smaller(k.larger(last, 0), length)
