"""A residual and the normalisation behind it as one node, which gives out their sum too."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from sardonyx.ops.framework.facts import Dims
from sardonyx.passes.base import Level, is_named
from sardonyx.passes.rule import Match, Replacement, Rule, op
from sardonyx.passes.rules.attention_mask import fits
from sardonyx.passes.rules.facts import in_main_graph, same_shape

_SUM = op.Add("x", "skip", shared=True)
_BIASED = op.Add("x", "bias!")
_MICROSOFT = "com.microsoft"


def _add_up(a: Dims | None, b: Dims | None) -> bool:
    """Whether two shapes are equal in every run in which their sum does not fail."""
    if a is None or b is None or len(a) != len(b):
        return False
    return all(map(fits, a, b))


class _SkipNormalization(Rule):
    """What both kinds share: the checks, and the node with the sum as its fourth output."""

    level = Level.EXTENDED
    fused: ClassVar[str]

    def check(self, m: Match) -> str | None:
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        x, skip = m.fact("x"), m.fact("skip")
        if x.dtype != ir.DataType.FLOAT:
            return "only single precision has such a kernel in onnxruntime"
        if x.rank not in (2, 3):
            return "it is not over rows of a matrix or of a batch of matrices"
        if not _add_up(x.shape, skip.shape):
            return "what is added is of another shape"
        if m.attribute(m.root, "axis", -1) not in (-1, x.rank - 1):
            return "it normalises more than the last dimension"
        if m.attribute(m.root, "stash_type", 1) != 1 or any(map(is_named, m.root.outputs[1:])):
            return "its statistics are read"
        for name in ("scale", "offset"):
            if m.optional(name) is None:
                continue
            if m.value(name).producer() is not None:
                return f"its {name} is computed"
            if x.shape is None or not same_shape(m.fact(name).shape, x.shape[-1:]):
                return f"its {name} is not a row as long as the last dimension"
        return None

    def rewrite(self, m: Match) -> Replacement:
        total = next(node for node in m.shared_nodes)
        offset = m.optional("offset")
        inputs = [m.value("x"), m.value("skip"), m.value("scale"), *([] if offset is None else [offset])]
        read = [use for use in total.outputs[0].uses() if use.node is not m.root]
        keep = bool(read) or total.outputs[0].is_graph_output()
        node = m.new_node(
            self.fused,
            inputs,
            {"epsilon": m.attribute(m.root, "epsilon", 1e-5)},
            domain=_MICROSOFT,
            version=1,
            outputs=4 if keep else 1,
        )
        values = {m.root.outputs[0]: node.outputs[0]}
        if keep:
            node.outputs[1].name = node.outputs[2].name = ""
            values[total.outputs[0]] = node.outputs[3]
        return Replacement((node,), values, place=total)


class FuseSkipLayerNormalization(_SkipNormalization):
    """LayerNormalization(x + skip) becomes SkipLayerNormalization."""

    name = "SkipLayerNormFusion"
    fused = "SkipLayerNormalization"
    patterns = (op.LayerNormalization(_SUM, "scale", "offset?"),)


class FuseSkipRmsNormalization(_SkipNormalization):
    """RMS normalisation of x + skip becomes SkipSimplifiedLayerNormalization."""

    name = "SkipSimplifiedLayerNormFusion"
    fused = "SkipSimplifiedLayerNormalization"
    patterns = (op.SimplifiedLayerNormalization(_SUM, "scale"), op.RMSNormalization(_SUM, "scale"))


class FuseBiasSkipNormalization(Rule):
    """A constant row that is added to one of the two summands is the last input of the node."""

    name = "BiasSkipLayerNormFusion"
    level = Level.EXTENDED
    patterns = (
        op.SkipLayerNormalization(_BIASED, "skip", "scale", "offset?", domain=_MICROSOFT),
        op.SkipLayerNormalization("skip", _BIASED, "scale", "offset?", domain=_MICROSOFT),
        op.SkipSimplifiedLayerNormalization(_BIASED, "skip", "scale", domain=_MICROSOFT),
        op.SkipSimplifiedLayerNormalization("skip", _BIASED, "scale", domain=_MICROSOFT),
    )

    def check(self, m: Match) -> str | None:
        x = m.fact("x")
        if x.shape is None or not same_shape(m.fact("bias").shape, x.shape[-1:]):
            return "its bias is not a row as long as the last dimension"
        return None if _add_up(x.shape, m.fact("skip").shape) else "its bias gives it another shape"

    def rewrite(self, m: Match) -> Replacement:
        inputs: list[ir.Value | None] = [m.value("x"), m.value("skip"), m.value("scale")]
        if m.root.op_type == "SkipLayerNormalization":
            inputs.append(m.optional("offset"))
        return m.altered([*inputs, m.value("bias")])


RULES: tuple[Rule, ...] = (FuseSkipLayerNormalization(), FuseSkipRmsNormalization(), FuseBiasSkipNormalization())
