"""Normalisation with constant statistics goes into the weights of the convolution before it, or is a factor and an
addend of each channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.computed_tensor import ScaledTensor, scaled_filters
from sardonyx.passes.base import Level, is_named
from sardonyx.passes.rule import Match, Replacement, Rule, op

Array = np.ndarray[Any, Any]

# Filters of fewer bytes are scaled at once: to hold them costs less than to look for who wants them.
_COMPUTED_BYTES = 64 << 10

_STATISTICS = ("scale", "bias", "mean", "variance")
_LEAST_RANK = 2


class FoldBatchNormalizationIntoConvolution(Rule):
    """BatchNormalization(Conv(x, W, B)) is Conv(x, W * f, (B - mean) * f + bias), where f = scale / sqrt(var + eps)."""

    name = "ConvBNFusion"
    level = Level.BASIC
    patterns = (op.BatchNormalization(op.Conv("x", "weight", "offset?"), "scale", "bias", "mean", "variance"),)

    def check(self, m: Match) -> str | None:
        return _why_not_constant(m, ["weight", *_STATISTICS, *(["offset"] if m.optional("offset") is not None else [])])

    def rewrite(self, m: Match) -> ir.Node:
        weight = m.constant("weight")
        assert weight is not None
        offset = _wide(m, "offset") if m.optional("offset") is not None else None
        factor, addend = _factor_and_addend(m, offset)
        folded = self._folded(m, weight, factor)
        shifted = m.initializer(addend.astype(weight.dtype), "bias")
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


class SplitBatchNormalization(Rule):
    """BatchNormalization(x) is x * f + (bias - mean * f), where f = scale / sqrt(var + eps) is constant.

    A product and a sum become part of a kernel before or behind them, such as a quantised convolution's.
    """

    name = "BatchNormToMulAdd"
    level = Level.EXTENDED
    patterns = (op.BatchNormalization("x", *_STATISTICS),)

    def check(self, m: Match) -> str | None:
        shape, dtype = m.fact("x").shape, m.fact("x").dtype
        if shape is None or len(shape) < _LEAST_RANK:
            return "the number of its dimensions is not known"
        channels = m.constant("scale")
        if channels is None or channels.shape != (shape[1],):
            return "the number of its channels is not known"
        for name in _STATISTICS:
            if m.fact(name).dtype != dtype:
                return f"its {name} is of another type"
        return _why_not_constant(m, _STATISTICS)

    def rewrite(self, m: Match) -> Replacement:
        factor, addend = _factor_and_addend(m, None)
        scale, shape = m.constant("scale"), m.fact("x").shape
        assert scale is not None
        assert shape is not None
        by_channel = (-1, *(1 for _ in shape[2:]))
        of_factor, of_addend = (
            m.initializer(np.ascontiguousarray(array.astype(scale.dtype).reshape(by_channel)), suffix)
            for array, suffix in ((factor, "factor"), (addend, "addend"))
        )
        product = m.new_node("Mul", [m.value("x"), of_factor])
        total = m.new_node("Add", [product.outputs[0], of_addend])
        return Replacement((product, total), {m.root.outputs[0]: total.outputs[0]})


def _why_not_constant(m: Match, names: Sequence[str]) -> str | None:
    """Why the normalisation of these inputs is not the same function in each run."""
    if m.attribute(m.root, "training_mode", 0) or any(map(is_named, m.root.outputs[1:])):
        return "the normalisation is in training mode"
    if m.attribute(m.root, "spatial", 1) != 1:
        return "the normalisation has statistics of its own for every place"
    for name in names:
        constant = m.constant(name)
        if constant is None:
            return f"its {name} is not constant"
        if constant.dtype not in (np.float32, np.float64):
            return f"its {name} is of type {constant.dtype}, in which folding would round twice"
    return None


def _factor_and_addend(m: Match, offset: Array | None) -> tuple[Array, Array]:
    """What a channel is multiplied by, and what is added then, in float64; `offset` is added to the channel before."""
    scale, bias, mean, variance = (_wide(m, name) for name in _STATISTICS)
    factor = scale / np.sqrt(variance + m.attribute(m.root, "epsilon", 1e-5))
    return factor, ((0 if offset is None else offset) - mean) * factor + bias


def _wide(m: Match, name: str) -> Array:
    constant = m.constant(name)
    assert constant is not None
    return constant.astype(np.float64)


RULES: tuple[Rule, ...] = (FoldBatchNormalizationIntoConvolution(),)
PRODUCT_RULES: tuple[Rule, ...] = (SplitBatchNormalization(),)
