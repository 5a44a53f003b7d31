"""Linear quantisation: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, and the rounding of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel import expr as k
from sardonyx.kernel.dtypes import NARROW_FLOATS, TINY_INTEGERS
from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.expr import Expr
from sardonyx.kernel.program import Arrangement, Host, Kernel, Pointwise
from sardonyx.ops.cast import EXPONENT_ONLY, convert, converted
from sardonyx.ops.framework.facts import Fact, tensor
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator
from sardonyx.ops.row_kernels import Contents, Shapes, given, leaves, rows_template


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
        blocks = np.repeat(parameter, min(block_size, shape[where]), axis=where)
        return blocks[(slice(None),) * where + (slice(0, shape[where]),)]
    if parameter.ndim == 1:
        if parameter.shape[0] != shape[where]:
            raise ValueError(
                f"{parameter.shape[0]} scales do not fit dimension {where} of a tensor of shape {tuple(shape)}"
            )
        return parameter.reshape(*(1,) * where, -1, *(1,) * (len(shape) - where - 1))
    return parameter


# Integers to which and from which native code converts without a loss.
_INTEGERS = TINY_INTEGERS | set(map(np.dtype, (np.int8, np.uint8, np.int16, np.uint16)))
_PARTIAL_BLOCKS = "the axis is not known to divide into blocks of {}"


class Spreading(Protocol):
    """An operator whose scale and zero point belong to the tensor, or to the places along an axis."""

    node: ir.Node

    def run(self, *inputs: Any) -> Sequence[Value]: ...


def padded(inputs: Sequence[Any]) -> list[Any]:
    """What belongs to x, scale and zero point, None for one that is absent."""
    return [*inputs, None, None][:3]


def quantized(quotient: Expr, zero_point: Expr | None, target: np.dtype[Any]) -> Expr:
    """saturate(round(quotient) + zero_point) in an integer dtype."""
    bounds = integer_range(target)
    assert bounds is not None
    result = k.rint(quotient)
    if zero_point is not None:
        result = result + zero_point
    return k.minimum(k.maximum(result, bounds[0]), bounds[1]).cast(target)


def spread_kernel(
    operator: Spreading,
    dtypes: Sequence[np.dtype[Any] | None],
    result: Expr,
    axis: int,
    block_size: int = 0,
    names: Sequence[str] = ("scale", "zero point"),
) -> Kernel:
    """The kernel of `result`, over x, scale and zero point; one that others can join where the scale is a number.

    `axis` is that of the parameters, `block_size` how many elements along it share them; errors use the `names`.
    """
    scale = operator.node.inputs[1]
    if scale is not None and scale.shape is not None and len(scale.shape) == 0:
        return Pointwise(tuple(dtype for dtype in dtypes if dtype is not None), (result,))

    def arranged(shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        given_ones = [one for one in shapes[1:] if one is not None]
        if block_size:
            return _in_blocks(shape, given_ones, axis % len(shape), block_size)
        for name, one in zip(names, given_ones, strict=False):
            if len(one) == 1 and one != (1,) and -len(shape) <= axis < len(shape) and one[0] != shape[axis]:
                raise ValueError(f"input '{name}' is expected to have shape {(shape[axis],)}, got {one}")
        parameters = [spread_shape(one, shape, axis) for one in given_ones]
        return Arrangement((shape, *parameters), (), (shape,))

    return rows_template(dtypes, [result], arranged, operator.run)


def _in_blocks(
    shape: tuple[int, ...], parameters: Sequence[tuple[int, ...]], axis: int, block_size: int
) -> Arrangement:
    """x with the axis as blocks of elements, and one parameter for each block."""
    before, after, blocks = shape[:axis], shape[axis + 1 :], shape[axis] // block_size
    for one in parameters:
        if one != (*before, blocks, *after):
            raise ValueError(f"parameters of shape {one} do not fit blocks of {block_size} on axis {axis} of {shape}")
    divided = (*before, blocks, block_size, *after)
    return Arrangement((divided, *((*before, blocks, 1, *after) for _ in parameters)), (), (shape,))


def _has_whole_blocks(node: ir.Node, axis: int, block_size: int) -> bool:
    """Whether it is known that the axis divides into blocks."""
    x = node.inputs[0]
    if x is None or x.shape is None or not -len(x.shape) <= axis < len(x.shape):
        return False
    size = x.shape[axis]
    return isinstance(size, int) and size % block_size == 0


def spread_shape(parameter: tuple[int, ...], shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """The shape under which a scale or zero point broadcasts to a tensor of that shape, as `spread` makes it."""
    stand_in: Array = np.broadcast_to(np.int8(0), parameter)
    return tuple(spread(stand_in, shape, axis, 0).shape)


@operator("QuantizeLinear")
class QuantizeLinear(Operator):
    """saturate(round(x / scale) + zero_point), per tensor, along an axis or per block; ties go to the even number.

    The quotient has the type of the scale, or the one called `precision`. float8e8m0 holds no sign and no fraction: by
    scales of that type float32 is divided.
    """

    axis: int = 1
    block_size: int = 0
    output_dtype: int = 0
    precision: int = 0
    saturate: int = 1

    def _precision(self, scale: np.dtype[Any]) -> np.dtype[Any]:
        """The type of the quotient."""
        wanted = numpy_dtype(ir.DataType(self.precision)) if self.precision else scale
        return np.dtype(np.float32) if wanted == EXPONENT_ONLY else wanted

    def _target(self, zero_point: ir.DataType | None) -> ir.DataType:
        if zero_point is not None:
            return zero_point
        return ir.DataType(self.output_dtype) if self.output_dtype else ir.DataType.UINT8

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, zero_point = inputs[0], inputs[2] if len(inputs) > 2 else None
        assert x is not None
        return [tensor(self._target(None if zero_point is None else zero_point.dtype), x.shape)]

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        dtypes = padded(inputs)
        target = dtypes[2] or numpy_dtype(self._target(None))
        assert dtypes[1] is not None
        precision = self._precision(dtypes[1])
        if (target not in _INTEGERS and target not in NARROW_FLOATS) or precision.kind in "iu":
            return Host(self.run, f"no kernel divides {dtypes[0]} by {dtypes[1]} in {precision} to give {target}")
        if self.block_size and not _has_whole_blocks(self.node, self.axis, self.block_size):
            return Host(self.run, _PARTIAL_BLOCKS.format(self.block_size))
        x, scale, zero_point = leaves(dtypes)
        assert x is not None
        assert scale is not None
        wide = working_dtype(precision)
        quotient = (x.cast(wide) / scale.cast(wide)).cast(precision).cast(wide)
        origin = None if zero_point is None else zero_point.cast(wide)
        if target in _INTEGERS:
            result = quantized(quotient, origin, target)
        else:
            result = convert(quotient if origin is None else quotient + origin, target, bool(self.saturate))
        return spread_kernel(self, dtypes, result, self.axis, self.block_size)

    def run(self, *inputs: Any) -> Sequence[Value]:
        x, scale, zero_point = padded(inputs)
        target = zero_point.dtype if zero_point is not None else numpy_dtype(self._target(None))
        precision = self._precision(scale.dtype)
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
        return (converted(result, target, bool(self.saturate)),)


@operator("DequantizeLinear")
class DequantizeLinear(Operator):
    """(x - zero_point) * scale, per tensor, along an axis or per block, in the scale's dtype or `output_dtype`."""

    axis: int = 1
    block_size: int = 0
    output_dtype: int = 0

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, scale = inputs[0], inputs[1]
        assert x is not None
        assert scale is not None
        return [Fact(ir.TensorType(ir.DataType(self.output_dtype)) if self.output_dtype else scale.type, x.shape)]

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        dtypes = padded(inputs)
        target = numpy_dtype(ir.DataType(self.output_dtype)) if self.output_dtype else dtypes[1]
        floats = dtypes[0] in NARROW_FLOATS
        if not (floats or dtypes[0] in _INTEGERS or dtypes[0] == np.int32) or target is None:
            return Host(self.run, f"no kernel makes {dtypes[0]} real")
        if self.block_size and not _has_whole_blocks(self.node, self.axis, self.block_size):
            return Host(self.run, _PARTIAL_BLOCKS.format(self.block_size))
        x, scale, zero_point = leaves(dtypes)
        assert x is not None
        assert scale is not None
        exact = x.dtype if floats else np.dtype(np.int64 if dtypes[0] == np.int32 else np.int32)
        values = x if zero_point is None else x.cast(exact) - zero_point.cast(exact)
        wide = working_dtype(target)
        real = (values.cast(wide) * scale.cast(wide)).cast(target)
        return spread_kernel(self, dtypes, real, self.axis, self.block_size)

    def run(self, *inputs: Any) -> Sequence[Value]:
        x, scale, zero_point = padded(inputs)
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


