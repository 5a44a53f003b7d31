"""Normalisation with constant statistics goes into the weights of the convolution before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.computed_tensor import ScaledTensor, scaled_filters
from sardonyx.passes.base import Level, is_named
from sardonyx.passes.rule import Match, Rule, op

Array = np.ndarray[Any, Any]

# Filters of fewer bytes are scaled at once: to hold them costs less than to look for who wants them.
_COMPUTED_BYTES = 64 << 10


class FoldBatchNormalizationIntoConvolution(Rule):
    """BatchNormalization(Conv(x, W, B)) is Conv(x, W * f, (B - mean) * f + bias), where f = scale / sqrt(var + eps)."""

    name = "ConvBNFusion"
    level = Level.BASIC
    patterns = (op.BatchNormalization(op.Conv("x", "weight", "offset?"), "scale", "bias", "mean", "variance"),)

    def check(self, m: Match) -> str | None:
        if m.attribute(m.root, "training_mode", 0) or any(map(is_named, m.root.outputs[1:])):
            return "the normalisation is in training mode"
        if m.attribute(m.root, "spatial", 1) != 1:
            return "the normalisation has statistics of its own for every place"
        names = ["weight", "scale", "bias", "mean", "variance"]
        if m.optional("offset") is not None:
            names.append("offset")
        for name in names:
            constant = m.constant(name)
            if constant is None:
                return f"its {name} is not constant"
            if constant.dtype not in (np.float32, np.float64):
                return f"its {name} is of type {constant.dtype}, in which folding would round twice"
        return None

    def rewrite(self, m: Match) -> ir.Node:
        weight = m.constant("weight")
        assert weight is not None
        scale, bias, mean, variance = (self._wide(m, name) for name in ("scale", "bias", "mean", "variance"))
        offset = self._wide(m, "offset") if m.optional("offset") is not None else np.zeros_like(mean)
        factor = scale / np.sqrt(variance + m.attribute(m.root, "epsilon", 1e-5))
        folded = self._folded(m, weight, factor)
        shifted = m.initializer(((offset - mean) * factor + bias).astype(weight.dtype), "bias")
        convolution = m.node("Conv")
        node = m.new_node("Conv", [m.value("x"), folded, shifted], version=convolution.version)
        node.attributes.update(convolution.attributes)
        return node

    @staticmethod
    def _folded(m: Match, weight: Array, factor: Array) -> ir.Value:
        """The filters times their factors: where they are large, worked out when they are packed."""
        if weight.nbytes < _COMPUTED_BYTES:
            return m.initializer(scaled_filters(weight, factor, np.empty_like(weight)), "weight")
        source = m.value("weight").const_value
        assert source is not None
        return m.computed(lambda name: ScaledTensor(source, factor, name), "weight")

    @staticmethod
    def _wide(m: Match, name: str) -> np.ndarray:
        constant = m.constant(name)
        assert constant is not None
        return constant.astype(np.float64)


RULES: tuple[Rule, ...] = (FoldBatchNormalizationIntoConvolution(),)
