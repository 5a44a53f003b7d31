"""Activations: functions of one element with a shape of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.kernel import expr as k
from sardonyx.kernel.expr import Expr, Input
from sardonyx.kernel.program import Arrangement, Host, Kernel
from sardonyx.ops.elementwise import aligned
from sardonyx.ops.framework.facts import Fact, same
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Elementwise, Value, operator
from sardonyx.ops.row_kernels import Contents, Shapes, given, rows_template

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
# From here on tanh(log(1 + exp(x))) is 1 in every format.
_TANH_IS_ONE = 20.0
_UNLIKE = "SwiGLU needs inputs of one shape, not {} and {}"


def fast_gelu(x: Expr) -> Expr:
    """GELU by its cubic tanh approximation (Hendrycks and Gimpel 2016): (1 + tanh(u)) / 2 is the sigmoid of 2 u."""
    return k.gated(x, x * (2 * _SQRT_2_OVER_PI + (2 * _SQRT_2_OVER_PI * 0.044715) * (x * x)))


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)), written so that nothing overflows."""
    return k.maximum(x, 0) + k.log1p(k.exp(-k.absolute(x)))


@operator("Relu")
class Relu(Elementwise):
    """max(0, x); NaN stays NaN."""

    def scalar(self, x: Expr) -> Expr:
        return k.maximum(x, 0)


@operator("LeakyRelu")
class LeakyRelu(Elementwise):
    """x, or alpha * x below zero."""

    alpha: float = 0.01

    def scalar(self, x: Expr) -> Expr:
        return k.where(x < 0, x * self.alpha, x)


@operator("PRelu")
class OldPRelu(Elementwise):
    """PRelu before opset 7: a slope of one dimension belongs to the channels, dimension 1."""

    def scalar(self, x: Expr, slope: Expr) -> Expr:
        return k.where(x < 0, x * slope, x)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return Host(self.run, "the slope's place depends on the run's ranks")

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        assert inputs[0] is not None
        return [Fact(inputs[0].type, inputs[0].shape)]

    def run(self, x: Array, slope: Array) -> Sequence[Value]:
        return super().run(x, aligned(x.ndim, slope, 1) if slope.ndim == 1 and x.ndim > 1 else slope)


@operator("PRelu", since=7)
class PRelu(Elementwise):
    """x, or slope * x below zero; the slope broadcasts to x."""

    def scalar(self, x: Expr, slope: Expr) -> Expr:
        return k.where(x < 0, x * slope, x)


@operator("Elu")
class Elu(Elementwise):
    """x, or alpha * (exp(x) - 1) below zero."""

    alpha: float = 1.0

    def scalar(self, x: Expr) -> Expr:
        return k.where(x < 0, self.alpha * k.expm1(x), x)


@operator("Selu")
class Selu(Elementwise):
    """gamma * x, or gamma * alpha * (exp(x) - 1) where x <= 0."""

    alpha: float = 1.67326319217681884765625
    gamma: float = 1.05070102214813232421875

    def scalar(self, x: Expr) -> Expr:
        return self.gamma * k.where(x <= 0, self.alpha * k.expm1(x), x)


@operator("Celu")
class Celu(Elementwise):
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""

    alpha: float = 1.0

    def scalar(self, x: Expr) -> Expr:
        return k.maximum(x, 0) + k.minimum(self.alpha * k.expm1(x / self.alpha), 0)


@operator("Gelu")
class Gelu(Elementwise):
    """x * Phi(x); `approximate="tanh"` uses the cubic tanh form."""

    approximate: str = "none"

    def scalar(self, x: Expr) -> Expr:
        if self.approximate == "tanh":
            return fast_gelu(x)
        return 0.5 * x * (1 + k.erf(x * _SQRT_HALF))


@operator("Mish")
class Mish(Elementwise):
    """x * tanh(log(1 + exp(x))), which is x * n / (n + 2) with n = exp(x) * (exp(x) + 2)."""

    def scalar(self, x: Expr) -> Expr:
        power = k.exp(k.minimum(x, _TANH_IS_ONE))
        n = power * (power + 2)
        return x * (n / (n + 2))


@operator("Softplus")
class Softplus(Elementwise):
    """log(1 + exp(x))."""

    def scalar(self, x: Expr) -> Expr:
        return softplus(x)


