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
from sardonyx.passes.base import (
    PACKED_BLOCKS,
    PACKED_PRODUCTS,
    QDQ,
    TURNED_PACKED_PRODUCTS,
    Context,
    Level,
    Pass,
)
from sardonyx.passes.rule import Match, OpPattern, Rule, apply_rule, op
from sardonyx.passes.rules.facts import permutation

_BYTES = frozenset({ir.DataType.UINT8, ir.DataType.INT8})
_TURNS = "a scale turns the order of its numbers around"
_MICROSOFT = "com.microsoft"


def _dequantized(name: str, *, constant: bool = False) -> OpPattern:
    """DequantizeLinear of the value `name`; its parameters are `name`_scale and `name`_zero."""
    return op.DequantizeLinear(f"{name}{'!' if constant else ''}", f"{name}_scale!", f"{name}_zero?", shared=True)


def _quantized(inner: OpPattern) -> OpPattern:
    return op.QuantizeLinear(inner, "y_scale!", "y_zero?")


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
        return self._bias_objection(m) if objection is None else objection

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
    def _attributes(node: ir.Node) -> Mapping[str, Any]:
        return {name: attribute.value for name, attribute in node.attributes.items()}


class IntegerConvolution(IntegerRule):
    """A convolution of quantised tensors with a quantised result is a QLinearConv."""

    patterns = (_quantized(op.Conv(_A, _W, _BIAS)), _quantized(op.Conv(_A, _W)))

    def check(self, m: Match) -> str | None:
        return self._product_objection(m, along_filters=0)

    def rewrite(self, m: Match) -> ir.Node:
        bias = [] if m.optional("bias") is None else [m.value("bias")]
        inputs = [*self._triple(m, "a"), *self._triple(m, "w"), *self._pair(m, "y"), *bias]
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
        op.Gemm(_A, _W, _BIAS),
        op.Gemm(_A, _W),
    )

    def check(self, m: Match) -> str | None:
        node = m.node("Gemm")
        factors = {m.attribute(node, "alpha", 1.0), m.attribute(node, "beta", 1.0)}
        if m.optional("bias") is not None and factors != {1.0}:
            return "it scales the product or its bias"
        return self._product_objection(m, along_filters=0 if m.attribute(node, "transB", 0) else 1)

    def rewrite(self, m: Match) -> ir.Node:
        attributes = dict(self._attributes(m.node("Gemm")))
        attributes.pop("beta", None)
        bias = m.optional("bias")
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


_PACKED = op.DequantizeLinear("w!", "w_scale!", "w_zero?", shared=True)
_NIBBLES = frozenset({ir.DataType.INT4, ir.DataType.UINT4})
# Accuracy levels of MatMulNBits: float32 throughout, and rows rounded to bytes.
_REAL, _ROUNDED = 0, 4


