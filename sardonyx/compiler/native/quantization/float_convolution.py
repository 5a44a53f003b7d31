"""Convolutions of bytes in float32, where that takes less time: groups so small that filters leave vectors empty.

Products of bytes add four of them in each lane, and a vector holds filters of one group. Products of float32 find other
ways for small groups, which fill vectors by places or by several groups. Sums of a window are whole numbers below 2^24,
so that float32 holds each of them exactly, in whatever order they are added: results have the same bits either way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import panels_of
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.llvm.kernels.products.gemm_product import takes_bounded
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I32
from sardonyx.compiler.native.convolution.convolution import ConvolutionKernel
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.quantization import depthwise_words
from sardonyx.compiler.native.quantization.byte_windows import Runs
from sardonyx.compiler.native.quantization.epilogues import joined_epilogue
from sardonyx.compiler.native.quantization.exact_convolution import for_filters
from sardonyx.kernel.expr import Expr, Input

_F32, _I32 = np.dtype(np.float32), np.dtype(np.int32)

BYTES_IN_FLOATS = "bytes in float32"

# The largest whole number up to which float32 holds all, and the largest difference of two bytes.
_HELD, _MOST = 1 << 24, 255

# Cycles of one pass through the units, as measured: a word for a vector of filters and a place by dot products, by
# bounded words, and without either; a tap of a vector of channels; what becomes of sums; a multiply-add of float32; to
# make a byte a float.
_DOT, _BOUNDED, _WIDENED, _TAP, _END, _FMA, _BYTE = 0.5, 1.2, 1.8, 0.75, 8.0, 0.5, 0.2
# What float32 must stay below of the time of bytes.
_MARGIN = 0.8


def takes(target: Target, call: ConvolutionCall, weights: Array) -> bool:
    """Whether the convolution is computed in float32: `weights` are less their zero points, [filters, ...]."""
    filters = call.filters // call.group
    if call.group == 1 or filters >= target.lanes(I32) or (_is_depthwise(call) and depthwise_words.takes(target, call)):
        return False
    if _MOST * np.abs(weights.reshape(len(weights), -1)).sum(axis=1).max(initial=0) >= _HELD:
        return False
    return _float_cycles(target, call) < _MARGIN * _byte_cycles(target, call)


def _is_depthwise(call: ConvolutionCall) -> bool:
    return call.w.shape[1] == 1 and call.filters == call.group


def _byte_cycles(target: Target, call: ConvolutionCall) -> float:
    lanes, places = target.lanes(I32), _passes(target) * call.batch * call.places
    if _is_depthwise(call):  # vectors go over channels, one tap after the other
        return places * panels_of(call.filters, lanes) * (call.taps * _TAP + _END)
    runs = Runs.of(call, call.product)
    of_word = _DOT if target.has_vnni else _BOUNDED if takes_bounded(target) else _WIDENED
    vectors = call.group * panels_of(call.filters // call.group, lanes)
    return places * vectors * (len(runs.taps) * runs.words * of_word + _END)


def _float_cycles(target: Target, call: ConvolutionCall) -> float:
    vectors = call.flops / 2 / target.lanes(I32)
    return _passes(target) * vectors * _FMA + call.x.size * _BYTE


def _passes(target: Target) -> int:
    """How often a vector goes through the units."""
    return 2 if target.takes_turns and target.vector_bits > 256 else 1


def convolve_in_floats(
    binder: Binder,
    call: ConvolutionCall,
    parameters: dict[str, object],
    x_zero: Tensor | None,
    w_zero: Array | None,
    bias: Array | None,
    finished: Callable[[Expr, list[Tensor]], Expr],
) -> list[Tensor]:
    """The convolution of x and w less their zero points, plus the bias, and what becomes of the sums.

    `parameters` are those of the convolution; operands that `finished` adds hold one number, or one for each filter.
    """
    image: Expr = Input(call.x.dtype, 0).cast(_F32)
    given = [call.x]
    if x_zero is not None:
        image = image - Input(x_zero.dtype, 1).cast(_F32)
        given.append(x_zero.reshaped(()))
    kernel = PointwiseKernel([image], [one.dtype for one in given])
    (x,) = kernel.bind(
        binder, given, f"{BYTES_IN_FLOATS}: groups of {call.filters // call.group} filters fill no vector"
    )
    key = "floats", None if w_zero is None else (w_zero.dtype.str, w_zero.tobytes())
    w = binder.derived(call.w, key, lambda array: differences(array, w_zero))
    operands: list[Tensor] = []
    total: Expr = Input(_F32, 0).cast(_I32)
    if bias is not None:
        operands.append(binder.constant(bias))
        total = total + Input(bias.dtype, 1)
    result = finished(total, operands)
    rank = len(call.x.shape) - 1
    placed = [for_filters(one, call.filters, rank, "parameters") for one in operands]
    outputs, placed = joined_epilogue(result, placed, call.epilogue)
    settings = binder.settings
    binder.settings = replace(settings, precision="float32", winograd=False, fast_products=False)
    try:
        found = ConvolutionKernel(parameters).bind(binder, x, w, epilogue=Epilogue(outputs, tuple(placed)))
    finally:
        binder.settings = settings
    return [one for one in found if one is not None]


def differences(weights: Array, zero_point: Array | None) -> Array:
    """Weights [filters, ...] less their zero points, in float32."""
    if zero_point is None:
        return weights.astype(np.float32)
    points = zero_point.reshape(-1, *(1,) * (weights.ndim - 1)).astype(np.float32)
    return np.asarray(weights.astype(np.float32) - points, np.float32)
