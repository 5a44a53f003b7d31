"""Elementwise operators on linearly quantised tensors: each parameter belongs to a whole tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.kernel import expr as k
from sardonyx.kernel.expr import Expr
from sardonyx.kernel.program import Host, Kernel, Pointwise, Template
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Dims, Fact
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.linear_quantization import (
    Array,
    bounds,
    broadcast_fact,
    dequantize,
    integers,
    merged,
    one,
    padded,
    quantize,
    saturate,
)
from sardonyx.ops.microsoft.rules import DOMAIN, SameAsFirst, like
from sardonyx.ops.row_kernels import leaves

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


def zero_like(zero_point: Array | None, x: Array, name: str) -> Array:
    """The output's zero point; 0 of the type of `x` where it is not given."""
    return np.zeros((), x.dtype) if zero_point is None else one(zero_point, name)


@dataclass(frozen=True)
class Quantity:
    """A quantised operand of a kernel: its integers, its scale and its zero point, all in float32."""

    number: Expr
    scale: Expr
    zero: Expr


_BYTES = frozenset({"uint8", "int8"})


def quantities(dtypes: Sequence[np.dtype[Any] | None], *places: tuple[int | None, int, int]) -> list[Quantity] | None:
    """Operands from the places of their integers, scale and zero point among the inputs; None for no bytes.

    The integers of a result, without a place, are 0.
    """
    leaves: list[Expr | None] = []
    for dtype in dtypes:
        count = sum(leaf is not None for leaf in leaves)
        leaves.append(None if dtype is None else k.Input(dtype, count).cast(np.float32))
    nothing = k.constant(0, np.float32)
    found = []
    for number, scale, zero in places:
        kinds = [dtypes[place] for place in (number, zero) if place is not None]
        step = leaves[scale]
        if step is None or any(kind is not None and kind.name not in _BYTES for kind in kinds):
            return None
        found.append(Quantity((None if number is None else leaves[number]) or nothing, step, leaves[zero] or nothing))
    return found


def are_numbers(node: ir.Node, places: Sequence[int], beside: Sequence[int] = ()) -> bool:
    """Whether the inputs at these places, where they are given, are known to have one element each.

    Those `beside` which they are broadcast must have their rank at least, or the result would have more axes.
    """

    def shapes(of: Sequence[int]) -> list[ir.Shape | None]:
        return [value.shape for place in of if place < len(node.inputs) and (value := node.inputs[place]) is not None]

    given = shapes(places)
    most = max((len(shape) for shape in shapes(beside) if shape is not None), default=0) if beside else None
    return all(
        shape is not None and all(dim == 1 for dim in shape) and (most is None or len(shape) <= most) for shape in given
    )


def rescaled(value: Expr, target: Quantity) -> Expr:
    """A real number in units of a result's scale, rounded, with its zero point added."""
    return k.rint(value / target.scale) + target.zero


def saturated(value: Expr, target: np.dtype[Any]) -> Expr:
    """A real number rounded to the nearest of the integers of a type, ties to even."""
    low, high = bounds(target)
    return k.minimum(k.maximum(k.rint(value), low), high).cast(target)


class Binary(Operator):
    """A function of two quantised tensors that broadcast against each other."""

    inputs: ClassVar[str] = "A, A_scale, A_zero_point?, B, B_scale, B_zero_point?, C_scale, C_zero_point?"
    outputs: ClassVar[str] = "C"
    host_reason: ClassVar[str] = "an elementwise function of quantised tensors"

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        a = inputs[0]
        return [broadcast_fact(None if a is None else a.type, [a, inputs[3]])]

    def real(self, a: Quantity, b: Quantity, c: Quantity) -> Expr:
        """The result in units of its scale, not yet rounded."""
        raise NotImplementedError

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parts = quantities(padded(inputs, 8), (0, 1, 2), (3, 4, 5), (None, 6, 7))
        if parts is None or not are_numbers(self.node, (1, 2, 4, 5, 6, 7), (0, 3)):
            return Host(self.run, self.host_reason)
        target = inputs[7] if len(inputs) > 7 and inputs[7] is not None else inputs[0]
        assert target is not None
        dtypes = tuple(dtype for dtype in inputs if dtype is not None)
        return Pointwise(dtypes, (saturated(self.real(*parts), target),))


