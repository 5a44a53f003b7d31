"""Convolution as a matrix product over copied windows: a row of A for each place of the output, a column of B for
each filter.

The input is brought into channels-last order, with its padding; a window is then a few runs of neighbouring channels,
and along the last dimension even one. Where windows overlap, or lie apart, a copy puts each of them into one row
("im2col"); a window of one run needs none. Any convolution can be computed this way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import Problem, asks_ahead, panel_columns
from sardonyx.compiler.choice.strassen_choice import declined, gain
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import SIDE
from sardonyx.compiler.native.convolution.algorithm import Algorithm, rates, tiles_ns, weights_ns, words_ns
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall, evenly_spaced
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.pad import Frame, framed
from sardonyx.compiler.native.products.gemm_step import multiply
from sardonyx.compiler.native.products.packed_constants import Packed, in_panels
from sardonyx.ops.windows import Windows

# With fewer channels than this a window is copied from ONNX's order, whose runs go along the last dimension.
_FEW_CHANNELS = 16

# The share of the peak that products reach.
_SHARE_OF_PEAK = 0.97
# Nanoseconds for each run of neighbouring elements that is copied, and where these are a few of a line's.
_RUN_NS = 1.5
_SCATTERED_RUN_NS = 12.0
# Tiles of AMX wait for what was copied: rows of large windows are read once more, far apart.
_COPIES_FOR_TILES = 5.0
_COPIES_FOR_PARTS = 2.0


def predict(binder: Binder, call: ConvolutionCall) -> float:
    """The product, and for each byte of a copied window its way to the caches or to memory."""
    rate, target = rates(), binder.target
    filters = max(1, call.filters // call.group)
    panel = panel_columns(target, call.product, filters)
    rows, k = call.batch * call.places, call.taps * call.w.shape[1]
    padded = -(-filters // panel) * panel / filters
    kind = PRODUCTS[call.product]
    by_channels = _is_by_channels(call)
    if kind.parts > 1 and rows:
        # Windows that overlap are read where they lie: items that lie apart are products of their own.
        items = call.batch if by_channels and call.taps > 1 and _is_one_run(call) else 1
        padded *= -(-rows // items // SIDE) * SIDE * items / rows
    product_ns = call.flops * padded / (_SHARE_OF_PEAK * rate.flops(target, call.product))
    if binder.settings.fast_products and call.has_constant_weights and call.group == 1:
        problem = Problem(m=rows, n=filters, k=k, product=call.product)
        if declined(target, problem) is None:
            product_ns *= 1 - gain(target, rows, k, filters)
    copied = 0 if _is_one_run(call) else rows * call.group * k * call.x.dtype.itemsize
    run = call.w.shape[1] if by_channels else call.windows.kernel[-1]
    runs = copied / (max(1, run) * call.x.dtype.itemsize)
    order = 0 if call.is_channels_last or not by_channels else call.x.nbytes
    turns = (_COPIES_FOR_TILES if kind.parts == 1 else _COPIES_FOR_PARTS) if kind.in_tiles else 1.0
    moved_ns = turns * copied / rate.bytes_of(target, copied) + order / rate.bytes_of(target, order)
    moved_ns += words_ns(target, call.product, copied or call.x.nbytes) + tiles_ns(call.product, rows * filters)
    if call.taps > 1 and asks_ahead(target):  # of one tap every algorithm reads as many
        moved_ns += weights_ns(target, call.w.nbytes)
    return product_ns + moved_ns + runs * (_RUN_NS if by_channels else _SCATTERED_RUN_NS)


def bind(binder: Binder, call: ConvolutionCall) -> Sequence[Tensor]:
    """Add the steps."""
    return multiply_rows(binder, call, None)


def multiply_rows(binder: Binder, call: ConvolutionCall, b: Packed | None) -> Sequence[Tensor]:
    """Add the steps, with other weights than the call's in `b`: [batch, group, K, filters]."""
    finish = call.finish(binder)
    results = call.results(binder, finish)
    if math.prod(call.result_shape) == 0:
        return call.handed_on(results)
    by_channels = _is_by_channels(call)
    rows = _rows_by_channels(binder, call) if by_channels else _rows_in_order(binder, call)
    multiply(
        binder,
        rows,
        b or columns(binder, call, by_channels, call.product),
        finish.outputs,
        [call.by_groups(operand) for operand in finish.operands],
        [call.by_groups(tensor) for tensor in results],
        call.product,
    )
    return call.handed_on(results)


WINDOW_COPIES = Algorithm("window copies", predict, bind)


