"""GELU with the bias before it or the product before that, and its tanh form in the place of the exact one."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.base import Level
from sardonyx.passes.rule import Match, Rule, op

_MICROSOFT = "com.microsoft"
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})
_BIASED = op.Add("x", "bias!")


def _is_tanh_form(gelu: ir.Node) -> bool:
    """Whether a node computes the tanh form: FastGelu, or ONNX's Gelu with that attribute."""
    form = gelu.attributes.get("approximate")
    return gelu.op_type == "FastGelu" or (form is not None and form.as_string() == "tanh")


class FuseBiasGelu(Rule):
    """A row added to what GELU reads is its second input: BiasGelu, and FastGelu with a bias for the tanh form.

    For models that are saved: in the kernels here the sum is a part of the product before it either way.
    """

    name = "BiasGeluFusion"
    level = Level.EXTENDED
    patterns = (
        op.Gelu(_BIASED),
        op.Gelu(_BIASED, domain=_MICROSOFT),
        op.FastGelu(_BIASED, domain=_MICROSOFT),
    )

    def check(self, m: Match) -> str | None:
        x, bias = m.fact("x"), m.fact("bias")
        if x.dtype not in _FLOATS:
            return "only single and half precision have such a kernel in onnxruntime"
        if bias.rank != 1 or x.shape is None or bias.shape != x.shape[-1:]:
            return "what is added is not a row as long as the last dimension"
        return None

    def rewrite(self, m: Match) -> ir.Node:
        kind = "FastGelu" if _is_tanh_form(m.root) else "BiasGelu"
        return m.new_node(kind, [m.value("x"), m.value("bias")], domain=_MICROSOFT, version=1)


class ApproximateGelu(Rule):
    """GELU by the error function becomes its tanh form, which differs by up to 5e-4; only where it is asked for."""

    name = "GeluApproximation"
    level = Level.EXTENDED
    optional = True
    patterns = (
        op.Gelu("x"),
        op.Gelu("x", domain=_MICROSOFT),
        op.BiasGelu("x", "bias", domain=_MICROSOFT),
    )

    def check(self, m: Match) -> str | None:
        if _is_tanh_form(m.root):
            return ""
        return None if m.fact("x").dtype in _FLOATS else "only single and half precision have such a kernel"

    def rewrite(self, m: Match) -> ir.Node:
        bias = m.optional("bias")
        inputs = [m.value("x")] if bias is None else [m.value("x"), bias]
        return m.new_node("FastGelu", inputs, domain=_MICROSOFT, version=1)


class FuseProductAndGelu(Rule):
    """A product and the tanh form of GELU behind it are GemmFastGelu, which graphics processors have a kernel for."""

    name = "GemmFastGeluFusion"
    level = Level.EXTENDED
    optional = True
    patterns = (op.FastGelu(op.MatMul("x", "weight"), "bias?", domain=_MICROSOFT),)

    def check(self, m: Match) -> str | None:
        if m.fact("weight").rank != 2:
            return "its second operand is no matrix"
        return None if m.fact("x").dtype in _FLOATS else "only single and half precision have such a kernel"

    def rewrite(self, m: Match) -> ir.Node:
        bias = m.optional("bias")
        inputs = [m.value("x"), m.value("weight")]
        return m.new_node("GemmFastGelu", inputs if bias is None else [*inputs, bias], domain=_MICROSOFT, version=1)


BIAS_RULES: tuple[Rule, ...] = (FuseBiasGelu(),)
APPROXIMATION_RULES: tuple[Rule, ...] = (ApproximateGelu(),)
PRODUCT_RULES: tuple[Rule, ...] = (FuseProductAndGelu(),)
