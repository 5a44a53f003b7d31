"""Operators between DequantizeLinear and QuantizeLinear ("QDQ") as operators on the integers themselves.

The pass has onnxruntime's name; `session.disable_quant_qdq` turns it off. As there, the rounding of an operator's real
result becomes that of its integer form, which is the same but for the last bit of the real number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import Array
from sardonyx.graph.types import numpy_dtype
from sardonyx.passes.base import QDQ, Context, Level, Pass
from sardonyx.passes.rule import Match, OpPattern, Rule, apply_rule, op
from sardonyx.passes.rules.linear_quantization import dequantize, quantize

_BYTES = frozenset({ir.DataType.UINT8, ir.DataType.INT8})
_TURNS = "a scale turns the order of its numbers around"
_MICROSOFT = "com.microsoft"
# A bias may be rounded to units of so small a part of a step of the result, and may have so many of them.
_SMALL_UNIT, _LARGEST_BIAS = 1 / 32, 2.0**30


def _dequantized(name: str, *, constant: bool = False) -> OpPattern:
    """DequantizeLinear of the value `name`; its parameters are `name`_scale and `name`_zero."""
    return dequantize(f"{name}{'!' if constant else ''}", f"{name}_scale!", f"{name}_zero?", shared=True)


def _quantized(inner: OpPattern) -> OpPattern:
    return quantize(inner, "y_scale!", "y_zero?")


_A, _B, _W = _dequantized("a"), _dequantized("b"), _dequantized("w", constant=True)
_BIAS = _dequantized("bias", constant=True)


class IntegerRule(Rule):
    """What the rules share: the parameters of the quantisation around an operator."""

    name = QDQ
    level = Level.EXTENDED

    def _objection(self, m: Match, names: Sequence[str], *, along_filters: int | None = None) -> str | None:
        """Why the quantisation of the values called `names` (y: the result) does not suit an integer kernel.

        Parameters belong to whole tensors, except those of w where `along_filters` is their axis.
        """
        for name in names:
            scale, zero = m.constant(f"{name}_scale"), m.constant(f"{name}_zero")
            assert scale is not None
            if m.optional(f"{name}_zero") is not None and zero is None:
                return f"the zero point of {name} is not constant"
            if self._dtype(m, name) not in _BYTES or scale.dtype != np.float32:
                return ""
            if scale.size != 1 and (name != "w" or along_filters is None or not self._is_along(m, along_filters)):
                return f"{name} has a scale for each place along an axis, or each block"
        return None

    @staticmethod
    def _dtype(m: Match, name: str) -> ir.DataType | None:
        if name != "y":
            return m.fact(name).dtype
        if m.optional("y_zero") is not None:
            return m.fact("y_zero").dtype
        return ir.DataType(m.attribute(m.root, "output_dtype", 0) or ir.DataType.UINT8)

    @staticmethod
    def _is_along(m: Match, axis: int) -> bool:
        """Whether the scales of the weights lie along this axis."""
        node = next(node for pattern, node in m.parts if pattern.operands[0] == "w!")
        scale, rank = m.constant("w_scale"), m.fact("w").rank
        if scale is None or rank is None or rank < 2 or m.attribute(node, "block_size", 0) or scale.ndim != 1:
            return False
        return bool(m.attribute(node, "axis", 1) % rank == axis % rank)

    def _triple(self, m: Match, name: str) -> list[ir.Value]:
        """The value, its scale and its zero point."""
        return [m.value(name), *self._pair(m, name)]

    def _pair(self, m: Match, name: str) -> list[ir.Value]:
        """Scale and zero point, which is made where it is absent."""
        scale, dtype = m.constant(f"{name}_scale"), self._dtype(m, name)
        assert scale is not None
        assert dtype is not None
        zero = m.optional(f"{name}_zero") or m.initializer(np.zeros(scale.shape, numpy_dtype(dtype)), f"{name}_zero")
        return [m.value(f"{name}_scale"), zero]

    def _product_objection(self, m: Match, along_filters: int) -> str | None:
        """Why a product, whose result may be real, suits no integer kernel."""
        names = ("a", "w", "y") if m.root.op_type == "QuantizeLinear" else ("a", "w")
        objection = self._objection(m, names, along_filters=along_filters)
        if objection is not None:
            return objection
        return self._bias_objection(m) if m.optional("real") is None else self._real_bias_objection(m)

    def _bias_objection(self, m: Match) -> str | None:
        """Why a bias is not one in the units of the product."""
        if m.optional("bias") is None:
            return None
        scale, zero = m.constant("bias_scale"), m.constant("bias_zero")
        factors = [m.constant(f"{name}_scale") for name in ("a", "w")]
        assert scale is not None
        if m.fact("bias").dtype != ir.DataType.INT32 or (zero is not None and zero.any()):
            return "its bias is no int32 without zero point"
        if any(factor is None for factor in factors):
            return "its scales are not constant"
        product: Array = factors[0] * factors[1]  # type: ignore[operator]
        if scale.size > 1 and (m.fact("bias").rank != 1 or product.size not in (1, scale.size)):
            return "its bias has scales along another axis than the product"
        one, other = (np.ravel(numbers) for numbers in (product, scale))
        return None if np.allclose(one, other, rtol=1e-4, atol=0) else "its bias has another scale than the product"

    @staticmethod
    def _units(m: Match) -> Array:
        """What one stands for in the product of integers, for all channels or each, in float64."""
        a, w = m.constant("a_scale"), m.constant("w_scale")
        assert a is not None
        assert w is not None
        return np.ravel(a.astype(np.float64) * w)

    def _real_bias_objection(self, m: Match) -> str | None:
        """Why a bias of real numbers cannot be rounded to units of the product, of which a step of the result has many:
        exporters of PyTorch's quantised models leave it so."""
        bias, step, units = m.constant("real"), m.constant("y_scale"), self._units(m)
        assert bias is not None
        assert step is not None
        if bias.dtype != np.float32 or bias.ndim != 1 or units.size not in (1, bias.size):
            return "its bias is no float32 for each channel"
        if not bool((units > 0).all() and (units <= _SMALL_UNIT * np.abs(step)).all()):
            return "its bias is real, and a step of its result has few units of the product"
        return None if bool((np.abs(bias / units) < _LARGEST_BIAS).all()) else "int32 does not hold its bias"

    def _bias(self, m: Match) -> ir.Value | None:
        """The bias in units of the product, where there is one."""
        real = m.constant("real")
        if real is None:
            return m.optional("bias")
        return m.initializer(np.rint(real / self._units(m)).astype(np.int32), "bias")

    @staticmethod
    def _attributes(node: ir.Node) -> Mapping[str, Any]:
        return {name: attribute.value for name, attribute in node.attributes.items()}


