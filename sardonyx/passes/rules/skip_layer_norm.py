"""A residual and the normalisation behind it as one node, which gives out their sum too."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.base import Level, is_named
from sardonyx.passes.rule import Match, Replacement, Rule, op
from sardonyx.passes.rules.facts import in_main_graph, same_shape

_SUM = op.Add("x", "skip", shared=True)
_BIASED = op.Add("x", "bias!")
_SUM_WITH_BIAS = op.Add(_BIASED, "skip", shared=True)


class _SkipNormalization(Rule):
    """What both kinds share: the checks, and the node with the sum as its fourth output."""

    fused: str

    def check(self, m: Match) -> str | None:
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        x, skip = m.fact("x"), m.fact("skip")
        if x.dtype != ir.DataType.FLOAT:
            return "only single precision has such a kernel in onnxruntime"
        if x.rank not in (2, 3):
            return "it is not over rows of a matrix or of a batch of matrices"
        if not same_shape(x.shape, skip.shape):
            return "what is added is of another shape"
        if m.attribute(m.root, "axis", -1) not in (-1, x.rank - 1):
            return "it normalises more than the last dimension"
        if m.attribute(m.root, "stash_type", 1) != 1 or any(map(is_named, m.root.outputs[1:])):
            return "its statistics are read"
        for name in ("scale", "offset", "bias"):
            if m.optional(name) is None:
                continue
            if m.value(name).producer() is not None:
                return f"its {name} is computed"
            if x.shape is None or not same_shape(m.fact(name).shape, x.shape[-1:]):
                return f"its {name} is not a row as long as the last dimension"
        return None

    def rewrite(self, m: Match) -> Replacement:
        total = next(node for node in m.shared_nodes)
        inputs = [m.value("x"), m.value("skip"), m.value("scale"), *self._rows(m)]
        read = [use for use in total.outputs[0].uses() if use.node is not m.root]
        keep = bool(read) or total.outputs[0].is_graph_output()
        node = m.new_node(
            self.fused,
            inputs,
            {"epsilon": m.attribute(m.root, "epsilon", 1e-5)},
            domain="com.microsoft",
            version=1,
            outputs=4 if keep else 1,
        )
        values = {m.root.outputs[0]: node.outputs[0]}
        if keep:
            node.outputs[1].name = node.outputs[2].name = ""
            values[total.outputs[0]] = node.outputs[3]
        return Replacement((node,), values, place=total)

    def _rows(self, m: Match) -> list[ir.Value | None]:
        """The inputs behind the scale, without absent ones at the end."""
        raise NotImplementedError


class FuseSkipLayerNormalization(_SkipNormalization):
    """LayerNormalization(x + skip) and LayerNormalization(x + bias + skip) become SkipLayerNormalization."""

    name = "SkipLayerNormFusion"
    level = Level.EXTENDED
    fused = "SkipLayerNormalization"
    patterns = (
        op.LayerNormalization(_SUM_WITH_BIAS, "scale", "offset?"),
        op.LayerNormalization(_SUM, "scale", "offset?"),
    )

    def _rows(self, m: Match) -> list[ir.Value | None]:
        offset, bias = m.optional("offset"), m.optional("bias")
        if bias is not None:
            return [offset, bias]
        return [] if offset is None else [offset]


class FuseSkipRmsNormalization(_SkipNormalization):
    """RMS normalisation of x + skip or of x + bias + skip becomes SkipSimplifiedLayerNormalization."""

    name = "SkipSimplifiedLayerNormFusion"
    level = Level.EXTENDED
    fused = "SkipSimplifiedLayerNormalization"
    patterns = (
        op.SimplifiedLayerNormalization(_SUM_WITH_BIAS, "scale"),
        op.SimplifiedLayerNormalization(_SUM, "scale"),
        op.RMSNormalization(_SUM_WITH_BIAS, "scale"),
        op.RMSNormalization(_SUM, "scale"),
    )

    def _rows(self, m: Match) -> list[ir.Value | None]:
        bias = m.optional("bias")
        return [] if bias is None else [bias]


RULES: tuple[Rule, ...] = (FuseSkipLayerNormalization(), FuseSkipRmsNormalization())
