"""Factors, addends and padding around a convolution go into its weights, its bias and its pads."""

from __future__ import annotations

import abc
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.passes.base import Level
from sardonyx.passes.rule import Array, Match, Rule, op

_FLOATS = (np.float32, np.float64)


class _FoldConstant(Rule):
    """What the rules for constants of the filters share: Conv(x, weight, offset?) and "operand", one number each."""

    level = Level.BASIC
    kind: ClassVar[str]

    def check(self, m: Match) -> str | None:
        names = ["weight", "operand"] + (["offset"] if m.optional("offset") is not None else [])
        for name in names:
            constant = m.constant(name)
            if constant is None:
                return f"its {name} is not constant"
            if constant.dtype not in _FLOATS:
                return f"its {name} is of type {constant.dtype}, in which folding would round twice"
        if self._per_filter(m) is None:
            return f"its {self.kind} is not one number for each filter"
        return None

    @staticmethod
    def _per_filter(m: Match) -> Array | None:
        """The operand as a vector of the filters, in float64; None where it varies with the place."""
        operand, weight = m.constant("operand"), m.constant("weight")
        assert operand is not None
        assert weight is not None
        filters, rank = weight.shape[0], weight.ndim
        shape = (1,) * (rank - operand.ndim) + operand.shape
        if len(shape) != rank or shape not in ((1,) * rank, (1, filters, *(1,) * (rank - 2))):
            return None
        return np.broadcast_to(operand.astype(np.float64).reshape(-1), filters)

    def rewrite(self, m: Match) -> ir.Node:
        weight, operand, offset = m.constant("weight"), self._per_filter(m), m.constant("offset")
        assert weight is not None
        assert operand is not None
        wide = np.zeros(len(operand)) if offset is None else offset.astype(np.float64)
        folded, shifted = self.folded(weight.astype(np.float64), wide, operand)
        inputs = [m.value("x"), m.value("weight")]
        if folded is not None:
            inputs[1] = m.initializer(folded.astype(weight.dtype), "weight")
        if shifted.any() or offset is not None:
            inputs.append(m.initializer(shifted.astype(weight.dtype), "bias"))
        convolution = m.node("Conv")
        node = m.new_node("Conv", inputs, version=convolution.version)
        node.attributes.update(convolution.attributes)
        return node

    @abc.abstractmethod
    def folded(self, weight: Array, offset: Array, operand: Array) -> tuple[Array | None, Array]:
        """The weights (None: as they are) and the bias with the operand in them."""


class FoldMultiplicationIntoConvolution(_FoldConstant):
    """Conv(x, W, B) * f is Conv(x, W * f, B * f)."""

    name = "ConvMulFusion"
    kind = "factor"
    patterns = (op.Mul(op.Conv("x", "weight", "offset?"), "operand!"),)

    def folded(self, weight: Array, offset: Array, operand: Array) -> tuple[Array | None, Array]:
        return weight * operand.reshape(-1, *(1,) * (weight.ndim - 1)), offset * operand


class FoldAdditionIntoConvolution(_FoldConstant):
    """Conv(x, W, B) + c is Conv(x, W, B + c)."""

    name = "ConvAddFusion"
    kind = "addend"
    patterns = (op.Add(op.Conv("x", "weight", "offset?"), "operand!"),)

    def folded(self, weight: Array, offset: Array, operand: Array) -> tuple[Array | None, Array]:
        return None, offset + operand


_PAD = op.Pad("x", "amounts?", "value?", "axes!?")


class FoldPaddingIntoConvolution(Rule):
    """Zeros that Pad puts around the places of a convolution's input are pads of the convolution."""

    name = "Pad_Fusion"
    level = Level.BASIC
    patterns = (op.Conv(_PAD, "weight", "offset?"),)

    def check(self, m: Match) -> str | None:
        pad, convolution = m.covered(_PAD), m.root
        if m.attribute(pad, "mode", "constant") != "constant":
            return "it pads with something other than zeros"
        value = m.constant("value")
        filled = m.attribute(pad, "value", 0.0) if m.optional("value") is None else value
        if filled is None or np.any(np.asarray(filled) != 0):
            return "it pads with something other than zeros"
        if m.attribute(convolution, "auto_pad", "NOTSET") not in ("NOTSET", "", "VALID"):
            return "the convolution chooses its own pads by the size of its input"
        amounts = self._amounts(m)
        if amounts is None:
            return "how much it pads, or the number of dimensions, is not known before the run"
        before, behind = amounts
        if min((*before, *behind), default=0) < 0:
            return "it cuts something off"
        return "it pads the batch or the channels" if any((*before[:2], *behind[:2])) else None

    @staticmethod
    def _amounts(m: Match) -> tuple[list[int], list[int]] | None:
        """Zeros before and behind each dimension."""
        pad, rank = m.covered(_PAD), m.fact("x").rank
        found = m.constant("amounts") if m.optional("amounts") is not None else m.attribute(pad, "pads")
        if found is None or rank is None:
            return None
        chosen = m.constant("axes") if m.optional("axes") is not None else None
        if m.optional("axes") is not None and chosen is None:
            return None
        axes = range(rank) if chosen is None else [int(axis) % rank for axis in chosen.reshape(-1)]
        numbers = [int(number) for number in np.asarray(found).reshape(-1)]
        if len(numbers) != 2 * len(axes):
            return None
        before, behind = [0] * rank, [0] * rank
        for place, axis in enumerate(axes):
            before[axis], behind[axis] = numbers[place], numbers[place + len(axes)]
        return before, behind

    def rewrite(self, m: Match) -> ir.Node:
        amounts, convolution = self._amounts(m), m.root
        assert amounts is not None
        before, behind = (numbers[2:] for numbers in amounts)
        own = list(m.attribute(convolution, "pads", ()) or [0] * (2 * len(before)))
        if m.attribute(convolution, "auto_pad", "NOTSET") == "VALID":
            own = [0] * (2 * len(before))
        pads = [mine + more for mine, more in zip(own, [*before, *behind], strict=True)]
        offset = m.optional("offset")
        inputs = [m.value("x"), m.value("weight"), *([] if offset is None else [offset])]
        node = m.new_node("Conv", inputs, version=convolution.version)
        node.attributes.update(convolution.attributes)
        node.attributes.pop("auto_pad", None)
        node.attributes.add(ir.AttrInt64s("pads", pads))
        return node


RULES: tuple[Rule, ...] = (
    FoldPaddingIntoConvolution(),
    FoldMultiplicationIntoConvolution(),
    FoldAdditionIntoConvolution(),
)