class PackedProduct(Rule):
    """A product with constant weights of four bits, scaled by blocks of their columns, is a MatMulNBits.

    Whole columns, or all weights, with one scale are taken as blocks of the size that the settings name.
    Where onnxruntime makes such a product, the accuracy level is 4, as it is there unless the session says otherwise:
    rows are rounded to bytes. Forms that stay products of real numbers there have level 0, which rounds nothing:
    those whose rows come from a DequantizeLinear, whose axis counts from the end, or whose weights others read.
    """

    name = PACKED_PRODUCTS
    level = Level.EXTENDED
    patterns = (op.MatMul("x", _PACKED),)

    def check(self, m: Match) -> str | None:
        node, weights, scale = m.covered(_PACKED), m.fact("w"), m.constant("w_scale")
        assert scale is not None
        if weights.dtype not in _NIBBLES:
            return ""
        reason = self._blocks_reason(m, node, scale)
        if weights.rank != 2 or reason is not None:
            return reason or "its weights are no matrix"
        if m.optional("w_zero") is not None and m.constant("w_zero") is None:
            return "its zero points are not constant"
        return _rows_reason(m, scale)

    @staticmethod
    def _blocks_reason(m: Match, node: ir.Node, scale: Array) -> str | None:
        """Why the scales are not those of blocks of a column, of whole columns, or of all weights."""
        block, axis = m.attribute(node, "block_size", 0), m.attribute(node, "axis", 1) % 2
        if block == 0:
            return None if scale.size == 1 or axis == 1 else "it has a scale for each row"
        if axis != 0:
            return "its weights have no scales along the columns"
        return None if block in PACKED_BLOCKS else "its blocks have no size that MatMulNBits takes"

    def rewrite(self, m: Match) -> ir.Node:
        weights, scale, zero = m.constant("w"), m.constant("w_scale"), m.constant("w_zero")
        assert weights is not None
        assert scale is not None
        (rows, columns), block = weights.shape, int(m.attribute(m.covered(_PACKED), "block_size", 0))
        if block == 0:  # the scale of a column, or of all, is that of each of its blocks
            block = m.context.settings.packed_block
            if block < 0:
                block = max((size for size in PACKED_BLOCKS if size <= rows), default=min(PACKED_BLOCKS))
            blocks = (-(-rows // block), columns)
            scale = np.broadcast_to(scale.reshape(1, -1), blocks)
            zero = None if zero is None else np.broadcast_to(zero.reshape(1, -1), blocks)
        codes = np.zeros((columns, len(scale) * block), np.uint8)
        middle = _middle(m)
        codes[:, :rows] = (weights.astype(np.int8) + middle).T
        codes = codes.reshape(columns, len(scale), block)
        return _packed_product(m, rows, block, codes, scale.T, _transposed(zero), self._accuracy(m))

    @staticmethod
    def _accuracy(m: Match) -> int:
        """The accuracy level of the product."""
        node, weights, scale = m.covered(_PACKED), m.constant("w"), m.constant("w_scale")
        assert weights is not None
        assert scale is not None
        rows, real = m.value("x").producer(), node.outputs[0]
        is_rounded = (
            (rows is None or rows.op_type != "DequantizeLinear")
            and (scale.ndim == 0 or (m.attribute(node, "axis", 1) >= 0 and scale.shape[-1] == weights.shape[-1]))
            and len(real.uses()) == 1
            and not real.is_graph_output()
        )
        return _ROUNDED if is_rounded else _REAL


def _transposed(array: Array | None) -> Array | None:
    return None if array is None else array.T


def _middle(m: Match) -> int:
    """What makes the numbers of weights unsigned: MatMulNBits knows no others; its zero point is 8 unless given."""
    return 8 if m.fact("w").dtype == ir.DataType.INT4 else 0


def _packed_product(
    m: Match, rows: int, block: int, codes: Array, scales: Array, zeros: Array | None, accuracy: int = _ROUNDED
) -> ir.Node:
    """MatMulNBits of unsigned codes (columns, blocks, block), scales and zero points (columns, blocks)."""
    middle, (columns, blocks, _) = _middle(m), codes.shape
    inputs = [
        m.value("x"),
        m.initializer(_nibbles(codes.reshape(columns, -1)).reshape(columns, blocks, block // 2), "packed"),
        m.initializer(np.ascontiguousarray(scales).reshape(-1), "scales"),
    ]
    if zeros is not None or not middle:
        points = np.zeros(scales.shape, np.int8) if zeros is None else zeros.astype(np.int8)
        inputs.append(m.initializer(_nibbles((points + middle).astype(np.uint8)).reshape(-1), "zeros"))
    attributes = {"K": rows, "N": columns, "bits": 4, "block_size": block, "accuracy_level": accuracy}
    return m.new_node("MatMulNBits", inputs, attributes, domain=_MICROSOFT, version=1)


_FLAT = op.Reshape(_PACKED, "flat")
_TURNED = op.Transpose(_FLAT)


class TurnedPackedProduct(Rule):
    """The same of weights that lie column by column, block by block, and are turned before the product.

    Only where it is asked for.
    """

    name = TURNED_PACKED_PRODUCTS
    level = Level.BASIC
    optional = True
    patterns = (op.MatMul("x", _TURNED),)

    def check(self, m: Match) -> str | None:
        node, weights, scale = m.covered(_PACKED), m.fact("w"), m.constant("w_scale")
        assert scale is not None
        if weights.dtype not in _NIBBLES:
            return ""
        block, axis = m.attribute(node, "block_size", 0), m.attribute(node, "axis", 1)
        if weights.rank != 3 or axis % 3 != 2 or block not in PACKED_BLOCKS or weights.shape is None:
            return "its weights are not (columns, blocks, block) with a scale for each block"
        columns, blocks, _ = weights.shape
        if weights.shape[2] != block or scale.shape != (columns, blocks, 1):
            return "its weights are not (columns, blocks, block) with a scale for each block"
        if m.context.inference.facts[m.covered(_FLAT).outputs[0]].shape != (columns, blocks * block):
            return "its blocks are not put one behind the other"
        if permutation(m.covered(_TURNED), 2) != (1, 0):
            return "its columns are not turned"
        if m.optional("w_zero") is not None and m.constant("w_zero") is None:
            return "its zero points are not constant"
        return _rows_reason(m, scale)

    def rewrite(self, m: Match) -> ir.Node:
        weights, scale, zero = m.constant("w"), m.constant("w_scale"), m.constant("w_zero")
        assert weights is not None
        assert scale is not None
        codes = (weights.astype(np.int8) + _middle(m)).astype(np.uint8)
        block = weights.shape[2]
        zeros = None if zero is None else zero[..., 0]
        return _packed_product(m, weights.shape[1] * block, block, codes, scale[..., 0], zeros)


def _rows_reason(m: Match, scale: Array) -> str | None:
    """Why the rows of the other operand have the wrong type."""
    kind = m.fact("x").dtype
    if kind not in (ir.DataType.FLOAT, ir.DataType.FLOAT16) or scale.dtype != kind.numpy():
        return "its rows have another type than its scales"
    return None


def _nibbles(codes: Array) -> Array:
    """Numbers of four bits in rows, two to a byte, the lower half first; a row is padded with 0."""
    even = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return np.asarray(even[:, 0::2] | (even[:, 1::2] << 4))


# Operators that only choose or move elements of their first input, whatever these are.
_MOVING = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Gather", "Slice", "MaxPool", "Expand")
_MOVED = OpPattern("|".join(_MOVING), (_A, "first?", "second?", "third?", "fourth?"))


class IntegerMovement(IntegerRule):
    """An operator that only moves elements, between equal quantisations, moves the integers."""

    patterns = (_quantized(_MOVED),)

    def check(self, m: Match) -> str | None:
        objection = self._objection(m, ("a", "y"))
        if objection is not None:
            return objection
        if len(m.covered(_MOVED).outputs) > 1:
            return "it has more results than one"
        zeros = [m.constant(f"{name}_zero") for name in ("a", "y")]
        points = [0 if zero is None else int(zero.reshape(())) for zero in zeros]
        scales = [m.constant(f"{name}_scale") for name in ("a", "y")]
        if self._dtype(m, "a") != self._dtype(m, "y") or points[0] != points[1] or scales[0] != scales[1]:
            return "its input and its result are quantised differently"
        if m.covered(_MOVED).op_type == "MaxPool" and not bool((scales[0] > 0).all()):  # type: ignore[operator, union-attr]
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
        node = m.new_node("QuantizeLinear", [m.value("x"), *m.root.inputs[1:]], version=m.root.version)
        node.attributes.update(m.root.attributes)
        return node


RULES: tuple[Rule, ...] = (TurnedPackedProduct(), DropRelu(), PackedProduct())

_INTEGER_RULES = (
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
