"""MatMulNBits: a matrix product whose weight has 2, 4 or 8 bits and a scale for each block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.kernel.program import Kernel, Template
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Cost, Operator, operator
from sardonyx.ops.microsoft.integer_matmul import moved
from sardonyx.ops.microsoft.linear_quantization import padded, product_flops
from sardonyx.ops.microsoft.packed_weights import Array, WeightCache, expand_blocks, unpack
from sardonyx.ops.microsoft.rules import DOMAIN, dim, like, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


def product(a: Array, weight: Array, bias: Array | None) -> Array:
    """a weight^T + bias in float32, rounded once to the type of `a`; `weight` has the shape (N, K)."""
    if a.ndim == 0 or a.shape[-1] != weight.shape[1]:
        raise ValueError(f"the last dimension of input 'A' must be {weight.shape[1]}, got shape {a.shape}")
    y: Array = np.matmul(wide(a), weight.T)
    if bias is not None:
        if bias.size != weight.shape[0]:
            raise ValueError(f"input 'bias' must have {weight.shape[0]} elements, got {bias.size}")
        y = y + wide(bias).reshape(-1)
    return y.astype(a.dtype, copy=False)


class WeightOnlyProduct(Operator):
    """A product with a compressed weight: the shapes and the cost follow from N and K."""

    host_reason: ClassVar[str] = "the weight is made real once, then multiplied by NumPy"

    def columns(self, inputs: Sequence[Fact | None]) -> tuple[Any, Any]:
        """The number of output columns and of inner elements, known or symbolic."""
        raise NotImplementedError

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        a = inputs[0]
        columns, inner = self.columns(inputs)
        if a is None or a.shape is None:
            return [like(a, None)]
        found = dim(a, -1)
        if isinstance(found, int) and isinstance(inner, int) and found != inner:
            raise ValueError(f"the last dimension of input 'A' must be {inner}, got {found}")
        return [like(a, (*a.shape[:-1], columns))]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        return Cost(product_flops(inputs[0], outputs[0] if outputs else None), moved([*inputs, *outputs]))


@operator("MatMulNBits", domain=DOMAIN)
class MatMulNBits(WeightOnlyProduct):
    """A times the transpose of a weight (N, K) of `bits` bits: (q - zero_point) * scale, one pair for each block.

    `run` computes the product in float32. `accuracy_level` states how coarse an engine may be: kernels round the rows
    of A to bytes at level 4, one scale for each block, and compute in float32 at all others.
    """

    inputs: ClassVar[str] = "A, B, scales, zero_points?, g_idx?, bias?"
    outputs: ClassVar[str] = "Y"
    K: int
    N: int
    block_size: int
    bits: int = 4
    accuracy_level: int = 0
    weight_prepacked: int = 0

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        if self.weight_prepacked:
            raise errors.NotImplemented(
                f"MatMulNBits node '{node.name}' has weight_prepacked={self.weight_prepacked}: its weight is laid out "
                "for one GPU; export the model with weight_prepacked=0"
            )
        self._cache = WeightCache(node, (1, 2, 3, 4))

    def columns(self, inputs: Sequence[Fact | None]) -> tuple[Any, Any]:
        return self.N, self.K

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        names = ("K", "N", "bits", "block_size", "accuracy_level")
        parameters = {name: getattr(self, name) for name in names}
        return Template("matmul_nbits", {**parameters, "weight": self.weight}, self.run)

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, b, scales, zero_points, g_idx, bias = padded(inputs, 6)
        sources = (b, scales, zero_points, g_idx)
        weight = self._cache.get(sources, lambda: self.weight(b, scales, zero_points, g_idx))
        return (product(a, weight, bias),)

    def weight(self, b: Array, scales: Array, zero_points: Array | None, g_idx: Array | None) -> Array:
        """The real weight, (N, K) in float32."""
        rows, length = self.N, self.K
        blocks = -(-length // self.block_size)
        if b.size != rows * blocks * self.block_size * self.bits // 8:
            raise ValueError(f"input 'B' of shape {b.shape} does not hold {rows} x {length} values of {self.bits} bits")
        if scales.size != rows * blocks:
            raise ValueError(f"input 'scales' must have {rows} x {blocks} elements, got shape {scales.shape}")
        codes = unpack(b.reshape(rows, -1), self.bits)[:, :length].astype(np.float32)
        steps = wide(scales).reshape(rows, blocks)
        origins = self.origins(zero_points, rows, blocks)
        if g_idx is not None:
            groups = g_idx.reshape(-1)[:length]
            return (codes - origins[:, groups]) * steps[:, groups]
        codes -= expand_blocks(origins, self.block_size, length)
        codes *= expand_blocks(steps, self.block_size, length)
        return codes

    def origins(self, zero_points: Array | None, rows: int, blocks: int) -> Array:
        """The zero points as (N, blocks) in float32: packed, real, or the middle of the range."""
        if zero_points is None:
            return np.full((rows, blocks), 1 << (self.bits - 1), np.float32)
        if zero_points.dtype != np.uint8:
            return wide(zero_points).reshape(rows, blocks)
        return unpack(zero_points.reshape(rows, -1), self.bits)[:, :blocks].astype(np.float32)
