"""Activations that exporters write out as their parts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from sardonyx.passes.anchored import AnchoredRule
from sardonyx.passes.base import Level
from sardonyx.passes.rule import Match, OpPattern, Rule, op
from sardonyx.passes.rules.facts import result_fact

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})


def _halved_products(grown: OpPattern) -> Iterator[OpPattern]:
    """0.5 * x * grown, in the orders in which exporters multiply."""
    for half in (op.Mul("x", 0.5), op.Div("x", 2.0)):
        yield op.Mul(half, grown)
    for half in (op.Mul(grown, 0.5), op.Div(grown, 2.0)):
        yield op.Mul("x", half)
    product = op.Mul("x", grown)
    yield op.Mul(product, 0.5)
    yield op.Div(product, 2.0)


def _erf_patterns() -> tuple[OpPattern, ...]:
    """0.5 * x * (1 + erf(x / sqrt(2))), the root of 2 by all its digits or as Megatron writes it."""
    scaled = (op.Div("x", math.sqrt(2.0)), op.Div("x", 1.41421), op.Mul("x", math.sqrt(0.5)))
    return tuple(pattern for one in scaled for pattern in _halved_products(op.Add(op.Erf(one), 1.0)))


def _tanh_patterns() -> tuple[OpPattern, ...]:
    """0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), the cube by Pow, by products or factored."""
    factor, cubic = math.sqrt(2.0 / math.pi), 0.044715
    square = op.Mul("x", "x")
    inner = [
        op.Mul(op.Add("x", op.Mul(cube, cubic)), factor) for cube in (op.Pow("x", 3.0), op.Mul(op.Mul("x", "x"), "x"))
    ]
    for term in (op.Mul(op.Mul("x", cubic), "x"), op.Mul(square, cubic), op.Mul(op.Pow("x", 2.0), cubic)):
        grown = op.Add(term, 1.0)
        inner += [op.Mul(op.Mul("x", factor), grown), op.Mul(op.Mul("x", grown), factor)]
    return tuple(pattern for one in inner for pattern in _halved_products(op.Add(op.Tanh(one), 1.0)))


def _reason(m: Match) -> str | None:
    """Why the parts of an activation must stay, if they must."""
    if m.fact("x").dtype not in _FLOATS:
        return "its steps round one by one in this type"
    rank = m.fact("x").rank
    return (
        None if rank is not None and rank == result_fact(m).rank else "a constant may give the result more dimensions"
    )


class _FuseParts(AnchoredRule):
    """A form of GELU: ONNX's operator with `attributes` from opset 20 on, `earlier` of com.microsoft before."""

    level = Level.EXTENDED
    reach = 3
    attributes: ClassVar[dict[str, str]] = {}
    earlier: ClassVar[str]

    def check(self, m: Match) -> str | None:
        return _reason(m)

    def rewrite(self, m: Match) -> ir.Node:
        if m.context.model.opset_imports.get("", 1) >= 20:
            return m.new_node("Gelu", [m.value("x")], self.attributes, version=20)
        return m.new_node(self.earlier, [m.value("x")], domain="com.microsoft", version=1)


class FuseGelu(_FuseParts):
    """The parts of GELU become one node: ONNX's from opset 20 on, that of com.microsoft before."""

    name = "GeluFusionL2"
    patterns = _erf_patterns()
    anchor = "Erf"
    earlier = "Gelu"


class FuseTanhGelu(_FuseParts):
    """The parts of the tanh form of GELU become one node: ONNX's from opset 20 on, FastGelu before."""

    name = "FastGeluFusion"
    patterns = _tanh_patterns()
    anchor = "Tanh"
    attributes = {"approximate": "tanh"}
    earlier = "FastGelu"


class FuseQuickGelu(AnchoredRule):
    """x * sigmoid(alpha * x) becomes QuickGelu; for alpha = 1 that is SiLU."""

    name = "QuickGeluFusion"
    level = Level.EXTENDED
    patterns = (op.Mul("x", op.Sigmoid(op.Mul("x", "alpha!"))), op.Mul("x", op.Sigmoid("x")))
    anchor = "Sigmoid"
    reach = 1

    def check(self, m: Match) -> str | None:
        alpha = m.constant("alpha")
        if alpha is not None and alpha.size != 1:
            return "its factor is not one number"
        return _reason(m)

    def rewrite(self, m: Match) -> ir.Node:
        alpha = m.constant("alpha")
        factor = 1.0 if alpha is None else float(alpha.reshape(()))
        return m.new_node("QuickGelu", [m.value("x")], {"alpha": factor}, domain="com.microsoft", version=1)


RULES: tuple[Rule, ...] = (FuseGelu(), FuseTanhGelu(), FuseQuickGelu())