@operator("QLinearAdd", domain=DOMAIN)
class QLinearAdd(Binary):
    """The sum of the real numbers that A and B stand for, quantised."""

    def real(self, a: Quantity, b: Quantity, c: Quantity) -> Expr:
        a_step, b_step = a.scale / c.scale, b.scale / c.scale
        constant = c.zero - (a_step * a.zero + b_step * b.zero)
        return a.number * a_step + (b.number * b_step + constant)

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, a_scale, a_zero, b, b_scale, b_zero, c_scale, c_zero = padded(inputs, 8)
        target = one(c_scale, "C_scale")
        zero = zero_like(c_zero, a, "C_zero_point")
        a_step, b_step = one(a_scale, "A_scale") / target, one(b_scale, "B_scale") / target
        # One constant and two fused multiply-adds, each rounded to float32, as onnxruntime's kernels do it: float64
        # holds the products exactly.
        a_origin = one(a_zero, "A_zero_point").astype(np.float32)
        b_origin = one(b_zero, "B_zero_point").astype(np.float32)
        constant = zero.astype(np.float32) - (a_step * a_origin + b_step * b_origin)
        part = (b.astype(np.float64) * b_step + constant).astype(np.float32)
        return (saturate((a.astype(np.float64) * a_step + part).astype(np.float32), zero.dtype),)


@operator("QLinearMul", domain=DOMAIN)
class QLinearMul(Binary):
    """The product of the real numbers that A and B stand for, quantised."""

    def real(self, a: Quantity, b: Quantity, c: Quantity) -> Expr:
        scale = a.scale * b.scale / c.scale
        product = (a.number - a.zero) * (b.number - b.zero) * scale
        # onnxruntime rounds the product before the sum: a bound that nothing reaches keeps them apart.
        return k.maximum(product, -1e30) + c.zero

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, a_scale, a_zero, b, b_scale, b_zero, c_scale, c_zero = padded(inputs, 8)
        product = integers(a, one(a_zero, "A_zero_point")) * integers(b, one(b_zero, "B_zero_point"))
        scale = one(a_scale, "A_scale") * one(b_scale, "B_scale") / one(c_scale, "C_scale")
        zero = zero_like(c_zero, a, "C_zero_point")
        return (saturate(product.astype(np.float32) * scale + zero.astype(np.float32), zero.dtype),)


class Lookup(SameAsFirst):
    """A function of one quantised tensor, read from a table of its 256 possible values."""

    inputs: ClassVar[str] = "X, X_scale, X_zero_point?, Y_scale, Y_zero_point?"
    outputs: ClassVar[str] = "Y"
    host_reason: ClassVar[str] = "a table lookup"

    def real(self, x: Array) -> Array:
        """The function, on float32."""
        raise NotImplementedError

    def scalar(self, x: Expr) -> Expr:
        """The same as an expression."""
        raise NotImplementedError

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parts = quantities(padded(inputs, 5), (0, 1, 2), (None, 3, 4))
        if parts is None or not are_numbers(self.node, (1, 2, 3, 4), (0,)):
            return Host(self.run, self.host_reason)
        x, y = parts
        target = inputs[4] if len(inputs) > 4 and inputs[4] is not None else inputs[0]
        assert target is not None
        value = rescaled(self.scalar((x.number - x.zero) * x.scale), y)
        return Pointwise(tuple(dtype for dtype in inputs if dtype is not None), (saturated(value, target),))

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, x_scale, x_zero, y_scale, y_zero = padded(inputs, 5)
        every = np.arange(256, dtype=np.uint8).view(x.dtype)
        values = self.real(dequantize(every, one(x_scale, "X_scale"), one(x_zero, "X_zero_point")))
        table = quantize(values, one(y_scale, "Y_scale"), zero_like(y_zero, x, "Y_zero_point"))
        return (table[x.view(np.uint8)],)


