"""Transpositions and factors around a matrix product, as attributes of the product."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import Array
from sardonyx.ops.framework.facts import UNKNOWN
from sardonyx.passes.base import Level
from sardonyx.passes.rule import Match, OpPattern, Rule, op
from sardonyx.passes.rules.facts import permutation, swaps_last_two

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
_TRANSPOSED = op.Transpose("x", shared=True)
_TRANSPOSED_A = (op.MatMul(_TRANSPOSED, "other"), op.FusedMatMul(_TRANSPOSED, "other", domain="com.microsoft"))
_TRANSPOSED_B = (op.MatMul("other", _TRANSPOSED), op.FusedMatMul("other", _TRANSPOSED, domain="com.microsoft"))


def _fused(m: Match, product: ir.Node, inputs: list[ir.Value], **changed: Any) -> ir.Node:
    """A FusedMatMul with the attributes of a product except those that change."""
    attributes = {name: attribute.value for name, attribute in product.attributes.items()}
    return m.new_node("FusedMatMul", inputs, {**attributes, **changed}, domain="com.microsoft", version=1)


class FuseTranspose(Rule):
    """A product whose operand has its last two axes exchanged reads the operand as it is."""

    name = "MatmulTransposeFusion"
    level = Level.EXTENDED
    patterns = (*_TRANSPOSED_A, *_TRANSPOSED_B)

    def check(self, m: Match) -> str | None:
        x = m.fact("x")
        if x.dtype not in _FLOATS:
            return "only floating-point numbers of 32 and 64 bits have such a product in onnxruntime"
        perm = permutation(m.covered(_TRANSPOSED), x.rank)
        if perm is None or not swaps_last_two(perm):
            return "it moves other axes than the last two"
        rank = m.fact("other").rank
        if rank is None or rank < 2:
            return "the other operand is no matrix"
        if m.attribute(m.root, "transBatchA", 0) or m.attribute(m.root, "transBatchB", 0):
            return "the product moves axes of its own"
        return None

    def rewrite(self, m: Match) -> ir.Node:
        side = "transA" if any(pattern in _TRANSPOSED_A for pattern, _ in m.parts) else "transB"
        inputs = [m.value("x"), m.value("other")] if side == "transA" else [m.value("other"), m.value("x")]
        return _fused(m, m.root, inputs, **{side: 1 - m.attribute(m.root, side, 0)})


_PRODUCTS = tuple(
    OpPattern(kind, ("a", "b"), domain) for kind, domain in (("MatMul", ""), ("FusedMatMul", "com.microsoft"))
)
_SCALED_OPERANDS = (op.Mul("x", "factor!"), op.Div("x", "factor!"))


def _scaled_patterns() -> tuple[OpPattern, ...]:
    patterns = [op.Mul(product, "factor!") for product in _PRODUCTS] + [
        op.Div(product, "factor!") for product in _PRODUCTS
    ]
    for scaled in _SCALED_OPERANDS:
        for domain, kind in (("", "MatMul"), ("com.microsoft", "FusedMatMul")):
            patterns += [OpPattern(kind, (scaled, "other"), domain), OpPattern(kind, ("other", scaled), domain)]
    return tuple(patterns)


class FuseFactor(Rule):
    """A number that multiplies or divides a product or an operand of it is the product's factor."""

    name = "MatMulScaleFusion"
    level = Level.EXTENDED
    patterns = _scaled_patterns()

    def check(self, m: Match) -> str | None:
        factor, product = m.constant("factor"), self._product(m)
        if factor is None or factor.size != 1:
            return ""
        result = m.context.inference.facts.get(product.outputs[0], UNKNOWN)
        if result.dtype not in _FLOATS:
            return "only floating-point numbers of 32 and 64 bits have such a product in onnxruntime"
        with np.errstate(all="ignore"):
            alpha = np.float32(self._alpha(m, factor))
        if not np.isfinite(alpha) or (alpha == 0 and factor.any()):
            return "it divides by zero, or its factor is too large or too small for an attribute"
        ranks = [m.context.inference.facts.get(value, UNKNOWN).rank for value in product.inputs if value is not None]
        if any(rank is None or rank < 2 for rank in ranks):
            return "an operand is no matrix"
        scaled = m.fact("x").rank if m.optional("x") is not None else result.rank
        if scaled is None or factor.ndim > scaled:
            return "the constant may give the result more dimensions"
        return None

    @staticmethod
    def _product(m: Match) -> ir.Node:
        return next(node for node in m.nodes if node.op_type in ("MatMul", "FusedMatMul"))

    def _alpha(self, m: Match, constant: Array) -> float:
        """What the product is multiplied by, with the constant taken in; infinite for a division by zero."""
        factor = float(constant.reshape(()))
        if any(node.op_type == "Div" for node in m.nodes):
            factor = 1.0 / factor if factor else math.inf
        product = self._product(m)
        # Both operands are the scaled one where a matrix is multiplied with itself.
        scaled = sum(value is not None and value.producer() in m.nodes for value in product.inputs)
        return float(m.attribute(product, "alpha", 1.0)) * factor ** max(1, scaled)

    def rewrite(self, m: Match) -> ir.Node:
        product, constant = self._product(m), m.constant("factor")
        assert constant is not None
        alpha = self._alpha(m, constant)
        inputs = [self._unscaled(m, value) for value in product.inputs]
        return _fused(m, product, inputs, alpha=alpha)

    @staticmethod
    def _unscaled(m: Match, value: ir.Value | None) -> ir.Value:
        assert value is not None
        return m.value("x") if value.producer() in m.nodes else value


RULES: tuple[Rule, ...] = (FuseTranspose(), FuseFactor())
