"""Convolution in groups of few channels, depthwise above all: windows instead of a product.

A vector holds filters. Each of them reads the same few channels as its neighbours of the group, so that the vector of
a tap comes from one or a few permutations of neighbouring channels, and nothing is copied: not the windows, not the
padding. In ONNX's order, where that is how the input lies and few channels would leave vectors empty, a vector holds
neighbouring places of a depthwise convolution.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.llvm.kernels.windows.folds import Correlate
from sardonyx.compiler.llvm.kernels.windows.frame import DIMENSIONS
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, Type, type_of
from sardonyx.compiler.native.convolution.algorithm import Algorithm, rates
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.compiler.native.windows.channel_windows import bind_channel_windows
from sardonyx.compiler.native.windows.operands import in_places
from sardonyx.compiler.native.windows.row_windows import bind_row_windows
from sardonyx.compiler.native.windows.window_call import Slide, WindowCall
from sardonyx.kernel.cost import weight

# A vector is permuted once for each channel of a group, in sizes that fill it.
_MOST_CHANNELS = 16
# The share of the multiply-adds' peak that windows reach, with one channel of a group and with several.
_SHARE, _SHARE_OF_GROUPS = 0.5, 0.3
# The spatial dimensions that the kernels count.
_DIMENSIONS = len(DIMENSIONS)


def predict(binder: Binder, call: ConvolutionCall) -> float | None:
    """The multiply-adds of whole vectors, and the way of the input to the caches and of the result from there."""
    rate, target = rates(), binder.target
    channels, filters = _group(call)
    if not _is_possible(call) or channels > _MOST_CHANNELS:
        return None
    lanes = _lanes(target, call)
    by_rows = _by_rows(call)
    if not by_rows and (lanes < filters or not (_is_power_of_two(channels) and _is_power_of_two(filters))):
        return None
    used = min(lanes, call.places if by_rows else call.filters) / lanes
    share = _SHARE if channels == 1 else _SHARE_OF_GROUPS
    moved = call.x.nbytes + call.batch * call.filters * call.places * call.x.dtype.itemsize
    order = 0 if by_rows or call.is_channels_last else 2 * call.x.nbytes
    return call.flops / (share * used * rate.flops(target)) + (moved + order) / rate.bytes_of(target, moved)


def bind(binder: Binder, call: ConvolutionCall) -> Sequence[Tensor]:
    """Add the step, after a copy where the input lies neither with its channels nor with its rows together."""
    finish = call.finish(binder)
    channels, filters = _group(call)
    by_rows = _by_rows(call)
    x = call.channels_last
    if by_rows:
        results = [_in_rows(binder, output.dtype, call.result_shape) for output in finish.outputs]
    else:
        results = call.results(binder, finish)
        x = x if x.strides[-1] == 1 or x.shape[-1] == 1 else contiguous(binder, x)
    last = Slide.of(call.windows).dimensions[-1]
    operands = tuple(in_places(binder, one, by_rows=by_rows, last=last) for one in finish.operands)
    weights = _weights(binder, call, by_rows=by_rows)
    bind_windows = bind_row_windows if by_rows else bind_channel_windows
    bind_windows(
        binder,
        WindowCall(
            x,
            call.windows,
            Correlate(_type(weights.dtype), channels, filters),
            finish.outputs,
            operands,
            tuple(results),
            2.0 * call.taps * channels + weight(finish.outputs),
            weights,
        ),
    )
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


def _by_rows(call: ConvolutionCall) -> bool:
    """Whether vectors shall hold places: a depthwise convolution of rows that lie together in an input that is no
    channels-last one."""
    slide = Slide.of(call.windows)
    steps = slide.each(call.x.strides[2:], 0)
    return call.w.shape[1] == 1 and not call.is_channels_last and steps[-1] == 1 and slide.output[-1] > 1


def _lanes(target: Target, call: ConvolutionCall) -> int:
    return target.lanes(_type(call.x.dtype)) if call.x.dtype.itemsize > 4 else target.lanes(F32)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _type(dtype: np.dtype[np.generic]) -> Type:
    found = type_of(dtype)
    assert found is not None
    return found


def _in_rows(binder: Binder, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Tensor:
    """A new result in ONNX's order, as [batch, *places, filters]."""
    return transposed(binder.new(dtype, shape), (0, *range(2, len(shape)), 1))


def _weights(binder: Binder, call: ConvolutionCall, *, by_rows: bool) -> Tensor:
    """The weights as [filters, taps] or as [taps, channels of a group, filters]."""
    w, spatial = call.w, len(call.windows.kernel)
    order = range(spatial + 2) if by_rows else (*range(2, spatial + 2), 1, 0)
    if not call.has_constant_weights:
        return contiguous(binder, transposed(w, tuple(order)))
    wide = np.dtype(np.float64 if w.dtype == np.float64 else np.float32)

    def arranged(array: Array) -> Array:
        return np.ascontiguousarray(array.transpose(tuple(order)).astype(wide))

    return binder.derived(w, ("weights of windows", by_rows, str(wide)), arranged)
