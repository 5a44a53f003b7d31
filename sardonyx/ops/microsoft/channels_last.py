"""Convolutions and pools whose channels are the last axis, and quantised pools in either layout."""

from __future__ import annotations

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
from sardonyx.ops.microsoft.linear_quantization import Array, dequantize, one, padded, quantize
from sardonyx.ops.microsoft.qlinear_elementwise import are_numbers, quantities, saturated, zero_like
from sardonyx.ops.microsoft.qlinear_reduction import quantized_rows
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


@operator("QLinearAveragePool", domain=DOMAIN)
class QLinearAveragePool(pooling.AveragePool):
    """The mean of each window of the real numbers, quantised; channels last where `channels_last` is set."""

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
        x, _ = parts
        real = Pointwise(tuple(dtype for dtype in inputs[:3] if dtype is not None), ((x.number - x.zero) * x.scale,))

        def result(total: Expr, count: Expr, step: Expr, *zero: Expr) -> Expr:
            quotient = k.rint(total / count / step)
            return saturated(quotient + zero[0].cast(np.float32) if zero else quotient, target)

        counts = "padding" if self.count_include_pad else "inside"
        pool = self.template("sum", k.Input(np.dtype(np.float32), 0), result, counts).parameters
        parameters = {"real": real, "pool": {**pool, "channels_last": bool(self.channels_last)}}
        return Template("pool_quantized", parameters, self.run)

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, x_scale, x_zero, y_scale, y_zero = padded(inputs, 5)
        real = dequantize(x, one(x_scale, "x_scale"), one(x_zero, "x_zero_point"))
        (mean,) = super().run(channels_second(real) if self.channels_last else real)
        y = quantize(mean, one(y_scale, "y_scale"), zero_like(y_zero, x, "y_zero_point"))
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
        x, _ = parts
        total = k.reduce("sum", x.number.cast(np.int32) - x.zero.cast(np.int32)).cast(np.float32)
        factor = k.reduce("maximum", x.scale)
        return quantized_rows(inputs, total * (factor / k.RowLength(np.dtype(np.float32))), self._arranged, self.run)

    def _arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        axes = self.spatial(len(shape))
        return Arrangement((shape, *(() for _ in shapes[1:3])), axes, (shortened(shape, axes),))

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, x_scale, x_zero, y_scale, y_zero = inputs
        axes = self.spatial(x.ndim)
        count = int(np.prod([x.shape[axis] for axis in axes]))
        sums = x.sum(axis=axes, keepdims=True, dtype=np.int64) - count * int(one(x_zero, "x_zero_point"))
        real = sums.astype(np.float32) * (one(x_scale, "x_scale") / np.float32(count))
        return (quantize(real, one(y_scale, "y_scale"), one(y_zero, "y_zero_point")),)
