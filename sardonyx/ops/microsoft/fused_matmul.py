"""Matrix products with transpositions, a factor and an activation folded in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx.kernel.evaluate import evaluate
from sardonyx.kernel.expr import Input
from sardonyx.kernel.program import Host, Kernel, Pointwise, Template
from sardonyx.ops.activation import fast_gelu
from sardonyx.ops.framework.facts import Dim, Dims, Fact, broadcast, known
from sardonyx.ops.framework.operator import Cost, Operator, elements, nbytes, operator
from sardonyx.ops.matmul import product_template
from sardonyx.ops.microsoft.activations import activate, activation_of
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, like, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


def product_shape(a: Dims, b: Dims) -> Dims:
    """The shape of `numpy.matmul`; ValueError where the inner sizes are different numbers."""
    if not a or not b:
        raise ValueError("a matrix product needs inputs of rank 1 or more")
    rows: Dims = a[-2:-1]
    columns: Dims = b[-1:] if len(b) > 1 else ()
    inner_b: Dim = b[-2] if len(b) > 1 else b[0]
    if isinstance(a[-1], int) and isinstance(inner_b, int) and a[-1] != inner_b:
        raise ValueError(f"the inner dimensions of a matrix product differ: {a[-1]} and {inner_b}")
    return (*broadcast([a[:-2], b[:-2]]), *rows, *columns)


def product_cost(inner: Dim, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
    """Two operations for each output element and each step along the inner dimension."""
    count = elements(outputs[0]) if outputs else None
    sizes = [nbytes(fact) for fact in (*filter(None, inputs), *outputs)]
    flops = 2.0 * count * inner if count is not None and isinstance(inner, int) else None
    return Cost(flops, None if any(size is None for size in sizes) else math.fsum(size or 0.0 for size in sizes))


class ScaledProduct(Operator):
    """alpha * A @ B, each side optionally transposed."""

    inputs: ClassVar[str] = "A, B"
    outputs: ClassVar[str] = "Y"
    host_reason: ClassVar[str] = "a matrix product"
    alpha: float = 1.0
    transA: int = 0  # noqa: N815 - the attribute's name
    transB: int = 0  # noqa: N815

    def sides(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """For each input: whether its last two axes are swapped, whether its first axis is its rows."""
        return (self.transA, 0), (self.transB, 0)

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, b = inputs[0], inputs[1]
        product = self.product(a, b)
        return (product.astype(a.dtype),)

    def product(self, a: Array, b: Array) -> Array:
        """The scaled product in working precision."""
        for_a, for_b = self.sides()
        result = np.matmul(oriented(wide(a), *for_a), oriented(wide(b), *for_b))
        return np.asarray(result * result.dtype.type(self.alpha)) if self.alpha != 1.0 else np.asarray(result)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        a, b = inputs[0], inputs[1]
        if a is None or b is None or a.shape is None or b.shape is None:
            return [like(a, None)]
        for_a, for_b = self.sides()
        return [like(a, product_shape(oriented_shape(a.shape, *for_a), oriented_shape(b.shape, *for_b)))]

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        (for_a, batch_a), (for_b, batch_b) = self.sides()
        parameters = {"transA": for_a, "transBatchA": batch_a, "transB": for_b, "transBatchB": batch_b}
        return product_template("matmul", {"alpha": self.alpha, **parameters}, inputs, self.run)

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        a = inputs[0]
        if a is None or a.shape is None:
            return Cost(None, None)
        return product_cost(oriented_shape(a.shape, *self.sides()[0])[-1], inputs, outputs)


def oriented(x: Array, swap: int, rows_first: int) -> Array:
    """`x` as the product reads it: its first axis moved in front of the last, then the last two swapped."""
    if rows_first and x.ndim > 2:
        x = np.moveaxis(x, 0, -2)
    return np.swapaxes(x, -1, -2) if swap and x.ndim > 1 else x


def oriented_shape(shape: Dims, swap: int, rows_first: int) -> Dims:
    if rows_first and len(shape) > 2:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if swap and len(shape) > 1 else shape


@operator("TransposeMatMul", domain=DOMAIN)
class TransposeMatMul(ScaledProduct):
    """alpha * A @ B with the last two axes of either optionally swapped; the old name of FusedMatMul."""


@operator("FusedMatMul", domain=DOMAIN)
class FusedMatMul(ScaledProduct):
    """alpha * A @ B, the last two axes of either optionally swapped.

    With `transBatchA` the first axis of A takes the place of its rows (axis -2) and the others move forward.
    """

    transBatchA: int = 0  # noqa: N815
    transBatchB: int = 0  # noqa: N815

    def sides(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (self.transA, self.transBatchA), (self.transB, self.transBatchB)


@operator("FusedMatMulActivation", domain=DOMAIN)
class FusedMatMulActivation(FusedMatMul):
    """FusedMatMul and an elementwise activation, or Softmax or LogSoftmax over `activation_axis`."""

    activation: str
    activation_alpha: float | None = None
    activation_beta: float | None = None
    activation_gamma: float | None = None
    activation_axis: int | None = None

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if self.activation in ("Softmax", "LogSoftmax"):
            return Host(self.run, f"a matrix product and {self.activation} of its rows")
        kernel = super().lower(inputs)
        if not isinstance(kernel, Template):
            return kernel
        given = (self.activation_alpha, self.activation_beta, self.activation_gamma)
        return Template(
            kernel.name, {**kernel.parameters, "activation": activation_of(self.activation, given)}, self.run
        )

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, b = inputs[0], inputs[1]
        y = self.product(a, b)
        if self.activation in ("Softmax", "LogSoftmax"):
            axis = -1 if self.activation_axis is None else self.activation_axis
            shifted = y - y.max(axis=axis, keepdims=True)
            total = np.exp(shifted).sum(axis=axis, keepdims=True)
            y = np.exp(shifted) / total if self.activation == "Softmax" else shifted - np.log(total)
        else:
            y = activate(self.activation, y, (self.activation_alpha, self.activation_beta, self.activation_gamma))
        return (y.astype(a.dtype),)


@operator("FusedGemm", domain=DOMAIN)
class FusedGemm(Operator):
    """activation(alpha * A @ B + beta * C), A and B optionally transposed, C broadcast."""

    inputs: ClassVar[str] = "A, B, C?"
    outputs: ClassVar[str] = "Y"
    host_reason: ClassVar[str] = "a matrix product"
    activation: str | None = None
    activation_alpha: float | None = None
    activation_beta: float | None = None
    activation_gamma: float | None = None
    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0  # noqa: N815
    transB: int = 0  # noqa: N815

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, b = inputs[0], inputs[1]
        c = inputs[2] if len(inputs) > 2 else None
        y = np.matmul(oriented(wide(a), self.transA, 0), oriented(wide(b), self.transB, 0))
        if self.alpha != 1.0:
            y = y * y.dtype.type(self.alpha)
        if c is not None:
            y = y + (wide(c) if self.beta == 1.0 else wide(c) * y.dtype.type(self.beta))
        y = activate(self.activation, y, (self.activation_alpha, self.activation_beta, self.activation_gamma))
        return (y.astype(a.dtype),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        given = (self.activation_alpha, self.activation_beta, self.activation_gamma)
        parameters = {"alpha": self.alpha, "beta": self.beta, "transA": self.transA, "transB": self.transB}
        activation = activation_of(self.activation, given)
        return product_template("gemm", {**parameters, "activation": activation}, inputs, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        a, b = inputs[0], inputs[1]
        rows, inner = (dim(a, 1), dim(a, 0)) if self.transA else (dim(a, 0), dim(a, 1))
        inner_b, columns = (dim(b, 1), dim(b, 0)) if self.transB else (dim(b, 0), dim(b, 1))
        if known(inner) and known(inner_b):
            product_shape((rows, inner), (inner_b, columns))
        return [like(a, (rows, columns))]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        return product_cost(dim(inputs[0], 0 if self.transA else 1), inputs, outputs)


@operator("GemmFastGelu", domain=DOMAIN)
class GemmFastGelu(Operator):
    """The tanh approximation of Gelu(X @ W + bias)."""

    inputs: ClassVar[str] = "X, W, bias?"
    outputs: ClassVar[str] = "Y"
    host_reason: ClassVar[str] = "a matrix product"

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, w = inputs[0], inputs[1]
        product = np.matmul(wide(x), wide(w))
        if len(inputs) > 2 and inputs[2] is not None:
            product = product + wide(inputs[2])
        kernel = Pointwise((product.dtype,), (fast_gelu(Input(product.dtype, 0)),))
        return (evaluate(kernel, [product])[0].astype(x.dtype),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return product_template("matmul", {"activation": fast_gelu}, inputs, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, w = inputs[0], inputs[1]
        if x is None or w is None or x.shape is None or w.shape is None:
            return [like(x, None)]
        return [like(x, product_shape(x.shape, w.shape))]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        return product_cost(dim(inputs[0], -1), inputs, outputs)
