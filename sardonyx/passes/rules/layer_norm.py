"""LayerNormalization and RMS normalisation that exporters write out as their parts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from sardonyx.passes.anchored import AnchoredRule
from sardonyx.passes.base import Level
from sardonyx.passes.rule import Match, OpPattern, Rule, op
from sardonyx.passes.rules.facts import integers, result_fact

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})


def _divided(above: str | OpPattern, square: OpPattern) -> Iterator[OpPattern]:
    """above / sqrt(mean(square) + epsilon), by Div or by the reciprocal root."""
    deviation = op.Sqrt(op.Add(op.ReduceMean(square, "square_axes?"), "epsilon!"))
    yield op.Div(above, deviation)
    yield op.Mul(above, op.Reciprocal(deviation))
    yield op.Mul(above, op.Div(1.0, deviation))


def _centred_forms() -> tuple[OpPattern, ...]:
    """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon)."""
    centred = op.Sub("x", op.ReduceMean("x", "axes?"))
    squares = (op.Pow(centred, 2.0), op.Mul(centred, centred))
    return tuple(form for square in squares for form in _divided(centred, square))


def _folded_forms() -> tuple[OpPattern, ...]:
    """x * f + (bias - mean(x) * f) with f = scale / sqrt(mean((x - mean(x))^2) + epsilon), as TensorFlow writes it."""
    mean = op.ReduceMean("x", "axes?")
    centred = op.Sub("x", mean)
    forms = []
    for square in (op.Pow(centred, 2.0), op.Mul(centred, centred)):
        deviation = op.Sqrt(op.Add(op.ReduceMean(square, "square_axes?"), "epsilon!"))
        for inverse in (op.Reciprocal(deviation), op.Div(1.0, deviation)):
            factor = op.Mul(inverse, "scale")
            forms.append(op.Add(op.Mul("x", factor), op.Sub("bias", op.Mul(mean, factor))))
    return tuple(forms)


def _plain_forms() -> tuple[OpPattern, ...]:
    """x / sqrt(mean(x^2) + epsilon)."""
    return tuple(form for square in (op.Pow("x", 2.0), op.Mul("x", "x")) for form in _divided("x", square))


def _normalization_reason(m: Match) -> str | None:
    """Why a normalisation must stay as its parts, if it must."""
    x = m.fact("x")
    if x.dtype not in _FLOATS:
        return "its steps round one by one in this type"
    if x.rank is None:
        return "the number of its input's dimensions is not known"
    if result_fact(m).rank != x.rank:
        return "a constant may give the result more dimensions"
    epsilon = m.constant("epsilon")
    if epsilon is None or epsilon.size != 1:
        return "its epsilon is not one constant"
    for node in m.nodes:
        if node.op_type == "ReduceMean" and not _over_last(m, node, x.rank):
            return "it does not reduce the last dimension alone"
    for name in ("scale", "bias"):
        if m.optional(name) is not None and (
            m.fact(name).rank != 1 or x.shape is None or m.fact(name).shape != x.shape[-1:]
        ):
            return f"its {name} is not a row as long as the last dimension"
    return None


def _over_last(m: Match, node: ir.Node, rank: int) -> bool:
    axes = m.attribute(node, "axes")
    if axes is None and len(node.inputs) > 1:
        axes = integers(node.inputs[1], m)
    return axes is not None and [axis % rank for axis in axes] == [rank - 1] and bool(m.attribute(node, "keepdims", 1))


def _epsilon(m: Match) -> float:
    epsilon = m.constant("epsilon")
    assert epsilon is not None
    return float(epsilon.reshape(()))


class FuseLayerNormalization(AnchoredRule):
    """The parts of LayerNormalization over the last dimension become one node, with or without scale and bias."""

    name = "LayerNormFusionL2"
    level = Level.EXTENDED
    patterns = (
        *(op.Add(op.Mul(form, "scale"), "bias") for form in _centred_forms()),
        *(op.Mul(form, "scale") for form in _centred_forms()),
        *_centred_forms(),
        *_folded_forms(),
    )
    anchor = "Sqrt"
    reach = 5

    def check(self, m: Match) -> str | None:
        reason = _normalization_reason(m)
        if reason is None and m.optional("scale") is None and not isinstance(self._width(m), int):
            return "it has no scale, and the length of the last dimension is not known"
        return reason

    @staticmethod
    def _width(m: Match) -> object:
        shape = m.fact("x").shape
        return shape[-1] if shape else None

    def rewrite(self, m: Match) -> ir.Node:
        scale = m.optional("scale")
        if scale is None:
            width, dtype = self._width(m), m.fact("x").dtype
            assert isinstance(width, int)
            assert dtype is not None
            scale = m.initializer(np.ones(width, dtype.numpy()), "scale")
        inputs = [m.value("x"), scale]
        if m.optional("bias") is not None:
            inputs.append(m.value("bias"))
        return m.new_node("LayerNormalization", inputs, {"axis": -1, "epsilon": _epsilon(m)}, version=17)


class FuseRmsNormalization(AnchoredRule):
    """The parts of RMS normalisation over the last dimension become one node.

    That is RMSNormalization from opset 23 on, before it SimplifiedLayerNormalization, which onnxruntime has in the
    default domain.
    """

    name = "SimplifiedLayerNormFusion"
    level = Level.EXTENDED
    patterns = tuple(op.Mul(form, "scale") for form in _plain_forms())
    anchor = "Sqrt"
    reach = 3

    def check(self, m: Match) -> str | None:
        return _normalization_reason(m)

    def rewrite(self, m: Match) -> ir.Node:
        inputs, attributes = [m.value("x"), m.value("scale")], {"axis": -1, "epsilon": _epsilon(m)}
        if m.context.model.opset_imports.get("", 1) >= 23:
            return m.new_node("RMSNormalization", inputs, attributes, version=23)
        return m.new_node("SimplifiedLayerNormalization", inputs, attributes, version=1)


RULES: tuple[Rule, ...] = (FuseLayerNormalization(), FuseRmsNormalization())