def range_parameters(low: Expr, high: Expr) -> tuple[Expr, Expr]:
    """Scale and zero point, as a real number, of uint8 over a range widened to hold 0."""
    low, high = k.minimum(low, 0), k.maximum(high, 0)
    scale = k.where(high.equals(low), 1, (high - low) / 255)
    return scale, k.minimum(k.maximum(k.rint(-low / scale), 0), 255)


def dynamically_quantized(x: Expr) -> list[Expr]:
    """uint8 over the range of all of `x` widened to hold 0, the scale, and the zero point."""
    scale, zero_point = range_parameters(k.reduce("minimum", x), k.reduce("maximum", x))
    byte = np.dtype(np.uint8)
    return [quantized(x / scale, zero_point, byte), scale, zero_point.cast(byte)]


@operator("DynamicQuantizeLinear")
class DynamicQuantizeLinear(Operator):
    """x as uint8 with the scale and zero point of its own range, which always includes zero."""

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        assert x is not None
        return [tensor(ir.DataType.UINT8, x.shape), tensor(ir.DataType.FLOAT, ()), tensor(ir.DataType.UINT8, ())]

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if inputs[0] != np.float32:
            return Host(self.run, f"no kernel quantises {inputs[0]}: ONNX defines the operator for float32")
        (x,) = leaves(inputs)
        assert x is not None
        outputs = dynamically_quantized(x)
        return rows_template(inputs, outputs, self._arranged, self.run)

    def _arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        return Arrangement((shape,), tuple(range(len(shape))), (shape, (), ()))

    def run(self, x: Array) -> Sequence[Value]:
        low = np.float32(min(0.0, float(x.min()))) if x.size else np.float32(0)
        high = np.float32(max(0.0, float(x.max()))) if x.size else np.float32(0)
        scale = np.float32((high - low) / np.float32(255)) if high != low else np.float32(1)
        zero_point = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
        y = np.clip(np.rint(x / scale) + np.float32(zero_point), 0, 255).astype(np.uint8)
        return y, np.asarray(scale, np.float32), np.asarray(zero_point, np.uint8)
