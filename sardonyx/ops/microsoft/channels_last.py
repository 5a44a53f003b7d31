"""Convolutions and pools whose channels are the last axis, and quantised pools in either layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx.kernel import expr as k
from sardonyx.kernel.expr import Expr
from sardonyx.kernel.program import Arrangement, Host, Kernel, Pointwise, Template
from sardonyx.ops import convolution, pooling
from sardonyx.ops.framework.facts import Dims, Fact
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.activations import activate, activation_of
from sardonyx.ops.microsoft.linear_quantization import Array, integers, mean_of_integers, one, padded, quantize_mean
from sardonyx.ops.microsoft.qlinear_elementwise import are_numbers, quantities, saturated, zero_like
from sardonyx.ops.microsoft.qlinear_reduction import quantized_means, rescaled_mean
from sardonyx.ops.microsoft.rules import DOMAIN, like
from sardonyx.ops.row_kernels import Contents, Shapes, given, shortened

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


def channels_second(x: Array) -> Array:
    """(N, ..., C) as (N, C, ...), a view."""
    return np.moveaxis(x, -1, 1)


def channels_at_end(x: Array) -> Array:
    """(N, C, ...) as (N, ..., C) in row order."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def fact_channels_second(fact: Fact | None) -> Fact | None:
    """The fact of `channels_second`."""
    if fact is None or not fact.shape:
        return fact
    return like(fact, (fact.shape[0], fact.shape[-1], *fact.shape[1:-1]))


def fact_channels_at_end(fact: Fact) -> Fact:
    """The fact of `channels_at_end`."""
    if not fact.shape:
        return fact
    return like(fact, (fact.shape[0], *fact.shape[2:], fact.shape[1]))


@operator("QLinearConv", domain=DOMAIN)
class QLinearConv(convolution.QLinearConv):
    """ONNX's QLinearConv, with the channels of x and y last where `channels_last` is set; weights stay (M, C, ...)."""

    inputs: ClassVar[str] = "x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B?"
    outputs: ClassVar[str] = "y"
    channels_last: int = 0

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        if not self.channels_last:
            return super().infer(inputs, inference)
        (y,) = super().infer([fact_channels_second(inputs[0]), *inputs[1:]], inference)
        return [fact_channels_at_end(y)]

    def _parameters(self) -> dict[str, Any]:
        return {**super()._parameters(), "channels_last": bool(self.channels_last)}

    def run(self, *inputs: Any) -> Sequence[Array]:
        if not self.channels_last:
            return super().run(*inputs)
        (y,) = super().run(channels_second(inputs[0]), *inputs[1:])
        return (channels_at_end(y),)


@operator("NhwcConv", domain=DOMAIN)
class NhwcConv(convolution.Conv):
    """Conv with the channels of X and Y last; weights stay (M, C / group, ...)."""

    inputs: ClassVar[str] = "X, W, B?"
    outputs: ClassVar[str] = "Y"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.template(channels_last=True)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        (y,) = super().infer([fact_channels_second(inputs[0]), *inputs[1:]], inference)
        return [fact_channels_at_end(y)]

    def run(self, x: Array, w: Array, bias: Array | None = None) -> Sequence[Array]:
        (y,) = super().run(channels_second(x), w, bias)
        return (channels_at_end(y),)


@operator("NhwcFusedConv", domain=DOMAIN)
class NhwcFusedConv(NhwcConv):
    """activation(NhwcConv + Z)."""

    inputs: ClassVar[str] = "X, W, B?, Z?"
    activation: str = ""
    activation_params: tuple[float, ...] = ()

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.template(channels_last=True, activation=activation_of(self.activation, self.activation_params))

    def run(self, x: Array, w: Array, bias: Array | None = None, z: Array | None = None) -> Sequence[Array]:
        kind = x.dtype
        wide = x.astype(np.float32) if kind == np.float16 else x
        (y,) = super().run(wide, w.astype(wide.dtype), None if bias is None else bias.astype(wide.dtype))
        if z is not None:
            y = y + z
        return (activate(self.activation, y, self.activation_params).astype(kind),)


@operator("NhwcMaxPool", domain=DOMAIN)
class NhwcMaxPool(pooling.MaxPool):
    """The largest element of each window, with the channels last."""

    inputs: ClassVar[str] = "x"
    outputs: ClassVar[str] = "y"
    has_channels_last: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        (y,) = super().infer([fact_channels_second(inputs[0])], inference)
        return [fact_channels_at_end(y)]

    def run(self, x: Array) -> Sequence[Array]:
        (y,) = super().run(channels_second(x))
        return (channels_at_end(y),)