_TURNED = op.Transpose(_W)


class TransposedBytes(IntegerRule):
    """Constant bytes that are transposed once they are real are stored transposed: products then find them."""

    patterns = (_TURNED,)

    def check(self, m: Match) -> str | None:
        if m.fact("w").dtype not in _BYTES or m.fact("w").rank is None:
            return ""
        node, scale = m.covered(_W), m.constant("w_scale")
        assert scale is not None
        if m.attribute(node, "block_size", 0) or scale.ndim > 1:
            return "its weights are scaled by blocks"
        if m.optional("w_zero") is not None and m.constant("w_zero") is None:
            return "its zero points are not constant"
        return None

    def rewrite(self, m: Match) -> ir.Node:
        node, weights = m.covered(_W), m.constant("w")
        assert weights is not None
        order = m.attribute(m.root, "perm", tuple(reversed(range(weights.ndim))))
        attributes = dict(self._attributes(node))
        attributes["axis"] = (
            list(order).index(attributes.get("axis", 1) % weights.ndim) if m.fact("w_scale").rank else 0
        )
        inputs = [m.initializer(np.ascontiguousarray(weights.transpose(order)), "transposed"), *node.inputs[1:]]
        return m.new_node("DequantizeLinear", inputs, attributes, domain=node.domain, version=node.version)


class IntegerConvolution(IntegerRule):
    """A convolution of quantised tensors with a quantised result is a QLinearConv."""

    patterns = (
        _quantized(op.Conv(_A, _W, _BIAS)),
        _quantized(op.Conv(_A, _W)),
        _quantized(op.Conv(_A, _W, "real!")),
    )

    def check(self, m: Match) -> str | None:
        return self._product_objection(m, along_filters=0)

    def rewrite(self, m: Match) -> ir.Node:
        bias = self._bias(m)
        inputs = [*self._triple(m, "a"), *self._triple(m, "w"), *self._pair(m, "y"), *([] if bias is None else [bias])]
        return m.new_node("QLinearConv", inputs, self._attributes(m.node("Conv")))


