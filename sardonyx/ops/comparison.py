"""Comparisons and tests: truth values from elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.kernel import expr as k
from sardonyx.kernel.expr import Expr
from sardonyx.ops.elementwise import LegacyBroadcast
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Elementwise, operator


class Comparison(Elementwise):
    """An elementwise operator whose result is a truth value."""

    def result_type(self, inputs: Sequence[Fact]) -> Any:
        return ir.TensorType(ir.DataType.BOOL)


class LegacyComparison(LegacyBroadcast):
    """A comparison before opset 7, with the broadcasting of that time."""

    def result_type(self, inputs: Sequence[Fact]) -> Any:
        return ir.TensorType(ir.DataType.BOOL)


@operator("Equal")
class OldEqual(LegacyComparison):
    """A == B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a.equals(b)


@operator("Equal", since=7)
class Equal(Comparison):
    """A == B, strings included."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a.equals(b)


@operator("Greater")
class OldGreater(LegacyComparison):
    """A > B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a > b


@operator("Greater", since=7)
class Greater(Comparison):
    """A > B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a > b


@operator("Less")
class OldLess(LegacyComparison):
    """A < B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a < b


@operator("Less", since=7)
class Less(Comparison):
    """A < B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a < b


@operator("GreaterOrEqual")
class GreaterOrEqual(Comparison):
    """A >= B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a >= b


@operator("LessOrEqual")
class LessOrEqual(Comparison):
    """A <= B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a <= b


@operator("IsNaN")
class IsNaN(Comparison):
    """Whether x is not a number."""

    def scalar(self, x: Expr) -> Expr:
        return k.isnan(x)


@operator("IsInf")
class IsInf(Comparison):
    """Whether x is an infinity of a sign that is asked for."""

    detect_negative: int = 1
    detect_positive: int = 1

    def scalar(self, x: Expr) -> Expr:
        if self.detect_negative and self.detect_positive:
            return k.isinf(x)
        if self.detect_negative:
            return x.equals(-math.inf)
        if self.detect_positive:
            return x.equals(math.inf)
        return k.logical_and(k.isinf(x), k.isnan(x))  # never: no element is both
