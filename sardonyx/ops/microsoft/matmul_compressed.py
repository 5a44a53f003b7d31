"""Matrix products with weights of 4- and 8-bit floating-point types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.program import Kernel, Template
from sardonyx.ops.framework.facts import Fact, unknown_dim
from sardonyx.ops.framework.operator import Cost, Operator, operator
from sardonyx.ops.microsoft.integer_matmul import moved
from sardonyx.ops.microsoft.linear_quantization import one, padded
from sardonyx.ops.microsoft.matmul_nbits import WeightOnlyProduct, product
from sardonyx.ops.microsoft.packed_weights import E2M1, FP4, NF4, Array, WeightCache, expand_blocks, float8_bits, unpack
from sardonyx.ops.microsoft.rules import DOMAIN, dim, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


@operator("MatMulBnb4", domain=DOMAIN)
class MatMulBnb4(WeightOnlyProduct):
    """A times a weight (N, K) of bitsandbytes' FP4 or NF4 codes, flattened and cut into blocks with one absmax each.

    The first of two codes is in the high half of its byte. With transB = 0 the weight is not transposed.
    """

    inputs: ClassVar[str] = "A, B, absmax"
    outputs: ClassVar[str] = "Y"
    K: int
    N: int
    block_size: int
    quant_type: int
    training_mode: int = 0
    transB: int = 1  # noqa: N815 - the name of the attribute

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        self._cache = WeightCache(node, (1, 2))

    def columns(self, inputs: Sequence[Fact | None]) -> tuple[Any, Any]:
        return (self.N, self.K) if self.transB else (self.K, self.N)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        inner = self.K if self.transB else self.N
        parameters = {"weight": self.weight, "inner": inner, "transposed": bool(self.transB)}
        return Template("compressed_product", parameters, self.run)

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, b, absmax = inputs
        weight = self._cache.get((b, absmax), lambda: self.weight(b, absmax))
        return (product(a, weight if self.transB else weight.T, None),)

    def weight(self, b: Array, absmax: Array) -> Array:
        """The real weight, (N, K) in float32."""
        count = self.N * self.K
        if b.size != (count + 1) // 2:
            raise ValueError(
                f"input 'B' must have {(count + 1) // 2} bytes for {self.N} x {self.K} values, got {b.size}"
            )
        if absmax.size != -(-count // self.block_size):
            raise ValueError(f"input 'absmax' must have {-(-count // self.block_size)} elements, got {absmax.size}")
        if self.quant_type not in (0, 1):
            raise ValueError(f"attribute 'quant_type' must be 0 (FP4) or 1 (NF4), not {self.quant_type}")
        codes = np.stack([b.reshape(-1) >> 4, b.reshape(-1) & 15], axis=-1).reshape(-1)[:count]
        values = (NF4 if self.quant_type else FP4)[codes]
        return np.asarray(values * expand_blocks(wide(absmax).reshape(-1), self.block_size, count)).reshape(
            self.N, self.K
        )


@operator("MatMulFpQ4", domain=DOMAIN)
class MatMulFpQ4(WeightOnlyProduct):
    """A times a weight (K, N) of 4-bit codes in a blob: column after column, blocks of 32 elements of one column.

    A block is a float32 scale, a zero point byte (type 1; 8 for type 0) and 16 bytes: byte i has element i in its low
    and element i + 16 in its high half.
    """

    inputs: ClassVar[str] = "A, B, B_shape"
    outputs: ClassVar[str] = "Y"
    blk_quant_type: int = 1

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        if self.blk_quant_type not in (0, 1):
            raise errors.NotImplemented(
                f"MatMulFpQ4 node '{node.name}' has blk_quant_type={self.blk_quant_type}: "
                "the layouts of types 0 and 1 are known"
            )
        self._cache = WeightCache(node, (1, 2))

    def columns(self, inputs: Sequence[Fact | None]) -> tuple[Any, Any]:
        shape = inputs[2].elements if inputs[2] is not None else None
        return (shape[1], shape[0]) if shape is not None else (unknown_dim(), unknown_dim())

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, b, shape = inputs
        return (product(a, self._cache.get((b, shape), lambda: self.weight(b, shape)), None),)

    def weight(self, b: Array, shape: Array) -> Array:
        """The real weight, (N, K) in float32."""
        length, columns = (int(size) for size in shape)
        blocks, start = -(-length // 32), 4 + self.blk_quant_type
        if b.size != columns * blocks * (start + 16):
            raise ValueError(f"input 'B' must have {columns * blocks * (start + 16)} bytes, got {b.size}")
        blob = b.reshape(columns, blocks, start + 16)
        steps = np.ascontiguousarray(blob[..., :4]).view(np.float32)
        origins = blob[..., 4:5].astype(np.float32) if self.blk_quant_type else np.float32(8)
        codes = np.concatenate([blob[..., start:] & 15, blob[..., start:] >> 4], axis=-1).astype(np.float32)
        return np.asarray(((codes - origins) * steps).reshape(columns, -1)[:, :length])


@operator("MatMulBlockQuantizedFp8Weight", domain=DOMAIN)
class MatMulBlockQuantizedFp8Weight(WeightOnlyProduct):
    """A times the transpose of a float8 E4M3 weight with a scale for each block of K; with a_scale, A is quantised."""

    inputs: ClassVar[str] = "A, B, b_scale, a_scale?, bias?"
    outputs: ClassVar[str] = "Y"
    block_size: int = 128

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        self._cache = WeightCache(node, (1, 2))

    def columns(self, inputs: Sequence[Fact | None]) -> tuple[Any, Any]:
        return dim(inputs[1], 0), dim(inputs[1], 1)

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, b, b_scale, a_scale, bias = padded(inputs, 5)
        weight = self._cache.get((b, b_scale), lambda: self.weight(b, b_scale))
        if a_scale is None:
            return (product(a, weight, bias),)
        step = one(a_scale, "a_scale")
        # E4M3 has no infinity: what does not fit becomes its greatest number.
        codes = np.clip(wide(a) / step, -448.0, 448.0).astype(ml_dtypes.float8_e4m3fn)
        return (product(codes.astype(np.float32) * step, weight, bias).astype(a.dtype),)

    def weight(self, b: Array, b_scale: Array) -> Array:
        return np.asarray(b.astype(np.float32) * expand_blocks(b_scale, self.block_size, b.shape[1]))


@operator("MatMulBlockQuantizedFp4Weight", domain=DOMAIN)
class MatMulBlockQuantizedFp4Weight(WeightOnlyProduct):
    """A times the transpose of an NVFP4 weight: E2M1 codes, an E4M3 scale for each block of K, one global scale.

    The real weight is rounded to the type of A before it is multiplied; `input_scale` has no effect.
    """

    inputs: ClassVar[str] = "A, B, weight_scale, weight_scale_2, input_scale?, bias?"
    outputs: ClassVar[str] = "Y"
    block_size: int = 16

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        self._cache = WeightCache(node, (1, 2, 3))

    def columns(self, inputs: Sequence[Fact | None]) -> tuple[Any, Any]:
        half = dim(inputs[1], 1)
        return dim(inputs[1], 0), half * 2

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, b, scale, overall, _, bias = padded(inputs, 6)
        weight = self._cache.get((b, scale, overall), lambda: self.weight(b, scale, overall, a.dtype))
        return (product(a, weight, bias),)

    def weight(self, b: Array, scale: Array, overall: Array, dtype: np.dtype[Any]) -> Array:
        codes = unpack(b, 4)
        steps = float8_bits(scale) * one(overall, "weight_scale_2")
        real = E2M1[codes] * expand_blocks(steps, self.block_size, codes.shape[1])
        return real.astype(dtype).astype(np.float32)


@operator("GemmFloat8", domain=DOMAIN)
class GemmFloat8(Operator):
    """alpha * scaleA A * scaleB B + beta * C, optionally Relu, rounded to the type of attribute `dtype`."""

    inputs: ClassVar[str] = "A, B, C?, scaleA?, scaleB?, scaleY?"
    outputs: ClassVar[str] = "Y"
    activation: str = "NONE"
    alpha: float = 1.0
    beta: float = 0.0
    dtype: int = 1
    transA: int = 0  # noqa: N815 - the name of the attribute
    transB: int = 0  # noqa: N815 - the name of the attribute
    host_reason: ClassVar[str] = "an 8-bit floating-point matrix product"

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        if self.activation not in ("NONE", "RELU"):
            raise errors.NotImplemented(
                f"GemmFloat8 node '{node.name}' has activation='{self.activation}': NONE and RELU are known"
            )
        if len(node.inputs) > 5 and node.inputs[5] is not None:
            raise errors.NotImplemented(
                f"GemmFloat8 node '{node.name}' scales its output (input 'scaleY'): remove the scale"
            )

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, b, c, a_scale, b_scale, _ = padded(inputs, 6)
        left, right = wide(a.T if self.transA else a), wide(b.T if self.transB else b)
        scale: Array = np.asarray(self.alpha, np.float32)
        for factor, name in ((a_scale, "scaleA"), (b_scale, "scaleB")):
            if factor is not None:
                scale = scale * one(factor, name)
        y = scale * np.matmul(left, right)
        if c is not None:
            y = y + np.float32(self.beta) * wide(c)
        if self.activation == "RELU":
            y = np.maximum(y, 0)
        return (y.astype(numpy_dtype(ir.DataType(self.dtype))),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        rows, columns = dim(inputs[0], 1 if self.transA else 0), dim(inputs[1], 0 if self.transB else 1)
        return [Fact(ir.TensorType(ir.DataType(self.dtype)), (rows, columns))]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        inner = dim(inputs[0], 0 if self.transA else 1)
        rows, columns = (dim(outputs[0], axis) for axis in (0, 1))
        known = isinstance(inner, int) and isinstance(rows, int) and isinstance(columns, int)
        return Cost(2.0 * inner * rows * columns if known else None, moved([*inputs, *outputs]))  # type: ignore[operator]
