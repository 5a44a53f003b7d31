"""Convolution with few filters: a product for all taps at once, whose rows are added line by line.

A product with the filters as its columns would leave most of a vector empty. With the taps of all filters as its rows
and the places of the input as its columns it fills vectors, and each row is added to a line of the result, shifted by
its tap: the sums of a transposed convolution, which takes the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import tile_shape
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.types import F64
from sardonyx.compiler.native.convolution.algorithm import Algorithm, rates
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall, evenly_spaced
from sardonyx.compiler.native.convolution.overlaps import Spread, add_lines, has_line_sums
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.products.gemm_step import multiply
from sardonyx.compiler.native.products.inner_products import product_of
from sardonyx.kernel.expr import Input

# What the product reaches of the peak, reading its columns as they lie.
_SHARE_OF_PEAK = 0.7
# Nanoseconds for a vector of a row that is added.
_VECTOR_NS = 0.6
_STEP_NS = 500.0  # a step more than others take


def predict(binder: Binder, call: ConvolutionCall) -> float | None:
    """The product of all taps, its rows written and read again, and their sums."""
    if not call.has_constant_weights or call.group > 1 or call.taps == 1:
        return None
    if any(stride > 1 for stride in call.windows.strides) or 0 in (call.x.size, math.prod(call.result_shape)):
        return None
    name = _product(call)
    target, product, rate = binder.target, PRODUCTS[name], rates()
    lanes, height = target.lanes(product.accumulator), tile_shape(target, name).rows
    rows = call.filters * call.taps
    places = call.batch * math.prod(call.windows.size)
    flops = 2.0 * -(-rows // height) * height * places * call.channels
    nbytes = rows * places * product.accumulator.nbytes
    terms = call.batch * rows * math.prod(call.windows.output[:-1]) * -(-call.windows.output[-1] // lanes)
    return (
        flops / (_SHARE_OF_PEAK * rate.flops(target, name))
        + 2 * nbytes / rate.bytes_of(target, nbytes)
        + terms * _VECTOR_NS
        + _STEP_NS
    )


def bind(binder: Binder, call: ConvolutionCall) -> Sequence[Tensor]:
    """Add the steps."""
    windows = call.windows
    spreads = [
        Spread(length, output, taps, 1, dilation, (taps - 1) * dilation - begin)
        for length, output, taps, dilation, begin in zip(
            windows.size, windows.output, windows.kernel, windows.dilations, windows.begin, strict=True
        )
    ]
    filters, channels, rank = call.filters, call.channels, len(windows.kernel)

    def turned(weights: Array) -> Array:
        flipped = np.flip(weights, tuple(range(2, 2 + rank))).reshape(filters, channels, call.taps)
        return np.ascontiguousarray(flipped.swapaxes(1, 2)).reshape(-1, channels)

    return sum_lines(binder, call, binder.derived(call.w, "turned taps as rows", turned), spreads)


def sum_lines(binder: Binder, call: ConvolutionCall, rows: Tensor, spreads: Sequence[Spread]) -> Sequence[Tensor]:
    """Add the steps for weights [filters * taps, channels] whose taps `spreads` puts where they belong; the outputs,
    which lie in ONNX's order.
    """
    x, finish = call.x, call.finish(binder)
    step = evenly_spaced(x.shape[2:], x.strides[2:])
    if step is None:
        x, step = contiguous(binder, x), 1
    product = PRODUCTS[_product(call)]
    wide = np.dtype(np.float64 if product.accumulator == F64 else np.float32)
    columns = binder.new(wide, (call.batch, rows.shape[0], math.prod(x.shape[2:])))
    multiply(
        binder,
        rows,
        x.reshaped((call.batch, call.channels, columns.shape[-1]), (*x.strides[:2], step)),
        (Input(x.dtype, 0).cast(columns.dtype),),
        (),
        [columns],
        product.name,
    )
    results = [binder.new(output.dtype, call.result_shape) for output in finish.outputs]
    add_lines(binder, columns, spreads, call.filters, finish, results)
    return results


def fills_lines(binder: Binder, call: ConvolutionCall, spreads: Sequence[Spread]) -> bool:
    """Whether vectors of filters would be half empty at least, while lines of the result fill theirs."""
    lanes = binder.target.lanes(PRODUCTS[_product(call)].accumulator)
    return (
        call.group == 1
        and min(call.x.size, call.w.size, math.prod(call.result_shape)) > 0
        and 2 * call.filters <= lanes <= spreads[-1].output
        and has_line_sums(spreads)
    )


LINE_SUMS = Algorithm("line sums", predict, bind)


def _product(call: ConvolutionCall) -> str:
    """The inner product: that of the input's type, whatever the session's precision."""
    return product_of(call.x.dtype) or call.product