# Bytes whose sum float32 holds, whatever they are.
_MOST_BYTES = 2**24 // 255


@operator("QLinearAveragePool", domain=DOMAIN)
class QLinearAveragePool(pooling.AveragePool):
    """The mean of each window of the real numbers, quantised: that of their integers is exact; channels last where
    `channels_last` is set."""

    inputs: ClassVar[str] = "X, x_scale, x_zero_point?, y_scale, y_zero_point?"
    outputs: ClassVar[str] = "Y"
    channels_last: int = 0

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        if not self.channels_last:
            return super().infer(inputs[:1], inference)
        (y,) = super().infer([fact_channels_second(inputs[0])], inference)
        return [fact_channels_at_end(y)]

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parts = quantities(padded(inputs, 5), (0, 1, 2), (None, 3, 4))
        target = inputs[4] if len(inputs) > 4 and inputs[4] is not None else inputs[0]
        if parts is None or target is None or not are_numbers(self.node, (1, 2, 3, 4)):
            return Host(self.run, "parameters that are no single numbers")
        if math.prod(self.kernel_shape) > _MOST_BYTES:
            return Host(self.run, "windows whose sums float32 does not hold")
        read = [inputs[0], inputs[2]]
        number, *zero = (k.Input(dtype, index).cast(np.float32) for index, dtype in enumerate(filter(None, read)))
        whole = Pointwise(tuple(filter(None, read)), (number - zero[0] if zero else number,))

        def result(total: Expr, count: Expr, step: Expr, y_step: Expr, *y_zero: Expr) -> Expr:
            return saturated(rescaled_mean(total / count, step, y_step, *y_zero), target)

        counts = "padding" if self.count_include_pad else "inside"
        pool = self.template("sum", k.Input(np.dtype(np.float32), 0), result, counts).parameters
        parameters = {"whole": whole, "pool": {**pool, "channels_last": bool(self.channels_last)}}
        return Template("pool_quantized", parameters, self.run)

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, x_scale, x_zero, y_scale, y_zero = padded(inputs, 5)
        whole = integers(x, one(x_zero, "x_zero_point")).astype(np.float64)
        (mean,) = super().run(channels_second(whole) if self.channels_last else whole)
        scales = one(x_scale, "x_scale"), one(y_scale, "y_scale")
        y = quantize_mean(np.asarray(mean).astype(np.float32), *scales, zero_like(y_zero, x, "y_zero_point"))
        return (channels_at_end(y) if self.channels_last else y,)


@operator("QLinearGlobalAveragePool", domain=DOMAIN)
class QLinearGlobalAveragePool(Operator):
    """The mean of each map of the real numbers, quantised; channels last where `channels_last` is set."""

    inputs: ClassVar[str] = "X, x_scale, x_zero_point, y_scale, y_zero_point"
    outputs: ClassVar[str] = "Y"
    channels_last: int = 0
    host_reason: ClassVar[str] = "a reduction of quantised numbers"

    def spatial(self, rank: int) -> tuple[int, ...]:
        """The axes over which the mean goes."""
        return tuple(range(1, rank - 1)) if self.channels_last else tuple(range(2, rank))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        if x is None or x.shape is None:
            return [like(x, None)]
        gone = self.spatial(len(x.shape))
        shape: Dims = tuple(1 if index in gone else dim for index, dim in enumerate(x.shape))
        return [like(x, shape)]

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parts = quantities(inputs, (0, 1, 2), (None, 3, 4))
        if parts is None or inputs[0] is None or not are_numbers(self.node, (1, 2, 3, 4)):
            return Host(self.run, self.host_reason)
        return quantized_means(inputs, self._arranged, self.run)

    def _arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        axes = self.spatial(len(shape))
        return Arrangement((shape, *(() for one in shapes[2:3] if one is not None)), axes, (shortened(shape, axes),))

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, x_scale, x_zero, y_scale, y_zero = inputs
        mean = mean_of_integers(x, one(x_zero, "x_zero_point"), self.spatial(x.ndim), keepdims=True)
        scales = one(x_scale, "x_scale"), one(y_scale, "y_scale")
        return (quantize_mean(mean, *scales, one(y_zero, "y_zero_point")),)
