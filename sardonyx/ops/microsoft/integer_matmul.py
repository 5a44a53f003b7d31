"""Matrix products of 8- and 16-bit integers, scaled to real numbers or requantised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.kernel.program import Kernel, Template
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Cost, Operator, nbytes, operator
from sardonyx.ops.microsoft.linear_quantization import (
    Array,
    integer_product,
    integers,
    one,
    padded,
    product_flops,
    product_shape,
    quantize,
)
from sardonyx.ops.microsoft.rules import DOMAIN, dim, expect_type, like

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


def moved(facts: Sequence[Fact | None]) -> float | None:
    """The bytes of all values, where they are known."""
    sizes = [nbytes(fact) for fact in facts if fact is not None]
    return None if any(size is None for size in sizes) else sum(size or 0.0 for size in sizes)


class Product(Operator):
    """A matrix product of the first two inputs."""

    result: ClassVar[ir.DataType] = ir.DataType.FLOAT
    host_reason: ClassVar[str] = "an integer matrix product"

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        a, b = inputs[0], inputs[1]
        shape = product_shape(None if a is None else a.shape, None if b is None else b.shape)
        return [Fact(ir.TensorType(self.result), shape)]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        return Cost(product_flops(inputs[0], outputs[0] if outputs else None), moved([*inputs, *outputs]))


def column_parameter(parameter: Array | None, columns: int, name: str) -> Array | None:
    """A parameter for the whole matrix or for each column, in a shape that broadcasts over its rows.

    A parameter of more than one dimension has one row per matrix of a batch and is left as it is.
    """
    if parameter is None or parameter.ndim > 1:
        return parameter
    if parameter.size not in (1, columns):
        raise ValueError(f"input '{name}' must have 1 or {columns} elements, got {parameter.size}")
    return parameter.reshape(()) if parameter.size == 1 else parameter


def scaled_product(a: Array, a_scale: Array, b: Array, b_scale: Array, bias: Array | None) -> Array:
    """The product of integers, as float32 times the scales, plus the bias."""
    y = integer_product(a, b).astype(np.float32) * (a_scale.astype(np.float32) * b_scale.astype(np.float32))
    return y if bias is None else y + bias


@operator("MatMulIntegerToFloat", domain=DOMAIN)
class MatMulIntegerToFloat(Product):
    """(A - a_zero_point)(B - b_zero_point) * a_scale * b_scale + bias; scales of B for the whole or each column."""

    inputs: ClassVar[str] = "A, B, a_scale, b_scale, a_zero_point?, b_zero_point?, bias?"
    outputs: ClassVar[str] = "Y"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return Template("matmul_integer_to_float", {}, self.run)

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, b, a_scale, b_scale, a_zero, b_zero, bias = padded(inputs, 7)
        columns = b.shape[-1]
        left = integers(a, None if a_zero is None else one(a_zero, "a_zero_point"))
        right = integers(b, column_parameter(b_zero, columns, "b_zero_point"))
        scale = column_parameter(b_scale, columns, "b_scale")
        assert scale is not None
        y = scaled_product(left, one(a_scale, "a_scale"), right, scale, bias)
        return (y.astype(a_scale.dtype),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        (product,) = super().infer(inputs, inference)
        return [like(inputs[2], product.shape)]


@operator("DynamicQuantizeMatMul", domain=DOMAIN)
class DynamicQuantizeMatMul(Product):
    """A quantised to uint8 as DynamicQuantizeLinear does, times an integer B, scaled back to float32."""

    inputs: ClassVar[str] = "A, B, b_scale, b_zero_point?, bias?"
    outputs: ClassVar[str] = "Y"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return Template("dynamic_quantize_matmul", {}, self.run)

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, b, b_scale, b_zero, bias = padded(inputs, 5)
        columns = b.shape[-1]
        left, a_scale = dynamically_quantized(a)
        right = integers(b, column_parameter(b_zero, columns, "b_zero_point"))
        scale = column_parameter(b_scale, columns, "b_scale")
        assert scale is not None
        return (scaled_product(left, a_scale, right, scale, bias),)


def dynamically_quantized(x: Array) -> tuple[Array, Array]:
    """The whole numbers of `x` relative to their zero point, and their scale.

    As ONNX's DynamicQuantizeLinear: uint8 over the range of `x` widened to hold 0; a constant 0 has scale 1.
    """
    low = np.minimum(np.float32(0), x.min(initial=np.float32(0)))
    high = np.maximum(np.float32(0), x.max(initial=np.float32(0)))
    scale = np.float32(1) if low == high else np.float32((high - low) / np.float32(255))
    zero = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
    return integers(quantize(x, np.asarray(scale), zero), zero), np.asarray(scale)


@operator("MatMulInteger16", domain=DOMAIN)
class MatMulInteger16(Operator):
    """A matrix product of 16-bit integers in a 32-bit accumulator, signed where either input is."""

    inputs: ClassVar[str] = "A, B"
    outputs: ClassVar[str] = "Y"
    host_reason: ClassVar[str] = "an integer matrix product"

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, b = inputs
        product = integer_product(a, b, 65535)
        return (product.astype(np.uint32) if a.dtype == b.dtype == np.uint16 else product,)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        a, b = inputs
        unsigned = a is not None and b is not None and a.dtype == b.dtype == ir.DataType.UINT16
        shape = product_shape(None if a is None else a.shape, None if b is None else b.shape)
        return [Fact(ir.TensorType(ir.DataType.UINT32 if unsigned else ir.DataType.INT32), shape)]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        return Cost(product_flops(inputs[0], outputs[0] if outputs else None), moved([*inputs, *outputs]))


_BYTES = (ir.DataType.UINT8, ir.DataType.INT8)
_SCALE = (ir.DataType.FLOAT,)
_TYPES_OF_GEMM = (_BYTES, _SCALE, _BYTES, _BYTES, _SCALE, _BYTES, (ir.DataType.INT32,), _SCALE, _BYTES)


@operator("QGemm", domain=DOMAIN)
class QGemm(Operator):
    """alpha * A B + C of quantised matrices, C in the integers of the product; float32 where y_scale is absent."""

    inputs: ClassVar[str] = "A, a_scale, a_zero_point, B, b_scale, b_zero_point, C?, y_scale?, y_zero_point?"
    outputs: ClassVar[str] = "Y"
    transA: int = 0  # noqa: N815 - the name of the attribute
    transB: int = 0  # noqa: N815 - the name of the attribute
    alpha: float = 1.0

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return Template("gemm_quantized", {n: getattr(self, n) for n in ("alpha", "transA", "transB")}, self.run)

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = padded(inputs, 9)
        left = integers(a.T if self.transA else a, one(a_zero, "a_zero_point"))
        right = b.T if self.transB else b
        columns = right.shape[1]
        product = integer_product(left, integers(right, column_parameter(b_zero, columns, "b_zero_point")))
        if c is not None:
            product = product + c
        scale = column_parameter(b_scale, columns, "b_scale")
        assert scale is not None
        real = product.astype(np.float32) * (np.float32(self.alpha) * one(a_scale, "a_scale") * scale)
        if y_scale is None:
            return (real,)
        if y_zero is None:
            raise ValueError("input 'y_zero_point' must be given together with 'y_scale'")
        return (quantize(real, one(y_scale, "y_scale"), one(y_zero, "y_zero_point")),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        for place, fact in enumerate(inputs):
            expect_type(self.node, place, fact, _TYPES_OF_GEMM[place])
        a, _, _, b, _, _, _, y_scale, y_zero = padded(inputs, 9)
        rows, columns = dim(a, 1 if self.transA else 0), dim(b, 0 if self.transB else 1)
        inner, other = dim(a, 0 if self.transA else 1), dim(b, 1 if self.transB else 0)
        if isinstance(inner, int) and isinstance(other, int) and inner != other:
            raise ValueError(f"inner dimensions {inner} and {other} of the matrix product differ")
        if y_scale is None:
            return [Fact(ir.TensorType(ir.DataType.FLOAT), (rows, columns))]
        return [like(y_zero if y_zero is not None else a, (rows, columns))]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        inner = dim(inputs[0], 0 if self.transA else 1)
        rows, columns = (dim(outputs[0], axis) for axis in (0, 1))
        known = isinstance(inner, int) and isinstance(rows, int) and isinstance(columns, int)
        return Cost(2.0 * inner * rows * columns if known else None, moved([*inputs, *outputs]))  # type: ignore[operator]
