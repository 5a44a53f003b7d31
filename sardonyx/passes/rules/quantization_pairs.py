"""Quantisations that follow each other, and those that are left when the integer operators are made."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.passes.base import DOUBLE_QDQ, QDQ_CLEANUP, Context, Level, Pass
from sardonyx.passes.rule import Match, Replacement, Rule, apply_rule
from sardonyx.passes.rules.linear_quantization import dequantize, quantize

_BYTES = frozenset({ir.DataType.UINT8, ir.DataType.INT8})
_FIRST = quantize("x", "outer_scale!", "outer_zero!")
_SECOND = dequantize(_FIRST, "outer_scale_again!", "outer_zero_again!")
_THIRD = quantize(_SECOND, "inner_scale!", "inner_zero!")


def _equal(m: Match, one: str, other: str) -> bool:
    a, b = m.constant(one), m.constant(other)
    return a is not None and b is not None and a.dtype == b.dtype and a.size == b.size == 1 and bool((a == b).all())


class JoinDoubleQuantization(Rule):
    """Two quantisations one after the other are one, whose range is what both ranges have in common."""

    name = DOUBLE_QDQ
    level = Level.BASIC
    patterns = (dequantize(_THIRD, "inner_scale_again!", "inner_zero_again!"),)

    def check(self, m: Match) -> str | None:
        for name in ("outer", "inner"):
            scale = m.constant(f"{name}_scale")
            if scale is None or scale.size != 1 or scale.dtype != np.float32:
                return "a scale is not one single-precision number"
            if not _equal(m, f"{name}_scale", f"{name}_scale_again"):
                return "it is dequantised with other parameters than it was quantised with"
            if not _equal(m, f"{name}_zero", f"{name}_zero_again"):
                return "it is dequantised with other parameters than it was quantised with"
        kinds = {m.fact(f"{name}_zero").dtype for name in ("outer", "inner")}
        if len(kinds) > 1 or not kinds <= _BYTES:
            return "its integers are not bytes of one kind"
        low, high = self._range(m)
        return None if low < high else "the two ranges have nothing in common"

    @staticmethod
    def _bounds(m: Match, name: str) -> tuple[float, float]:
        """The real numbers that the lowest and the highest integer stand for."""
        scale, zero = m.constant(f"{name}_scale"), m.constant(f"{name}_zero")
        assert scale is not None
        assert zero is not None
        limits = np.iinfo(zero.dtype)
        point, step = int(zero.reshape(())), float(scale.reshape(()))
        return (limits.min - point) * step, (limits.max - point) * step

    def _range(self, m: Match) -> tuple[float, float]:
        (low, high), (other_low, other_high) = self._bounds(m, "outer"), self._bounds(m, "inner")
        return max(low, other_low), min(high, other_high)

    def rewrite(self, m: Match) -> Replacement:
        parameters = self._parameters(m)
        first = m.covered(_FIRST)
        values = [m.value("x"), *parameters]
        quantized = m.new_node("QuantizeLinear", values, domain=first.domain, version=first.version)
        quantized.name = f"{m.root.name}_quantized"
        attributes = {name: attribute.value for name, attribute in m.root.attributes.items()}
        values = [quantized.outputs[0], *parameters]
        result = m.new_node("DequantizeLinear", values, attributes, domain=m.root.domain, version=m.root.version)
        return Replacement((quantized, result), {m.root.outputs[0]: result.outputs[0]})

    def _parameters(self, m: Match) -> tuple[ir.Value, ir.Value]:
        if _equal(m, "outer_scale", "inner_scale") and _equal(m, "outer_zero", "inner_zero"):
            return m.value("outer_scale"), m.value("outer_zero")
        zero = m.constant("outer_zero")
        assert zero is not None
        limits = np.iinfo(zero.dtype)
        low, high = self._range(m)
        scale = np.float32((high - low) / (limits.max - limits.min))
        point = np.clip(np.rint(limits.min - low / scale), limits.min, limits.max).astype(zero.dtype)
        return m.initializer(np.array(scale), "scale"), m.initializer(np.array(point), "zero")


_INTEGERS = dequantize("x", "scale!", "zero!")


class DropRequantization(Rule):
    """Integers that are dequantised and quantised again in the same way are these integers."""

    name = QDQ_CLEANUP
    level = Level.EXTENDED
    patterns = (quantize(_INTEGERS, "scale_again!", "zero_again!"),)

    def check(self, m: Match) -> str | None:
        if _equal(m, "scale", "scale_again") and _equal(m, "zero", "zero_again"):
            return None
        return "it is quantised with other parameters than it was before"

    def rewrite(self, m: Match) -> ir.Value:
        return m.value("x")


_REAL = quantize("x", "scale!", "zero?")


class DropQuantization(Rule):
    """Real numbers that are quantised and dequantised keep what that would round; only where it is asked for."""

    name = QDQ_CLEANUP
    level = Level.EXTENDED
    patterns = (dequantize(_REAL, "scale_again!", "zero_again?"),)

    def check(self, m: Match) -> str | None:
        facts = m.context.inference.facts
        if m.fact("x").dtype != facts[m.root.outputs[0]].dtype:
            return "its result has another type than what it quantises"
        return None

    def rewrite(self, m: Match) -> ir.Value:
        return m.value("x")


def clean_up(context: Context) -> int:
    """What onnxruntime's pass of that name does when the integer operators are made."""
    changes = apply_rule(DropRequantization(), context)
    return changes + (apply_rule(DropQuantization(), context) if context.settings.drops_quantization else 0)


RULES: tuple[Rule, ...] = (JoinDoubleQuantization(),)
PASSES = (Pass(QDQ_CLEANUP, Level.EXTENDED, clean_up),)
