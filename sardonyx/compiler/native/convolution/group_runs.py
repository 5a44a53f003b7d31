"""Grouped convolution along one dimension as matrix products whose left-hand side is the input itself.

The channels of a group are brought together, with the padding, so that a window is one run of memory; the next window
begins `stride` places further on, within that run. Rows of A thus overlap, and none of them is ever written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.native.convolution.algorithm import Algorithm, rates, words_ns
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.convolution.window_copies import columns
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.pad import Frame, framed
from sardonyx.compiler.native.products.gemm_step import multiply
from sardonyx.compiler.native.products.left_rows import OverlappingRows
from sardonyx.compiler.native.products.words import as_words

# The share of the peak that products reach.
_SHARE_OF_PEAK = 0.9


def predict(binder: Binder, call: ConvolutionCall) -> float | None:
    """The product, of which whole vectors of filters are computed, and the input's way into the order of groups."""
    windows, product, target = call.windows, PRODUCTS[call.product], binder.target
    other_dims = (*windows.size[:-1], *windows.kernel[:-1], *windows.output[:-1])
    if call.group == 1 or windows.dilations[-1] != 1 or any(size != 1 for size in other_dims):
        return None
    each = call.w.shape[1]
    # Words must not reach into the next place, nor those that come together into what lies behind a window.
    if each % product.depth or call.taps * each % (product.depth * product.unit) or math.prod(call.result_shape) == 0:
        return None
    rate, filters, lanes = rates(), call.filters // call.group, target.lanes(product.accumulator)
    computed = -(-filters // lanes) * lanes / filters
    lines = call.batch * call.channels * math.prod(map(sum, zip(*_room(call), windows.size, strict=True)))
    nbytes = lines * call.x.dtype.itemsize
    ns = call.flops * computed / (_SHARE_OF_PEAK * rate.flops(target, call.product))
    ns += nbytes / rate.bytes_of(target, nbytes) + words_ns(target, call.product, nbytes)
    if call.w.nbytes > target.caches.l3 / 4:  # each block of K comes late
        ns += call.w.nbytes / rate.l3
    return ns


def bind(binder: Binder, call: ConvolutionCall) -> Sequence[Tensor]:
    """Add the steps."""
    finish = call.finish(binder)
    results = call.results(binder, finish)
    product, each = PRODUCTS[call.product], call.w.shape[1]
    runs = _runs(binder, call)
    if product.depth > 1:
        runs = as_words(binder, runs, call.product)
    step = call.windows.strides[-1] * each // product.depth
    multiply(
        binder,
        OverlappingRows(runs, (*runs.strides[:-1], step), (call.batch, call.group, call.places, call.taps * each)),
        columns(binder, call, True, call.product),
        finish.outputs,
        [call.by_groups(operand) for operand in finish.operands],
        [call.by_groups(tensor) for tensor in results],
        call.product,
    )
    return call.handed_on(results)


GROUP_RUNS = Algorithm("runs of groups", predict, bind)


def _room(call: ConvolutionCall) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The places before and behind the input that windows read, in each dimension."""
    return call.windows.begin, call.windows.read_behind()


def _runs(binder: Binder, call: ConvolutionCall) -> Tensor:
    """The input [batch, group, places * channels of a group], with as many zeros around the places as windows read."""
    last, each = call.channels_last, call.w.shape[1]
    batch, *sizes, _ = last.shape
    outer, *steps, step = last.strides
    groups = last.reshaped((batch, call.group, *sizes, each), (outer, each * step, *steps, step))
    none = (0, 0)
    added = (none, none, *zip(*_room(call), strict=True), none)
    whole = contiguous(binder, framed(binder, groups, Frame((none,) * len(added), added), "constant", None))
    return whole.reshaped((batch, call.group, math.prod(whole.shape[2:])))
