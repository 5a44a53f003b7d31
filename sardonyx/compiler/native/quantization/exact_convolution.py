"""Convolutions of bytes whose weights or scales are known in the run only: in float64, which holds the sums exactly.

Windows are multiplied by filters that nobody could lay out before, so that there is nothing to gain from products of
bytes but what a convolution of numbers does, too. Sums of up to 2^37 products of bytes are exact in float64; where an
algorithm multiplies by fractions (minimal filtering), its error stays far below one half, and rounding takes it away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.native.convolution.convolution import ConvolutionKernel
from sardonyx.kernel.expr import Expr, Input, rint, substitute
from sardonyx.ops.windows import WindowAttributes

_F64, _F32 = np.dtype(np.float64), np.dtype(np.float32)

# The result from the exact sums, a whole number; operands that it needs are added to the list, `Input(i)` being the
# i-th from 1. They broadcast to the result in ONNX's order.
Finished = Callable[[Expr, list[Tensor]], Expr]


def convolve_exactly(
    binder: Binder,
    group: int,
    attributes: Callable[[Sequence[int]], WindowAttributes],
    x: Tensor,
    w: Tensor,
    zeros: tuple[Tensor | None, Tensor | None],
    bias: Tensor | None,
    epilogue: Epilogue | None,
    finished: Finished,
) -> Sequence[Tensor | None]:
    """The convolution of x and w less their zero points, plus the bias (int32), and what becomes of it."""
    x_zero, w_zero = zeros
    rank = len(x.shape)
    point = None if x_zero is None else single(x_zero, "zero point of x")
    differences = _less(binder, x, point)
    weights = _less(binder, w, None if w_zero is None else for_filters(w_zero, w.shape[0], len(w.shape), "zero points"))
    operands: list[Tensor] = []
    total: Expr = rint(Input(_F64, 0))
    if bias is not None:
        if bias.shape != w.shape[:1]:
            raise ValueError(f"the bias has the shape {bias.shape}, but there are {w.shape[0]} filters")
        operands.append(for_filters(bias, w.shape[0], rank - 1, "bias"))
        total = total + Input(bias.dtype, 1).cast(_F64)
    own = finished(total, operands)
    outputs: tuple[Expr, ...] = (own,)
    if epilogue is not None:
        first = len(operands)
        outputs = tuple(
            substitute(
                epilogue.outputs,
                lambda leaf: own if leaf.index == 0 else Input(leaf.dtype, leaf.index + first),
            )
        )
        operands.extend(epilogue.operands)
    kernel = ConvolutionKernel({"group": group, "attributes": attributes})
    return kernel.bind(binder, differences, weights, epilogue=Epilogue(outputs, tuple(operands)))


def wrapped(total: Expr) -> Expr:
    """A whole number of float64 as int32, modulo 2^32."""
    return total.cast(np.dtype(np.int64)).cast(np.dtype(np.int32))


def factors_of(binder: Binder, x_scale: Tensor, w_scale: Tensor, y_scale: Tensor, filters: int, rank: int) -> Tensor:
    """x_scale * w_scale / y_scale in float32, one for all or for each of the filters, beside places of that rank."""
    by_filter = for_filters(w_scale, filters, rank + 1, "scales")
    scales = [single(x_scale, "scale of x"), by_filter, single(y_scale, "scale of y")]
    x, w, y = (Input(tensor.dtype, index).cast(_F32) for index, tensor in enumerate(scales))
    return PointwiseKernel([x * w / y], [tensor.dtype for tensor in scales]).bind(binder, scales)[0]


def single(tensor: Tensor, what: str) -> Tensor:
    """The one element of a tensor, as a scalar; ValueError where there are others."""
    if tensor.size != 1:
        raise ValueError(f"the {what} must be one number, not of shape {tensor.shape}")
    return tensor.reshaped(())


def for_filters(tensor: Tensor, filters: int, rank: int, what: str) -> Tensor:
    """One number for all filters or for each of them, the first of `rank` dimensions; ValueError for other sizes."""
    if tensor.size == 1:
        return tensor.reshaped(())
    if tensor.shape != (filters,):
        raise ValueError(f"the {what} have the shape {tensor.shape}, but there are {filters} filters")
    return tensor.reshaped((filters, *(1,) * (rank - 1)), (tensor.strides[0], *(0,) * (rank - 1)))


def _less(binder: Binder, numbers: Tensor, zero_point: Tensor | None) -> Tensor:
    """The numbers less their zero point, in float64."""
    result: Expr = Input(numbers.dtype, 0).cast(_F64)
    operands: list[Any] = [numbers]
    if zero_point is not None:
        result = result - Input(zero_point.dtype, 1).cast(_F64)
        operands.append(zero_point)
    return PointwiseKernel([result], [tensor.dtype for tensor in operands]).bind(binder, operands)[0]