def columns(binder: Binder, call: ConvolutionCall, by_channels: bool, product: str) -> Packed | Tensor:
    """The weights as [group, K, filters], in panels if they are constant.

    K counts taps and then channels, or channels and then taps.
    """
    group, taps, w = call.group, call.taps, call.w
    filters, channels = call.filters // group, w.shape[1]
    shape = (group, taps * channels, filters)
    if not call.has_constant_weights or w.size == 0:
        if by_channels:
            w = contiguous(
                binder, w.reshaped((*w.shape[:1], *w.shape[2:], channels), (w.strides[0], *w.strides[2:], w.strides[1]))
            )
        else:
            w = contiguous(binder, w)
        return w.reshaped(shape, (taps * channels * filters, 1, taps * channels))

    def matrices(array: Array) -> Array:
        matrix: Array = array.reshape(group, filters, channels, taps)
        if by_channels:
            matrix = np.ascontiguousarray(matrix.transpose(0, 1, 3, 2))
        return matrix.reshape(group, filters, taps * channels).transpose(0, 2, 1)

    return in_panels(binder, w, ("filters", group, by_channels), matrices, product, shape)


def _is_by_channels(call: ConvolutionCall) -> bool:
    """Whether windows are copied from channels-last order."""
    return call.is_channels_last or (call.channels >= _FEW_CHANNELS and not _is_tiling(call.windows))


def _is_tiling(windows: Windows) -> bool:
    """Whether the windows lie side by side, as patches do."""
    return windows.kernel == windows.strides and not any((*windows.begin, *windows.end)) and max(windows.kernel) > 1


def _is_one_run(call: ConvolutionCall) -> bool:
    """Whether the elements of a window lie together in channels-last order."""
    windows = call.windows
    return all(size == 1 for size in windows.kernel[:-1]) and (
        windows.kernel[-1] == 1 or (windows.dilations[-1] == 1 and call.group == 1)
    )


def _padded(binder: Binder, x: Tensor, windows: Windows) -> Tensor:
    """A channels-last input with as many zeros around it as windows read."""
    none = (0, 0)
    added = (none, *zip(windows.begin, windows.read_behind(), strict=True), none)
    return framed(binder, x, Frame((none,) * len(added), added), "constant", None)


def _rows_by_channels(binder: Binder, call: ConvolutionCall) -> Tensor:
    """[batch, group, places, taps * channels] from the input in channels-last order."""
    windows, group = call.windows, call.group
    data = _padded(binder, call.channels_last, windows)
    if data.strides[-1] != 1:
        data = contiguous(binder, data)
    batch, channels = data.shape[0], data.shape[-1]
    each = channels // group
    steps = data.strides[1:-1]
    over = [stride * step for stride, step in zip(windows.strides, steps, strict=True)]
    within = [dilation * step for dilation, step in zip(windows.dilations, steps, strict=True)]
    flat = evenly_spaced(windows.output, over)
    if _is_one_run(call) and flat is not None and (windows.kernel[-1] == 1 or steps[-1] == channels):
        width = windows.kernel[-1] * each
        return data.reshaped((batch, group, call.places, width), (data.strides[0], each, flat, 1))
    view = data.reshaped(
        (batch, *windows.output, group, *windows.kernel, each),
        (data.strides[0], *over, each, *within, 1),
    )
    return _as_rows(contiguous(binder, view), call)


def _rows_in_order(binder: Binder, call: ConvolutionCall) -> Tensor:
    """[batch, group, places, channels * taps] from the input in ONNX's order."""
    windows, group = call.windows, call.group
    last = _padded(binder, call.channels_last, windows)
    batch, channels = last.shape[0], last.shape[-1]
    each = channels // group
    steps, step = last.strides[1:-1], last.strides[-1]
    over = [stride * one for stride, one in zip(windows.strides, steps, strict=True)]
    within = [dilation * one for dilation, one in zip(windows.dilations, steps, strict=True)]
    view = last.reshaped(
        (batch, *windows.output, group, each, *windows.kernel),
        (last.strides[0], *over, each * step, step, *within),
    )
    return _as_rows(contiguous(binder, view), call)


def _as_rows(copied: Tensor, call: ConvolutionCall) -> Tensor:
    """Copied windows [batch, *places, group, K...] as [batch, group, places, K]."""
    group, width = call.group, call.taps * call.w.shape[1]
    return copied.reshaped(
        (call.batch, group, call.places, width), (call.places * group * width, width, group * width, 1)
    )
