"""Convolution in groups, depthwise above all: windows instead of a product.

A vector holds filters. Each of them reads the same channels as its neighbours of the group, so that the vector of a tap
comes from a permutation of neighbouring channels, or is one element in all lanes, and nothing is copied: not the
windows, not the padding. In small windows all taps and several lines of windows share what was permuted
(`group_tiles`). In ONNX's order, where that is how the input lies and few channels would leave vectors empty, a vector
holds neighbouring places of a depthwise convolution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.llvm.kernels.windows.folds import Correlate
from sardonyx.compiler.llvm.kernels.windows.frame import DIMENSIONS
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, F64, Type, type_of
from sardonyx.compiler.native.convolution.algorithm import Algorithm, rates
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.movement.copy import contiguous, copy_into
from sardonyx.compiler.native.movement.slices import part_of, transposed
from sardonyx.compiler.native.windows.channel_windows import bind_channel_windows, lanes_of
from sardonyx.compiler.native.windows.group_tiles import bind_group_tiles, group_lanes, groups_fit, products_of
from sardonyx.compiler.native.windows.operands import in_places
from sardonyx.compiler.native.windows.row_windows import MOST_VECTORS, bind_row_windows
from sardonyx.compiler.native.windows.window_call import Slide, WindowCall
from sardonyx.compiler.native.windows.window_tiles import bind_window_tiles, tiles_fit
from sardonyx.kernel.cost import weight
from sardonyx.runtime.memory import memory

# What a step takes in memory while a plan is bound.
_BYTES_PER_STEP = 4096

# A vector is permuted once for each channel of a group, in sizes that fill it.
_MOST_CHANNELS = 16
# The share of the multiply-adds' peak that windows reach, with one channel of a group and with several.
_SHARE, _SHARE_OF_GROUPS = 0.6, 0.4
# The share that tiles of groups reach.
_SHARE_OF_TILES = 0.85
# By rows: nanoseconds for a tap of a vector, but of those that are computed at once at least so many as their sums
# wait for each other; for laying out a row, and each byte of it.
_TAP_NS, _WAIT_NS, _ROW_NS, _BYTE_NS = 0.27, 0.56, 30.0, 0.015
# Bytes a nanosecond that a copy into channels-last order moves.
_COPIED = 50.0
# The spatial dimensions that the kernels count.
_DIMENSIONS = len(DIMENSIONS)


def predict(binder: Binder, call: ConvolutionCall) -> float | None:
    """The multiply-adds, and the way of the input to the caches and of the result from there; the shorter form's."""
    if not _is_possible(call):
        return None
    forms = (_predicted_by_rows(binder.target, call), _predicted_by_channels(binder.target, call))
    able = [one for one in forms if one is not None]
    if not able:
        return None
    moved = call.x.nbytes + _result_bytes(call)
    return min(able) + moved / rates().bytes_of(binder.target, moved)


def _predicted_by_channels(target: Target, call: ConvolutionCall) -> float | None:
    """Nanoseconds for windows whose vectors hold filters, with a copy where channels do not lie together."""
    channels, filters = _group(call)
    lanes = _lanes(target, call)
    whole = _is_power_of_two(channels) and _is_power_of_two(filters) and channels <= _MOST_CHANNELS and lanes >= filters
    if not whole and call.group == 1:
        return None
    # What follows may want the order of the input back.
    order = 0.0 if call.is_channels_last else (call.x.nbytes + _result_bytes(call)) / _COPIED
    tiled = _predicted_in_tiles(target, call)
    if tiled is not None:
        return tiled + order
    if not whole:
        return None
    share = _SHARE if channels == 1 else _SHARE_OF_GROUPS
    return call.flops * lanes / min(lanes, call.filters) / (share * _peak(target, call)) + order


def _predicted_in_tiles(target: Target, call: ConvolutionCall) -> float | None:
    """Nanoseconds for tiles of groups; None where they do not fit."""
    fold, most = Correlate(F32, *_group(call)), _lanes(target, call)
    lanes = group_lanes(fold, min(most, 1 << (call.filters.bit_length() - 1)))
    if not groups_fit(target, fold, call.windows, lanes):
        return None
    products = call.batch * products_of(target, fold, call.windows, call.filters, lanes)
    if target.takes_turns:
        products *= max(0.5, lanes / most)
    return 2.0 * most * products / (_SHARE_OF_TILES * _peak(target, call))


def _peak(target: Target, call: ConvolutionCall) -> float:
    """Operations a nanosecond at most."""
    return rates().flops(target) * target.lanes(_working(call)) / target.lanes(F32)


