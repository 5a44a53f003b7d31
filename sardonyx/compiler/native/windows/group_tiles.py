"""Convolutions in groups of few channels while binding: their vectors, the tile, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.llvm.emitters import emitter
from sardonyx.compiler.llvm.kernels.windows.folds import Correlate
from sardonyx.compiler.llvm.kernels.windows.frame import Along
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.native.windows.channel_windows import with_room
from sardonyx.compiler.native.windows.window_call import Slide, WindowCall
from sardonyx.compiler.native.windows.window_tiles import Tiles, add_tiles
from sardonyx.ops.windows import Windows

emit_group_tiles = emitter("windows.group_tiles", "emit_group_tiles")

# The taps of a kernel are all written out: so many of them at most, and so often for the channels of a vector.
_MOST_TAPS, _MOST_WRITTEN = 25, 100
# Lines and places of a tile at most.
_MOST_LINES, _MOST_PLACES = 4, 16
# Registers beside sums and weights: what is spread, and a permutation.
_OTHER_REGISTERS = 3
# What it takes to permute a channel in a column, to repeat it or to read a vector of weights, in products of a vector;
# and what a tile takes besides.
_PERMUTED, _READ, _TILE = 0.5, 0.25, 20.0
# Sums of which one waits for another no longer.
_SUMS_ABREAST = 8
# The share of the nearest cache for the weights of a block and what a tile reads, and that of the second one for the
# weights of a vector.
_SHARE_OF_L1, _SHARE_OF_L2 = 0.8, 0.25
# Places this many bytes apart, or a multiple, share a set of the nearest cache, which has so many ways; input of such
# places is copied with room between them where a line of a tile has many more columns.
_CONFLICT, _WAYS = 4096, 8


def group_lanes(fold: Correlate, most: int) -> int:
    """Filters of a vector, of which a register holds `most`: whole groups, or of two groups at most."""
    reads = fold.channels * most // fold.filters
    if fold.filters >= most or (most % fold.filters == 0 and _is_power_of_two(fold.channels) and reads <= most):
        return most
    return 1 << (fold.filters.bit_length() - 1)


def groups_fit(target: Target, fold: Correlate, windows: Windows, lanes: int) -> bool:
    """Whether windows are computed in tiles: over two dimensions, with few taps, whose weights stay near."""
    slide, taps = Slide.of(windows), math.prod(windows.kernel)
    written = taps * (fold.channels if fold.filters < lanes else 1)
    if fold.channels == fold.filters == 1 or not slide.is_flat or taps > _MOST_TAPS or written > _MOST_WRITTEN:
        return False
    return taps * fold.channels * target.vector_bits // 8 <= _SHARE_OF_L2 * target.caches.l2


def products_of(target: Target, fold: Correlate, windows: Windows, filters: int, lanes: int) -> float:
    """What the windows of all filters over a map cost, in products of vectors."""
    cost, _, _ = _best(target, fold, Slide.of(windows), lanes)
    return cost * fold.channels * -(-filters // lanes)


def bind_group_tiles(binder: Binder, call: WindowCall, lanes: int) -> None:
    """Add the step for windows that fit; the channels of the input and of the results lie together."""
    target, slide, fold = binder.target, Slide.of(call.windows), call.fold
    assert isinstance(fold, Correlate)
    _, down, along = _best(target, fold, slide, lanes)
    item = call.x.dtype.itemsize
    if call.x.strides[-2] * item % _CONFLICT == 0 and len(along.columns) > _WAYS + along.taps:
        call = with_room(binder, call)
    filters = call.results[0].shape[-1]
    read = len(down.columns) * len(along.columns) * lanes * item
    weights = down.taps * along.taps * fold.channels * target.vector_bits // 8
    vectors = max(1, int(_SHARE_OF_L1 * target.caches.l1) // (read + weights))
    count = -(-filters // (vectors * lanes))
    block = -(-filters // (count * lanes)) * lanes
    add_tiles(binder, call, emit_group_tiles, Tiles(lanes, down, along, block, "groups in tiles"))


def _best(target: Target, fold: Correlate, slide: Slide, lanes: int) -> tuple[float, Along, Along]:
    """The tile that costs least, and what a map costs by it for one channel of a group."""
    return min(_tiles(target, fold, slide, lanes), key=lambda one: one[0])


def _tiles(target: Target, fold: Correlate, slide: Slide, lanes: int) -> Iterator[tuple[float, Along, Along]]:
    """Tiles whose sums and weights registers hold, each with what a map costs for one channel of a group."""
    _, lines, places = slide.output
    _, of_lines, of_places = zip(slide.kernel, slide.stride, slide.dilation, strict=True)
    inside, spread = _inside(slide), _PERMUTED if fold.filters < lanes else _READ
    for high in range(1, max(1, min(_MOST_LINES, lines)) + 1):
        down = Along(high, *of_lines)
        met = [len(down.readers(number)) for number in down.columns]
        for wide in range(1, max(1, min(_MOST_PLACES, places)) + 1):
            along = Along(wide, *of_places)
            if high * wide + max(met) * along.taps + _OTHER_REGISTERS > target.registers and (high, wide) != (1, 1):
                break
            products = high * wide * down.taps * along.taps
            cost = products * max(1.0, _SUMS_ABREAST / (high * wide))
            cost += spread * len(met) * len(along.columns) + _READ * sum(met) * along.taps
            cost = cost * inside + _TILE / fold.channels
            yield cost * (lines / high) * -(-places // wide), down, along


def _inside(slide: Slide) -> float:
    """The share of the taps down that are no padding."""
    axis = slide.dimensions[1]
    if axis is None:
        return 1.0
    counts = slide.windows.counts(include_padding=False)[axis]
    return float(counts.mean()) / slide.kernel[1] if counts.size and slide.kernel[1] else 1.0


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