class IntegerProduct(IntegerRule):
    """A product of quantised matrices, the second one constant, is a QLinearMatMul, or a MatMulIntegerToFloat."""

    patterns = (_quantized(op.MatMul(_A, _W)), op.MatMul(_A, _W))

    def check(self, m: Match) -> str | None:
        return self._product_objection(m, along_filters=-1)

    def rewrite(self, m: Match) -> ir.Node:
        if m.root.op_type == "QuantizeLinear":
            return m.new_node("QLinearMatMul", [*self._triple(m, "a"), *self._triple(m, "w"), *self._pair(m, "y")])
        (a, a_scale, a_zero), (w, w_scale, w_zero) = self._triple(m, "a"), self._triple(m, "w")
        inputs = [a, w, a_scale, w_scale, a_zero, w_zero]
        return m.new_node("MatMulIntegerToFloat", inputs, domain=_MICROSOFT, version=1)


class IntegerGemm(IntegerRule):
    """A Gemm of quantised matrices is a QGemm, with a quantised or a real result."""

    patterns = (
        _quantized(op.Gemm(_A, _W, _BIAS)),
        _quantized(op.Gemm(_A, _W)),
        _quantized(op.Gemm(_A, _W, "real!")),
        op.Gemm(_A, _W, _BIAS),
        op.Gemm(_A, _W),
    )

    def check(self, m: Match) -> str | None:
        node = m.node("Gemm")
        factors = {m.attribute(node, "alpha", 1.0), m.attribute(node, "beta", 1.0)}
        if (m.optional("bias") or m.optional("real")) is not None and factors != {1.0}:
            return "it scales the product or its bias"
        return self._product_objection(m, along_filters=0 if m.attribute(node, "transB", 0) else 1)

    def rewrite(self, m: Match) -> ir.Node:
        attributes = dict(self._attributes(m.node("Gemm")))
        attributes.pop("beta", None)
        bias = self._bias(m)
        result = self._pair(m, "y") if m.root.op_type == "QuantizeLinear" else []
        inputs = [*self._triple(m, "a"), *self._triple(m, "w"), bias, *result]
        return m.new_node("QGemm", inputs, attributes, domain=_MICROSOFT, version=1)


class IntegerPair(IntegerRule):
    """A sum or a product of the elements of two quantised tensors is a QLinearAdd or a QLinearMul."""

    patterns = (_quantized(op.Add(_A, _B)), _quantized(op.Mul(_A, _B)))

    def check(self, m: Match) -> str | None:
        objection = self._objection(m, ("a", "b", "y"))
        if objection is not None:
            return objection
        kinds = {self._dtype(m, name) for name in ("a", "b", "y")}
        return None if len(kinds) == 1 else "its operands and its result are bytes of different kinds"

    def rewrite(self, m: Match) -> ir.Node:
        kind = next(node.op_type for node in m.nodes if node.op_type in ("Add", "Mul"))
        inputs = [*self._triple(m, "a"), *self._triple(m, "b"), *self._pair(m, "y")]
        return m.new_node(f"QLinear{kind}", inputs, domain=_MICROSOFT, version=1)


_MEAN = op.ReduceMean(_A, "axes?")


