"""LayerNormalization that exporters below opset 17 write out as its parts."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.base import Level
from sardonyx.passes.rule import Match, OpPattern, Rule, op


def _pattern() -> OpPattern:
    """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * scale + bias."""
    centred = op.Sub("x", op.ReduceMean("x", "axes?"))
    variance = op.ReduceMean(op.Pow(centred, 2.0), "variance_axes?")
    return op.Add(op.Mul(op.Div(centred, op.Sqrt(op.Add(variance, "epsilon"))), "scale"), "bias")


class FuseLayerNormalization(Rule):
    """The parts of LayerNormalization over the last dimension become one node."""

    name = "LayerNormFusionL2"
    level = Level.EXTENDED
    patterns = (_pattern(),)

    def check(self, m: Match) -> str | None:
        x = m.fact("x")
        if x.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE) or x.rank is None:
            return "its steps round one by one in this type"
        epsilon = m.constant("epsilon")
        if epsilon is None or epsilon.size != 1:
            return "its epsilon is not one constant"
        for node in m.nodes:
            if node.op_type == "ReduceMean" and not self._over_last(m, node, x.rank):
                return "it does not reduce the last dimension alone"
        for name in ("scale", "bias"):
            if m.fact(name).rank != 1 or x.shape is None or m.fact(name).shape != x.shape[-1:]:
                return f"its {name} is not a row as long as the last dimension"
        return None

    @staticmethod
    def _over_last(m: Match, node: ir.Node, rank: int) -> bool:
        axes = m.attribute(node, "axes")
        if axes is None and len(node.inputs) > 1:
            fact = m.context.inference.fact(node.inputs[1])
            axes = fact.integers() if fact is not None else None
        return (
            axes is not None and [axis % rank for axis in axes] == [rank - 1] and bool(m.attribute(node, "keepdims", 1))
        )

    def rewrite(self, m: Match) -> ir.Node:
        epsilon = m.constant("epsilon")
        assert epsilon is not None
        attributes = {"axis": -1, "epsilon": float(epsilon.reshape(()))}
        return m.new_node(
            "LayerNormalization", [m.value("x"), m.value("scale"), m.value("bias")], attributes, version=17
        )


RULES: tuple[Rule, ...] = (FuseLayerNormalization(),)
