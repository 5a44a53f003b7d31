"""Convolution as a matrix product whose windows are put together while it is computed ("implicit GEMM").

The input is read where it lies, channels-last: each chunk of the product copies the windows of its rows into scratch,
with zeros for padding, so that nothing but the input, the weights and the result goes through memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import panel_columns
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.gemm_windows import SPATIAL, WindowGeometry
from sardonyx.compiler.native.convolution.algorithm import Algorithm, rates, weights_ns, words_ns
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall, evenly_spaced
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.products.gemm_step import multiply
from sardonyx.compiler.native.products.left_rows import WindowRows
from sardonyx.compiler.native.products.packed_constants import Packed, in_panels
from sardonyx.compiler.native.products.words import as_words

# The share of the peak that products reach.
_SHARE_OF_PEAK = 0.96
# What it takes to read an element of a window, which all filters of its group share, in products of a vector.
_READ = 0.5
# Nanoseconds for each run of a window that is put together.
_RUN_NS = 1.0
# Tiles of AMX wait until what they load is stored: copies take so much longer.
_SHARE_FOR_TILES = 0.25


def predict(binder: Binder, call: ConvolutionCall) -> float | None:
    """The product, with each window copied once inside of the second cache."""
    product, target = PRODUCTS[call.product], binder.target
    few = call.w.shape[1] < target.lanes(product.word)
    if few or len(call.windows.size) > SPATIAL or not call.has_constant_weights or math.prod(call.result_shape) == 0:
        return None
    if (product.depth > 1 and call.group > 1) or product.parts > 1:
        return None
    rate, filters = rates(), call.filters // call.group
    panel = panel_columns(target, call.product, filters)
    padded = -(-filters // panel) * panel / filters
    rows = call.batch * call.places * call.group
    copied = rows * call.taps * call.w.shape[1] * call.x.dtype.itemsize
    runs = rows * (call.taps if call.group > 1 else call.taps // call.windows.kernel[-1])
    if call.group > 1:
        padded += _READ * target.lanes(product.accumulator) / filters
    ns = call.flops * padded / (_SHARE_OF_PEAK * rate.flops(target, call.product))
    ns += copied / (rate.l2 * (_SHARE_FOR_TILES if product.in_tiles else 1.0)) + runs * _RUN_NS
    ns += weights_ns(target, call.w.nbytes)
    ns += words_ns(target, call.product, call.x.nbytes)
    if not call.is_channels_last:
        ns += call.x.nbytes / rate.bytes_of(target, call.x.nbytes)
    return ns


def bind(binder: Binder, call: ConvolutionCall) -> Sequence[Tensor]:
    """Add the steps."""
    finish = call.finish(binder)
    results = call.results(binder, finish)
    x = contiguous_places(binder, call.channels_last)
    channels = call.w.shape[1]
    product = PRODUCTS[call.product]
    if product.depth > 1:
        x = as_words(binder, x, call.product)
        channels = x.shape[-1] * product.depth
    one_product = all(evenly_spaced(tensor.shape[:-1], tensor.strides[:-1]) is not None for tensor in finish.operands)
    items = 1 if one_product else call.batch
    windows = window_rows(call, x, channels, items)
    multiply(
        binder,
        windows,
        panels_by_taps(binder, call, channels),
        finish.outputs,
        [_as_matrices(tensor, items, call.group) for tensor in finish.operands],
        [_as_matrices(tensor, items, call.group) for tensor in results],
        call.product,
    )
    return call.handed_on(results)


WINDOW_PRODUCTS = Algorithm("window products", predict, bind)


def window_rows(call: ConvolutionCall, x: Tensor, channels: int, items: int) -> WindowRows:
    """The windows of a channels-last input as [items, group, M, K]; `channels` of each tap in a group."""
    windows, product = call.windows, PRODUCTS[call.product]
    words = channels // product.depth
    joined = call.group == 1 and windows.dilations[-1] == 1 and x.strides[-2] == words
    geometry = WindowGeometry(
        places=windows.output,
        size=windows.size,
        kernel=windows.kernel,
        stride=windows.strides,
        dilation=windows.dilations,
        begin=windows.begin,
        step=tuple(stride * step for stride, step in zip(windows.strides, x.strides[1:-1], strict=True)),
        within=tuple(dilation * step for dilation, step in zip(windows.dilations, x.strides[1:-1], strict=True)),
        item_step=x.strides[0],
        tap_words=words,
        joined=joined,
    )
    rows = call.batch // items * call.places
    return WindowRows(x, geometry, (x.strides[0], words), (items, call.group, rows, call.taps * channels))


def contiguous_places(binder: Binder, last: Tensor) -> Tensor:
    """A channels-last input whose channels lie together: itself, or a copy."""
    return last if last.strides[-1] == 1 else contiguous(binder, last)


def _as_matrices(tensor: Tensor, items: int, group: int) -> Tensor:
    """A tensor [batch, *places, filters] as [items, group, rows, filters of a group]."""
    sizes, strides = tensor.shape, tensor.strides
    batch, filters = sizes[0], sizes[-1] // group
    step = evenly_spaced(sizes[1:-1] if items > 1 else sizes[:-1], strides[1:-1] if items > 1 else strides[:-1])
    assert step is not None
    rows = math.prod(sizes[:-1]) // items
    return tensor.reshaped(
        (items, group, rows, filters), (strides[0] if items == batch else 0, filters * strides[-1], step, strides[-1])
    )


def panels_by_taps(binder: Binder, call: ConvolutionCall, channels: int) -> Packed:
    """The weights as panels [group, K, filters], K by taps and then channels, of which there are `channels`."""
    group, taps, filters, own = call.group, call.taps, call.filters // call.group, call.w.shape[1]

    def matrices(array: Array) -> Array:
        matrix: Array = array.reshape(group, filters, own, taps).transpose(0, 1, 3, 2)
        if channels != own:
            matrix = np.concatenate([matrix, np.zeros((*matrix.shape[:-1], channels - own), matrix.dtype)], axis=-1)
        return np.ascontiguousarray(matrix).reshape(group, filters, taps * channels).transpose(0, 2, 1)

    shape = (group, taps * channels, filters)
    return in_panels(binder, call.w, ("filters by taps", group, channels), matrices, call.product, shape)