def _predicted_by_rows(target: Target, call: ConvolutionCall) -> float | None:
    """Nanoseconds for windows whose vectors hold places: only of one channel each, whose rows lie together."""
    slide = Slide.of(call.windows)
    steps = slide.each(call.x.strides[2:], 0)
    if call.w.shape[1] != 1 or call.is_channels_last or steps[-1] != 1 or slide.output[-1] == 1:
        return None
    rows = call.batch * call.filters * math.prod(slide.output[:-1])
    vectors = -(-slide.output[-1] // target.lanes(_working(call)))
    turns = vectors // MOST_VECTORS + (vectors % MOST_VECTORS > 0)
    laid_out = _ROW_NS + _BYTE_NS * slide.size[-1] * call.x.dtype.itemsize
    return rows * (call.taps * max(turns * _WAIT_NS, vectors * _TAP_NS) + laid_out)


def _result_bytes(call: ConvolutionCall) -> int:
    return call.batch * call.filters * call.places * call.x.dtype.itemsize


def bind(binder: Binder, call: ConvolutionCall) -> Sequence[Tensor]:
    """Add the step, after a copy where the input lies neither with its channels nor with its rows together."""
    finish = call.finish(binder)
    channels, filters = _group(call)
    by_rows = _by_rows(binder.target, call)
    x = call.channels_last
    if by_rows:
        results = [_in_rows(binder, output.dtype, call.result_shape) for output in finish.outputs]
    else:
        results = call.results(binder, finish)
        x = x if x.strides[-1] == 1 or x.shape[-1] == 1 else contiguous(binder, x)
    last = Slide.of(call.windows).dimensions[-1]
    operands = tuple(in_places(binder, one, by_rows=by_rows, last=last) for one in finish.operands)
    fold = Correlate(_type(x.dtype), channels, filters)
    operations = 2.0 * call.taps * channels + weight(finish.outputs)
    slid = WindowCall(x, call.windows, fold, finish.outputs, operands, tuple(results), operations)
    lanes = group_lanes(fold, lanes_of(binder.target, slid))
    in_groups = not by_rows and groups_fit(binder.target, fold, call.windows, lanes)
    if not in_groups:
        lanes = 0 if by_rows else lanes_of(binder.target, slid)
    weights = _weights(binder, call, lanes)
    slid = replace(slid, fold=replace(fold, weights=_type(weights.dtype)), weights=weights)
    if by_rows:
        bind_row_windows(binder, slid)
    elif in_groups:
        bind_group_tiles(binder, slid, lanes)
    elif tiles_fit(binder.target, slid):
        bind_window_tiles(binder, slid)
    else:
        bind_channel_windows(binder, slid)
    return call.handed_on(results)


DEPTHWISE = Algorithm("windows", predict, bind)


def _group(call: ConvolutionCall) -> tuple[int, int]:
    """Channels and filters of a group."""
    return call.w.shape[1], call.filters // call.group


def _is_possible(call: ConvolutionCall) -> bool:
    """Whether the kernels count as many dimensions as there are, and there is work at all."""
    sizes = zip(call.windows.size, call.windows.kernel, call.windows.output, call.windows.begin, strict=True)
    matter = sum(one != (1, 1, 1, 0) for one in sizes)
    return matter <= _DIMENSIONS and 0 not in (call.x.size, call.w.size, call.filters)


def _by_rows(target: Target, call: ConvolutionCall) -> bool:
    """Whether vectors hold places, not filters."""
    by_rows, by_channels = _predicted_by_rows(target, call), _predicted_by_channels(target, call)
    return by_channels is None or (by_rows is not None and by_rows < by_channels)


def _working(call: ConvolutionCall) -> Type:
    """The type in which sums are computed."""
    return F64 if call.x.dtype.itemsize > 4 else F32


def _lanes(target: Target, call: ConvolutionCall) -> int:
    """Filters of a vector at most."""
    return target.lanes(_working(call))


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _type(dtype: np.dtype[np.generic]) -> Type:
    found = type_of(dtype)
    assert found is not None
    return found


def _in_rows(binder: Binder, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Tensor:
    """A new result in ONNX's order, as [batch, *places, filters]."""
    return transposed(binder.new(dtype, shape), (0, *range(2, len(shape)), 1))


def _weights(binder: Binder, call: ConvolutionCall, lanes: int) -> Tensor:
    """The weights as [filters, taps] or, for vectors of filters, as [vectors, taps, channels of a group, lanes].

    Constant ones are converted to the type in which sums are computed.
    """
    w, spatial = call.w, len(call.windows.kernel)
    order = (*range(2, spatial + 2), 1)
    if lanes and not call.has_constant_weights:
        memory.require_tables(_BYTES_PER_STEP * (call.filters // lanes), "the copies of weights")
    starts = [min(first, call.filters - lanes) for first in range(0, call.filters, lanes)] if lanes else []
    if call.has_constant_weights:
        wide = np.dtype(np.float64 if w.dtype == np.float64 else np.float32)

        def arranged(array: Array) -> Array:
            if not lanes:
                return np.ascontiguousarray(array.astype(wide))
            vectors = [array[first : first + lanes].transpose((*order, 0)) for first in starts]
            return np.ascontiguousarray(np.stack(vectors), wide)

        return binder.derived(w, ("weights of windows", lanes, str(wide)), arranged)
    if not lanes:
        return contiguous(binder, w)
    shape = [w.shape[axis] for axis in order]
    made = binder.new(w.dtype, (len(starts), *shape, lanes))
    with binder.together():
        for number, first in enumerate(starts):
            vector = transposed(part_of(w, 0, first, lanes), (*order, 0))
            copy_into(binder, vector, part_of(made, 0, number, 1).reshaped((*shape, lanes), made.strides[1:]))
    return made