class IntegerMean(IntegerRule):
    """A mean over maps, or over other axes, of a quantised tensor with a quantised result is one of integers."""

    patterns = (_quantized(op.GlobalAveragePool(_A)), _quantized(_MEAN))

    def check(self, m: Match) -> str | None:
        objection = self._objection(m, ("a", "y"))
        if objection is not None:
            return objection
        if self._dtype(m, "a") != self._dtype(m, "y"):
            return "its operand and its result are bytes of different kinds"
        if self._is_reduction(m) and self._axes(m) is None:
            return "its axes are not known, or there are none"
        return None

    @staticmethod
    def _is_reduction(m: Match) -> bool:
        return any(node.op_type == "ReduceMean" for node in m.nodes)

    @staticmethod
    def _axes(m: Match) -> list[int] | None:
        """The axes of the mean, one at least."""
        given = m.constant("axes")
        if m.optional("axes") is not None:
            return None if given is None or not given.size else [int(axis) for axis in given.reshape(-1)]
        return list(m.attribute(m.covered(_MEAN), "axes", [])) or None

    def rewrite(self, m: Match) -> ir.Node:
        inputs = [*self._triple(m, "a"), *self._pair(m, "y")]
        if not self._is_reduction(m):
            return m.new_node("QLinearGlobalAveragePool", inputs, domain=_MICROSOFT, version=1)
        attributes = {"axes": self._axes(m), "keepdims": m.attribute(m.covered(_MEAN), "keepdims", 1)}
        return m.new_node("QLinearReduceMean", inputs, attributes, domain=_MICROSOFT, version=1)


# Operators that only choose or move elements of their first input, whatever these are.
_MOVING = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Gather", "Slice", "MaxPool", "Expand")
# From which version on those of them take bytes that did not always.
_BYTES_SINCE = {"Flatten": 9, "MaxPool": 12}
_MOVED = OpPattern("|".join(_MOVING), (_A, "first?", "second?", "third?", "fourth?"))


class IntegerMovement(IntegerRule):
    """An operator that only moves elements, between equal quantisations, moves the integers."""

    patterns = (_quantized(_MOVED),)

    def check(self, m: Match) -> str | None:
        objection = self._objection(m, ("a", "y"))
        if objection is not None:
            return objection
        moved = m.covered(_MOVED)
        if len(moved.outputs) > 1:
            return "it has more results than one"
        if (moved.version or 0) < _BYTES_SINCE.get(moved.op_type, 0):
            return f"{moved.op_type} takes no bytes in version {moved.version}"
        zeros = [m.constant(f"{name}_zero") for name in ("a", "y")]
        points = [0 if zero is None else int(zero.reshape(())) for zero in zeros]
        scales = [m.constant(f"{name}_scale") for name in ("a", "y")]
        if self._dtype(m, "a") != self._dtype(m, "y") or points[0] != points[1] or scales[0] != scales[1]:
            return "its input and its result are quantised differently"
        if moved.op_type == "MaxPool" and not bool((scales[0] > 0).all()):  # type: ignore[operator, union-attr]
            return _TURNS
        return None

    def rewrite(self, m: Match) -> ir.Node:
        old = m.covered(_MOVED)
        return m.new_node(old.op_type, [m.value("a"), *old.inputs[1:]], self._attributes(old), version=old.version)


class DropRelu(Rule):
    """A Relu before a quantisation whose lowest integer stands for 0 changes nothing."""

    name = "ReluQuantFusion"
    level = Level.EXTENDED
    patterns = (_quantized(op.Relu("x")),)

    def check(self, m: Match) -> str | None:
        scale, zero = m.constant("y_scale"), m.constant("y_zero")
        if scale is None or not bool((scale > 0).all()):
            return _TURNS
        if m.optional("y_zero") is None:
            return None if not m.attribute(m.root, "output_dtype", 0) else "its integers may be signed"
        if zero is None or zero.dtype.kind not in "iu":
            return "its zero point is not known"
        return None if bool((zero == np.iinfo(zero.dtype).min).all()) else "integers below its zero point exist"

    def rewrite(self, m: Match) -> ir.Node:
        values = [m.value("x"), *m.root.inputs[1:]]
        node = m.new_node("QuantizeLinear", values, domain=m.root.domain, version=m.root.version)
        node.attributes.update(m.root.attributes)
        return node


RULES: tuple[Rule, ...] = (DropRelu(),)

_INTEGER_RULES = (
    TransposedBytes(),
    IntegerConvolution(),
    IntegerProduct(),
    IntegerGemm(),
    IntegerPair(),
    IntegerMovement(),
    IntegerMean(),
)


def use_integers(context: Context) -> int:
    """All rewrites of one pass: what onnxruntime's pass of that name does."""
    return sum(apply_rule(rule, context) for rule in _INTEGER_RULES)


PASSES = (*(rule.as_pass() for rule in RULES), Pass(QDQ, Level.EXTENDED, use_integers))