@operator("Softsign")
class Softsign(Elementwise):
    """x / (1 + |x|)."""

    def scalar(self, x: Expr) -> Expr:
        return x / (1 + k.absolute(x))


@operator("Sigmoid")
class Sigmoid(Elementwise):
    """1 / (1 + exp(-x))."""

    def scalar(self, x: Expr) -> Expr:
        return k.sigmoid(x)


@operator("Tanh")
class Tanh(Elementwise):
    """The hyperbolic tangent."""

    def scalar(self, x: Expr) -> Expr:
        return k.tanh(x)


@operator("HardSigmoid")
class HardSigmoid(Elementwise):
    """alpha * x + beta limited to [0, 1]."""

    alpha: float = 0.2
    beta: float = 0.5

    def scalar(self, x: Expr) -> Expr:
        return k.maximum(k.minimum(self.alpha * x + self.beta, 1), 0)


@operator("HardSwish")
class HardSwish(Elementwise):
    """x * HardSigmoid(x) with alpha 1/6 and beta 1/2."""

    def scalar(self, x: Expr) -> Expr:
        return x * k.maximum(k.minimum(x * (1 / 6) + 0.5, 1), 0)


@operator("Swish")
class Swish(Elementwise):
    """x * sigmoid(alpha * x)."""

    alpha: float = 1.0

    def scalar(self, x: Expr) -> Expr:
        return k.gated(x, x if self.alpha == 1.0 else self.alpha * x)


@operator("SwiGLU")
class SwiGLU(Elementwise):
    """swish(gate) * value; the two have one shape, and neither broadcasts to the other."""

    alpha: float = 1.0

    def scalar(self, gate: Expr, value: Expr) -> Expr:
        return k.gated(gate, self.alpha * gate) * value

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        gate, value = inputs
        assert gate is not None
        assert value is not None
        if gate.shape is None or value.shape is None:
            return [Fact(gate.type, value.shape if gate.shape is None else gate.shape)]
        pairs = list(zip(gate.shape, value.shape, strict=False))
        differ = any(isinstance(one, int) and isinstance(other, int) and one != other for one, other in pairs)
        if differ or len(gate.shape) != len(value.shape):
            raise ValueError(_UNLIKE.format(gate.shape, value.shape))
        return [Fact(gate.type, tuple(one if isinstance(one, int) else other for one, other in pairs))]

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if self._is_alike():
            return self.pointwise(inputs)
        operands = [Input(dtype, index) for index, dtype in enumerate(inputs) if dtype is not None]
        return rows_template(inputs, [self.scalar(*operands)], self._arranged, self.run)

    def _is_alike(self) -> bool:
        """Whether the shapes are known to be one; of the model's inputs names are not: runs may give them any sizes."""
        gate, value = (None if one is None else one.shape for one in self.node.inputs)
        if gate is None or value is None or len(gate) != len(value):
            return False
        inner = all(one is not None and one.producer() is not None for one in self.node.inputs)
        return all(same(one, other) and (inner or isinstance(one, int)) for one, other in zip(gate, value, strict=True))

    def _arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        gate, value = map(given, shapes)
        if gate != value:
            raise ValueError(_UNLIKE.format(gate, value))
        return Arrangement((gate, value), (), (gate,))

    def run(self, gate: Array, value: Array) -> Sequence[Value]:
        if gate.shape != value.shape:
            raise ValueError(_UNLIKE.format(gate.shape, value.shape))
        return super().run(gate, value)


@operator("ThresholdedRelu")
class ThresholdedRelu(Elementwise):
    """x above alpha, else zero."""

    alpha: float = 1.0

    def scalar(self, x: Expr) -> Expr:
        return k.where(x > self.alpha, x, 0)


@operator("Shrink")
class Shrink(Elementwise):
    """x moved towards zero by `bias` outside [-lambd, lambd], zero inside."""

    lambd: float = 0.5
    bias: float = 0.0

    def scalar(self, x: Expr) -> Expr:
        # The bounds are real numbers, so integers are compared and moved as such.
        real = x.cast(np.float64) if x.dtype.kind in "iu" else x
        moved = k.where(real < -self.lambd, real + self.bias, k.where(real > self.lambd, real - self.bias, 0))
        return moved.cast(x.dtype)
