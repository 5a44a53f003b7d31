"""Activations that exporters write out as their parts."""

from __future__ import annotations

import math

import onnx_ir as ir

from sardonyx.passes.base import Level
from sardonyx.passes.rule import Match, OpPattern, Rule, op


def _gelu_patterns() -> tuple[OpPattern, ...]:
    """0.5 * x * (1 + erf(x / sqrt(2))), in the orders in which exporters multiply."""
    patterns: list[OpPattern] = []
    for scaled in (op.Div("x", math.sqrt(2.0)), op.Mul("x", math.sqrt(0.5))):
        grown = op.Add(op.Erf(scaled), 1.0)
        patterns.append(op.Mul(op.Mul("x", grown), 0.5))
        patterns.append(op.Mul("x", op.Mul(grown, 0.5)))
        patterns.append(op.Mul(op.Mul("x", 0.5), grown))
    return tuple(patterns)


class FuseGelu(Rule):
    """The parts of GELU become one node: ONNX's from opset 20 on, that of com.microsoft before."""

    name = "GeluFusionL2"
    level = Level.EXTENDED
    patterns = _gelu_patterns()

    def check(self, m: Match) -> str | None:
        if m.fact("x").dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            return "its steps round one by one in this type"
        rank, result = m.fact("x").rank, m.context.inference.facts[m.root.outputs[0]].rank
        return None if rank is not None and rank == result else "a constant may give the result more dimensions"

    def rewrite(self, m: Match) -> ir.Node:
        if m.context.model.opset_imports.get("", 1) >= 20:
            return m.new_node("Gelu", [m.value("x")], version=20)
        return m.new_node("Gelu", [m.value("x")], domain="com.microsoft", version=1)


RULES: tuple[Rule, ...] = (FuseGelu(),)
