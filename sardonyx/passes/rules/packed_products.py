"""Products with constant weights of few bits behind a DequantizeLinear, as MatMulNBits, which keeps them packed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import Array
from sardonyx.passes.base import PACKED_BLOCKS, PACKED_PRODUCTS, TURNED_PACKED_PRODUCTS, Level
from sardonyx.passes.rule import Match, OpPattern, Rule, op
from sardonyx.passes.rules.facts import permutation
from sardonyx.passes.rules.linear_quantization import dequantize

_MICROSOFT = "com.microsoft"
# Types of weights: their bits, and what makes their numbers unsigned. MatMulNBits knows no others.
_KINDS = {
    ir.DataType.INT2: (2, 2),
    ir.DataType.UINT2: (2, 0),
    ir.DataType.INT4: (4, 8),
    ir.DataType.UINT4: (4, 0),
    ir.DataType.INT8: (8, 128),
    ir.DataType.UINT8: (8, 0),
}
# Accuracy levels of MatMulNBits: float32 throughout, and rows rounded to bytes.
_REAL, _ROUNDED = 0, 4
# Rows from which on bytes, which are unpacked for each product, are slower than weights that were made float32 once.
_MANY_ROWS = 4


_PACKED = dequantize("w!", "w_scale!", "w_zero?", shared=True)


def _products(weight: OpPattern) -> tuple[OpPattern, ...]:
    return (
        op.MatMul("x", weight),
        op.MatMul("x", op.Transpose(weight, shared=True)),
        op.Gemm("x", weight, "bias?"),
        op.Gemm("x", op.Transpose(weight, shared=True), "bias?"),
    )


class PackedProduct(Rule):
    """A product with constant weights of few bits, scaled by blocks of their columns, is a MatMulNBits.

    Whole columns, or all weights, with one scale are taken as blocks: for four bits of the size that the settings name.
    Where onnxruntime makes such a product of four bits, the accuracy level is 4, as it is there unless the session says
    otherwise: rows are rounded to bytes. All other forms have level 0, which rounds nothing: those of other bits, of
    blocks that MatMulNBits does not take, or of a Gemm, and those whose rows come from a DequantizeLinear, whose axis
    counts from the end, whose weights others read or are transposed.
    """

    name = PACKED_PRODUCTS
    level = Level.EXTENDED
    patterns = _products(_PACKED)

    def check(self, m: Match) -> str | None:
        weights, scale = m.fact("w"), m.constant("w_scale")
        assert scale is not None
        if weights.dtype is None or weights.dtype not in _KINDS:
            return ""
        if weights.rank != 2:
            return "its weights are no matrix"
        if m.root.op_type == "Gemm" and (reason := _gemm_reason(m)) is not None:
            return reason
        if _transposes(m) and permutation(m.node("Transpose"), 2) != (1, 0):
            return "its weights are not transposed"
        block = m.attribute(m.node("DequantizeLinear"), "block_size", 0)
        reason = self._blocks_reason(m, block, scale)
        if reason is not None:
            return reason
        if _KINDS[weights.dtype][0] == 8 and not block and _is_dequantized(m.value("x")):
            return ""  # a product of bytes on both sides, for which others are
        if _KINDS[weights.dtype][0] == 8 and _known_rows(m) >= _MANY_ROWS:
            return "so many rows times bytes take longer than times float32"
        if m.optional("w_zero") is not None and m.constant("w_zero") is None:
            return "its zero points are not constant"
        return _rows_reason(m, scale)

    @staticmethod
    def _blocks_reason(m: Match, block: int, scale: Array) -> str | None:
        """Why the scales are not those of blocks of a column, of whole columns, or of all weights."""
        axis, summed = m.attribute(m.node("DequantizeLinear"), "axis", 1) % 2, _summed_axis(m)
        if block == 0:
            return None if scale.size == 1 or axis != summed else "it has a scale for each row"
        if axis != summed:
            return "its weights have no scales along the columns"
        weights = m.constant("w")
        assert weights is not None
        size = weights.shape[summed]
        fits = block >= size or any(block % packed == 0 for packed in PACKED_BLOCKS)
        return None if fits else "its blocks have no size that MatMulNBits takes"

    def rewrite(self, m: Match) -> ir.Node:
        weights, scale, zero = m.constant("w"), m.constant("w_scale"), m.constant("w_zero")
        assert weights is not None
        assert scale is not None
        node = m.node("DequantizeLinear")
        bits, middle = _kind(m)
        by_columns = weights.T if _summed_axis(m) == 0 else weights
        columns, rows = by_columns.shape
        given = int(m.attribute(node, "block_size", 0))
        accuracy = self._accuracy(m, bits)
        if given == 0 or given >= rows:  # the scale of a column, or of all, is that of each of its blocks
            block = given if given in PACKED_BLOCKS else self._own_block(m, rows, accuracy, whole=given != 0)
            parameters = [_by_columns(each, columns, -(-rows // block)) for each in (scale, zero)]
        else:
            block = max(packed for packed in PACKED_BLOCKS if given % packed == 0)
            turned = [each if each is None or _summed_axis(m) else each.T for each in (scale, zero)]
            blocks = -(-rows // block)
            parameters = [
                None if each is None else np.repeat(each, given // block, axis=1)[:, :blocks] for each in turned
            ]
        scales, zeros = parameters
        assert scales is not None
        codes = np.zeros((columns, scales.shape[1] * block), np.uint8)
        codes[:, :rows] = _unsigned(by_columns, middle)
        return _packed_product(m, rows, bits, block, codes, scales, zeros, accuracy)

    @staticmethod
    def _own_block(m: Match, rows: int, accuracy: int, whole: bool) -> int:
        """The size of blocks for columns with one scale."""
        chosen = m.context.settings.packed_block
        if accuracy == _ROUNDED and not whole and chosen > 0:
            return chosen
        fitting = [size for size in PACKED_BLOCKS if size <= rows]
        dividing = [size for size in fitting if rows % size == 0] if accuracy == _REAL else []
        return max(dividing or fitting, default=min(PACKED_BLOCKS))

    @staticmethod
    def _accuracy(m: Match, bits: int) -> int:
        """The accuracy level of the product."""
        node, weights, scale = m.node("DequantizeLinear"), m.constant("w"), m.constant("w_scale")
        assert weights is not None
        assert scale is not None
        real = node.outputs[0]
        is_rounded = (
            bits == 4
            and m.context.settings.rounds_packed
            and m.root.op_type == "MatMul"
            and m.attribute(node, "block_size", 0) in (0, *PACKED_BLOCKS)
            and not _transposes(m)
            and not _is_dequantized(m.value("x"))
            and (scale.ndim == 0 or (m.attribute(node, "axis", 1) >= 0 and scale.shape[-1] == weights.shape[-1]))
            and len(real.uses()) == 1
            and not real.is_graph_output()
        )
        return _ROUNDED if is_rounded else _REAL


def _kind(m: Match) -> tuple[int, int]:
    dtype = m.fact("w").dtype
    assert dtype is not None
    return _KINDS[dtype]


def _is_dequantized(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


def _known_rows(m: Match) -> int:
    """How many rows are multiplied; 1 where the model does not say."""
    sizes = (m.fact("x").shape or ())[:-1]
    known = [size for size in sizes if isinstance(size, int)]
    return math.prod(known) if len(known) == len(sizes) else 1


def _transposes(m: Match) -> bool:
    return any(node.op_type == "Transpose" for node in m.nodes)


def _summed_axis(m: Match) -> int:
    """The axis of the stored weights over which the product sums."""
    transposed = _transposes(m) != bool(m.root.op_type == "Gemm" and m.attribute(m.root, "transB", 0))
    return int(transposed)


def _gemm_reason(m: Match) -> str | None:
    """Why a Gemm is no product with a bias for each column."""
    if m.attribute(m.root, "transA", 0) or m.attribute(m.root, "alpha", 1.0) != 1:
        return "it scales its product, or transposes its rows"
    if m.optional("bias") is None:
        return None
    size = m.fact("w").shape[1 - _summed_axis(m)]  # type: ignore[index]
    if m.attribute(m.root, "beta", 1.0) != 1 or m.fact("bias").shape not in ((size,), (1, size)):
        return "its bias is scaled, or not one number for each column"
    return None if m.fact("bias").dtype == m.fact("x").dtype else "its bias has another type than its rows"


def _by_columns(parameter: Array | None, columns: int, blocks: int) -> Array | None:
    """Scales or zero points of columns, or of all, as (columns, blocks)."""
    if parameter is None:
        return None
    return np.broadcast_to(parameter.reshape(-1, 1), (columns, blocks))


def _unsigned(numbers: Array, middle: int) -> Array:
    """Numbers of few bits as uint8, the lowest as 0."""
    if numbers.dtype == np.uint8:
        return numbers
    if numbers.dtype == np.int8:
        return numbers.view(np.uint8) ^ np.uint8(middle)
    return (numbers.astype(np.int8) + np.int8(middle)).view(np.uint8)


def _packed_product(
    m: Match, rows: int, bits: int, block: int, codes: Array, scales: Array, zeros: Array | None, accuracy: int
) -> ir.Node:
    """MatMulNBits of unsigned codes (columns, blocks * block), scales and zero points (columns, blocks)."""
    from sardonyx.ops.microsoft.packed_weights import pack  # of the contrib operators, which few models have

    middle = _kind(m)[1]
    columns, blocks = scales.shape
    inputs = [
        m.value("x"),
        m.initializer(pack(codes, bits).reshape(columns, blocks, block * bits // 8), "packed"),
        m.initializer(np.ascontiguousarray(scales).reshape(-1), "scales"),
    ]
    bias = m.optional("bias")
    if zeros is not None or not middle:
        points = np.zeros(scales.shape, np.uint8) if zeros is None else _unsigned(zeros, middle)
        inputs.append(m.initializer(pack(points, bits).reshape(-1), "zeros"))
    given: list[Any] = inputs if bias is None else [*inputs, *[None] * (5 - len(inputs)), bias]
    attributes = {"K": rows, "N": columns, "bits": bits, "block_size": block, "accuracy_level": accuracy}
    return m.new_node("MatMulNBits", given, attributes, domain=_MICROSOFT, version=1)


_FLAT = op.Reshape(_PACKED, "flat")
_TURNED = op.Transpose(_FLAT)
_NIBBLES = frozenset({ir.DataType.INT4, ir.DataType.UINT4})


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
        bits, middle = _kind(m)
        columns, blocks, block = weights.shape
        codes = _unsigned(weights, middle).reshape(columns, -1)
        zeros = None if zero is None else zero[..., 0]
        return _packed_product(m, blocks * block, bits, block, codes, scale[..., 0], zeros, _ROUNDED)


def _rows_reason(m: Match, scale: Array) -> str | None:
    """Why the rows of the other operand have the wrong type."""
    kind = m.fact("x").dtype
    if kind not in (ir.DataType.FLOAT, ir.DataType.FLOAT16) or scale.dtype != kind.numpy():
        return "its rows have another type than its scales"
    return None


RULES: tuple[Rule, ...] = (TurnedPackedProduct(), PackedProduct())
