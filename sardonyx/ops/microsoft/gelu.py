"""The GELU and SiLU family, with the bias and the residual that optimizers fuse into them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx.kernel.evaluate import erf as array_erf
from sardonyx.kernel.expr import Apply, Expr, erf, gated, sigmoid
from sardonyx.kernel.program import Host, Kernel
from sardonyx.ops.activation import fast_gelu
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Elementwise, Operator, operator
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, like, same, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference

SQRT_HALF = math.sqrt(0.5)
SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)


def gelu(x: Expr) -> Expr:
    """x * Phi(x), exactly, by the error function."""
    return 0.5 * x * (1.0 + erf(x * SQRT_HALF))


@operator("Gelu", domain=DOMAIN)
class Gelu(Elementwise):
    """x * Phi(x)."""

    inputs: ClassVar[str] = "X"
    outputs: ClassVar[str] = "Y"

    def scalar(self, *inputs: Expr) -> Expr:
        (x,) = inputs
        return gelu(x)


@operator("BiasGelu", domain=DOMAIN)
class BiasGelu(Elementwise):
    """Gelu(A + B), B over the last axis."""

    inputs: ClassVar[str] = "A, B"
    outputs: ClassVar[str] = "C"

    def scalar(self, *inputs: Expr) -> Expr:
        a, b = inputs
        return gelu(a + b)


@operator("FastGelu", domain=DOMAIN)
class FastGelu(Elementwise):
    """The tanh approximation of Gelu(X + bias)."""

    inputs: ClassVar[str] = "X, bias?"
    outputs: ClassVar[str] = "Y"

    def scalar(self, *inputs: Expr) -> Expr:
        x = inputs[0]
        if len(inputs) > 1 and inputs[1] is not None:
            x = x + inputs[1]
        return fast_gelu(x)


@operator("QuickGelu", domain=DOMAIN)
class QuickGelu(Elementwise):
    """x * sigmoid(alpha * x); SiLU for alpha = 1."""

    inputs: ClassVar[str] = "X"
    outputs: ClassVar[str] = "Y"
    alpha: float = 1.702

    def scalar(self, *inputs: Expr) -> Expr:
        (x,) = inputs
        return gated(x, x if self.alpha == 1.0 else self.alpha * x)


@operator("ScaledSiLU", domain=DOMAIN)
class ScaledSiLU(Elementwise):
    """z * sigmoid(z) with z = scale * X; z and the sigmoid are each rounded to the type of X."""

    inputs: ClassVar[str] = "X, scale?"
    outputs: ClassVar[str] = "Y"
    alpha: float = 1.0

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if len({dtype for dtype in inputs if dtype is not None}) > 1:
            return Host(self.run, "X and scale have different types")
        return super().lower(inputs)

    def run(self, *inputs: Any) -> Sequence[Array]:
        x = inputs[0]
        scale = inputs[1] if len(inputs) > 1 and inputs[1] is not None else np.float32(self.alpha)
        z = (wide(np.asarray(scale)).reshape(()) * wide(x)).astype(x.dtype)
        gate = (1.0 / (1.0 + np.exp(-wide(z)))).astype(x.dtype)
        return ((wide(z) * wide(gate)).astype(x.dtype),)

    def scalar(self, *inputs: Expr) -> Expr:
        x = inputs[0]
        scale = inputs[1] if len(inputs) > 1 and inputs[1] is not None else self.alpha
        z = rounded(scale * x)
        return z * rounded(sigmoid(z))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [same(inputs[0])]


def rounded(x: Expr) -> Expr:
    """`x` rounded to its own type, where the expression around it is computed in a wider one."""
    return x if x.dtype.itemsize >= 4 else Apply(x.dtype, "cast", (x,))


@operator("BiasAdd", domain=DOMAIN)
class BiasAdd(Elementwise):
    """X + bias + skip, bias over the last axis."""

    inputs: ClassVar[str] = "X, bias, skip"
    outputs: ClassVar[str] = "Y"

    def scalar(self, *inputs: Expr) -> Expr:
        x, bias, skip = inputs
        return x + bias + skip


@operator("GatedAdd", domain=DOMAIN)
class GatedAdd(Elementwise):
    """X + Y * gate, the product rounded to the tensors' type; one gate for each row."""

    inputs: ClassVar[str] = "X, Y, gate"
    outputs: ClassVar[str] = "output"

    def scalar(self, *inputs: Expr) -> Expr:
        x, y, gate = inputs
        return x + rounded(y * gate)


@operator("BiasSplitGelu", domain=DOMAIN)
class BiasSplitGelu(Operator):
    """The halves a, b of X + bias along the last axis give a * Gelu(b) (GEGLU)."""

    inputs: ClassVar[str] = "X, bias"
    outputs: ClassVar[str] = "Y"
    host_reason: ClassVar[str] = "the halves of one tensor are read at two places"

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, bias = inputs
        if x.shape[-1] % 2:
            raise ValueError(f"the last dimension of 'X' must be even, got {x.shape[-1]}")
        left, right = np.split(wide(x) + wide(bias), 2, axis=-1)
        half = right.dtype.type(0.5)
        return ((left * (half * right * (1 + array_erf(right * right.dtype.type(SQRT_HALF))))).astype(x.dtype),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        if x is None or x.shape is None:
            return [like(x, None)]
        return [like(x, (*x.shape[:-1], dim(x, -1) // 2))]
