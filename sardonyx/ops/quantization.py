"""Linear quantisation: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, and the rounding of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.dtypes import SATURATING_FLOAT8
from sardonyx.kernel.evaluate import working_dtype
from sardonyx.ops.framework.facts import Fact, tensor
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator


def integer_range(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """The smallest and largest value of an integer dtype, 2- and 4-bit ones included; None for other dtypes."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return int(info.min), int(info.max)
    try:
        narrow = ml_dtypes.iinfo(dtype)
    except ValueError:
        return None
    return int(narrow.min), int(narrow.max)


def requantize(sums: Array, scale: Array, zero_point: Array) -> Array:
    """round(sums * scale) + zero_point, saturated, in the zero point's dtype; ties go to the even number."""
    bounds = integer_range(zero_point.dtype)
    if bounds is None:
        return np.asarray((sums * scale).astype(zero_point.dtype))
    rounded = np.rint(sums.astype(np.float32) * scale) + zero_point.astype(np.float32).reshape(())
    return np.clip(rounded, *bounds).astype(zero_point.dtype)


def spread(parameter: Array, shape: Sequence[int], axis: int, block_size: int) -> Array:
    """A scale or zero point so that it broadcasts to a tensor: one number, one along `axis`, or one for each block."""
    if parameter.size == 1 and parameter.ndim <= 1:
        return parameter.reshape(())
    where = axis + len(shape) if axis < 0 else axis
    if not 0 <= where < max(len(shape), 1):
        raise ValueError(f"axis {axis} is out of range for a tensor of rank {len(shape)}")
    if block_size > 0:
        if parameter.ndim != len(shape):
            raise ValueError(
                f"blocked quantisation needs a scale of the input's rank {len(shape)}, not {parameter.ndim}"
            )
        blocks = np.repeat(parameter, block_size, axis=where)
        return blocks[(slice(None),) * where + (slice(0, shape[where]),)]
    if parameter.ndim == 1:
        if parameter.shape[0] != shape[where]:
            raise ValueError(
                f"{parameter.shape[0]} scales do not fit dimension {where} of a tensor of shape {tuple(shape)}"
            )
        return parameter.reshape(*(1,) * where, -1, *(1,) * (len(shape) - where - 1))
    return parameter


@operator("QuantizeLinear")
class QuantizeLinear(Operator):
    """saturate(round(x / scale) + zero_point), per tensor, along an axis or per block; ties go to the even number."""

    axis: int = 1
    block_size: int = 0
    output_dtype: int = 0
    precision: int = 0
    saturate: int = 1

    host_reason = "the quantisation of NumPy: no native kernel"

    def _target(self, zero_point: ir.DataType | None) -> ir.DataType:
        if zero_point is not None:
            return zero_point
        return ir.DataType(self.output_dtype) if self.output_dtype else ir.DataType.UINT8

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, zero_point = inputs[0], inputs[2] if len(inputs) > 2 else None
        assert x is not None
        return [tensor(self._target(None if zero_point is None else zero_point.dtype), x.shape)]

    def run(self, x: Array, scale: Array, zero_point: Array | None = None) -> Sequence[Value]:
        target = zero_point.dtype if zero_point is not None else numpy_dtype(self._target(None))
        precision = numpy_dtype(ir.DataType(self.precision)) if self.precision else scale.dtype
        divisor = spread(scale.astype(working_dtype(scale.dtype)), x.shape, self.axis, self.block_size)
        if precision.kind in "iu":
            quotient: Array = (x / divisor).astype(np.float64)
        else:
            # The quotient has the precision of the scale: that of float16 is rounded before it is rounded to integers.
            wide = working_dtype(precision)
            quotient = (x.astype(wide) / divisor.astype(wide)).astype(precision).astype(wide, copy=False)
        bounds = integer_range(target)
        if bounds is not None:
            result = np.rint(quotient)
            if zero_point is not None:
                result = result + spread(zero_point, x.shape, self.axis, self.block_size).astype(result.dtype)
            limited = np.clip(result, *bounds)
            return (limited.astype(np.int32).astype(target),)
        result = quotient
        if zero_point is not None:
            result = result + spread(zero_point, x.shape, self.axis, self.block_size).astype(result.dtype)
        if self.saturate and target in SATURATING_FLOAT8:
            largest = float(ml_dtypes.finfo(target).max)
            result = np.clip(result, -largest, largest)
        return (result.astype(target),)


@operator("DequantizeLinear")
class DequantizeLinear(Operator):
    """(x - zero_point) * scale, per tensor, along an axis or per block, in the scale's dtype or `output_dtype`."""

    axis: int = 1
    block_size: int = 0
    output_dtype: int = 0

    host_reason = "the dequantisation of NumPy: no native kernel"

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, scale = inputs[0], inputs[1]
        assert x is not None
        assert scale is not None
        return [Fact(ir.TensorType(ir.DataType(self.output_dtype)) if self.output_dtype else scale.type, x.shape)]

    def run(self, x: Array, scale: Array, zero_point: Array | None = None) -> Sequence[Value]:
        target = numpy_dtype(ir.DataType(self.output_dtype)) if self.output_dtype else scale.dtype
        factor = spread(scale.astype(working_dtype(scale.dtype)), x.shape, self.axis, self.block_size)
        if zero_point is None or not zero_point.astype(np.float32).any():
            # int32 values need more digits than float32 has before the product is rounded once.
            values = x.astype(np.float64 if x.dtype == np.int32 else np.float32)
        else:
            zero = spread(zero_point, x.shape, self.axis, self.block_size)
            values = (
                x.astype(np.int64) - zero.astype(np.int64)
                if integer_range(x.dtype)
                else (x.astype(np.float32) - zero.astype(np.float32))
            )
        wide = working_dtype(target)
        return ((values.astype(wide) * factor).astype(target),)


@operator("DynamicQuantizeLinear")
class DynamicQuantizeLinear(Operator):
    """x as uint8 with the scale and zero point of its own range, which always includes zero."""

    host_reason = "the quantisation of NumPy: no native kernel"

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        assert x is not None
        return [tensor(ir.DataType.UINT8, x.shape), tensor(ir.DataType.FLOAT, ()), tensor(ir.DataType.UINT8, ())]

    def run(self, x: Array) -> Sequence[Value]:
        low = np.float32(min(0.0, float(x.min()))) if x.size else np.float32(0)
        high = np.float32(max(0.0, float(x.max()))) if x.size else np.float32(0)
        scale = np.float32((high - low) / np.float32(255)) if high != low else np.float32(1)
        zero_point = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
        y = np.clip(np.rint(x / scale) + np.float32(zero_point), 0, 255).astype(np.uint8)
        return y, np.asarray(scale, np.float32), np.asarray(zero_point, np.uint8)