@operator("QLinearSigmoid", domain=DOMAIN)
class QLinearSigmoid(Lookup):
    """1 / (1 + exp(-x)), quantised."""

    def real(self, x: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(1 / (1 + np.exp(-x)))

    def scalar(self, x: Expr) -> Expr:
        return k.sigmoid(x)


@operator("QLinearLeakyRelu", domain=DOMAIN)
class QLinearLeakyRelu(Lookup):
    """alpha * x for negative x, quantised."""

    alpha: float = 0.01

    def real(self, x: Array) -> Array:
        return np.where(x < 0, np.float32(self.alpha) * x, x)

    def scalar(self, x: Expr) -> Expr:
        return k.where(x < 0, x * self.alpha, x)


@operator("QLinearWhere", domain=DOMAIN)
class QLinearWhere(Operator):
    """X where the condition holds, else Y, each requantised to the scale of Z."""

    inputs: ClassVar[str] = "condition, X, x_scale, x_zero_point, Y, y_scale, y_zero_point, z_scale, z_zero_point"
    outputs: ClassVar[str] = "Z"
    host_reason: ClassVar[str] = "an elementwise function of quantised tensors"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parts = quantities(inputs, (1, 2, 3), (4, 5, 6), (None, 7, 8))
        target = inputs[8]
        if parts is None or target is None or not are_numbers(self.node, (2, 3, 5, 6, 7, 8), (0, 1, 4)):
            return Host(self.run, self.host_reason)
        x, y, z = parts
        yes, no = (rescaled((part.number - part.zero) * part.scale, z) for part in (x, y))
        dtypes = tuple(dtype for dtype in inputs if dtype is not None)
        return Pointwise(dtypes, (saturated(k.where(k.Input(dtypes[0], 0), yes, no), target),))

    def run(self, *inputs: Any) -> Sequence[Array]:
        condition, x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero = inputs
        target = (one(z_scale, "z_scale"), one(z_zero, "z_zero_point"))
        yes = requantize(x, (one(x_scale, "x_scale"), one(x_zero, "x_zero_point")), target)
        no = requantize(y, (one(y_scale, "y_scale"), one(y_zero, "y_zero_point")), target)
        return (np.where(condition, yes, no),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[1]
        return [broadcast_fact(None if x is None else x.type, [inputs[0], x, inputs[4]])]


def requantize(x: Array, source: tuple[Array, Array], target: tuple[Array, Array]) -> Array:
    """`x` of one (scale, zero point) expressed in another; itself where both are the same."""
    if source[0] == target[0] and source[1] == target[1]:
        return x
    return quantize(dequantize(x, *source), *target)


@operator("QLinearConcat", domain=DOMAIN)
class QLinearConcat(Operator):
    """Tensors given as (tensor, scale, zero point), requantised to one scale and joined along `axis`."""

    inputs: ClassVar[str] = "Y_scale, Y_zero_point, inputs*"
    outputs: ClassVar[str] = "Y"
    axis: int
    host_reason: ClassVar[str] = "tensors of several scales become one"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        target = inputs[1]
        if target is None or len(inputs) < 5 or len(inputs) % 3 != 2 or not are_numbers(self.node, (0, 1)):
            return Host(self.run, self.host_reason)
        programs = []
        for first in range(2, len(inputs), 3):
            parts = quantities([*inputs[first : first + 3], *inputs[:2]], (0, 1, 2), (None, 3, 4))
            if parts is None or not are_numbers(self.node, (first + 1, first + 2)):
                return Host(self.run, self.host_reason)
            x, y = parts
            dtypes = tuple(dtype for dtype in (*inputs[first : first + 3], *inputs[:2]) if dtype is not None)
            programs.append(Pointwise(dtypes, (saturated(rescaled((x.number - x.zero) * x.scale, y), target),)))
        return Template("concat_quantized", {"axis": self.axis, "programs": tuple(programs)}, self.run)

    def run(self, *inputs: Any) -> Sequence[Array]:
        if len(inputs) < 5 or len(inputs) % 3 != 2:
            raise ValueError(f"inputs must be a scale, a zero point and triples after them, got {len(inputs)} inputs")
        target = (one(inputs[0], "Y_scale"), one(inputs[1], "Y_zero_point"))
        parts = [
            requantize(x, (one(scale, "scale"), one(zero, "zero point")), target)
            for x, scale, zero in zip(inputs[2::3], inputs[3::3], inputs[4::3], strict=True)
        ]
        return (np.concatenate(parts, axis=self.axis),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        shapes = [None if fact is None else fact.shape for fact in inputs[2::3]]
        return [like(inputs[1], joined([shape for shape in shapes if shape is not None], len(shapes), self.axis))]


def joined(shapes: Sequence[Dims], count: int, axis: int) -> Dims | None:
    """The shape of `count` tensors joined along `axis`; None where a shape is not known."""
    if len(shapes) != count or not shapes:
        return None
    rank = len(shapes[0])
    if any(len(shape) != rank for shape in shapes):
        raise ValueError(f"inputs to join must have the same rank, got {sorted({len(shape) for shape in shapes})}")
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is not one of the {rank} axes of the inputs")
    at = axis % rank
    total = shapes[0][at]
    for shape in shapes[1:]:
        total = total + shape[at]
    return tuple(total if index == at else merged([shape[index] for shape in shapes]) for index in range(rank))


@operator("MulInteger", domain=DOMAIN)
class MulInteger(Operator):
    """(A - A_zero_point) * (B - B_zero_point) as int32."""

    inputs: ClassVar[str] = "A, A_zero_point?, B, B_zero_point?"
    outputs: ClassVar[str] = "C"
    host_reason: ClassVar[str] = "an elementwise function of quantised tensors"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        dtypes = tuple(dtype for dtype in inputs if dtype is not None)
        if any(dtype.name not in _BYTES for dtype in dtypes) or not are_numbers(self.node, (1, 3), (0, 2)):
            return Host(self.run, self.host_reason)
        a, a_zero, b, b_zero = padded(leaves(inputs), 4)
        whole = np.dtype(np.int32)
        factors = [
            number.cast(whole) if zero is None else number.cast(whole) - zero.cast(whole)
            for number, zero in ((a, a_zero), (b, b_zero))
        ]
        return Pointwise(dtypes, (factors[0] * factors[1],))

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, a_zero, b, b_zero = padded(inputs, 4)
        return (integers(a, one(a_zero, "A_zero_point")) * integers(b, one(b_zero, "B_zero_point")),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [broadcast_fact(ir.TensorType(ir.DataType.INT32), [inputs[0], inputs[2]])]
