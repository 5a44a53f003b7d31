"""Operators on the bits of integers."""

from __future__ import annotations

from sardonyx.kernel import expr as k
from sardonyx.kernel.expr import Expr
from sardonyx.ops.framework.operator import Elementwise, operator


@operator("BitShift")
class BitShift(Elementwise):
    """X shifted by Y bits to `direction`, LEFT or RIGHT; arithmetic to the right where X is signed.

    A count outside the width of the dtype leaves what sign extension alone gives.
    """

    direction: str

    def scalar(self, x: Expr, count: Expr) -> Expr:
        if self.direction not in ("LEFT", "RIGHT"):
            raise ValueError(f"direction must be LEFT or RIGHT, not '{self.direction}'")
        return k.shift_left(x, count) if self.direction == "LEFT" else k.shift_right(x, count)


@operator("BitwiseAnd")
class BitwiseAnd(Elementwise):
    """The bits that both have."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return k.bitwise_and(a, b)


@operator("BitwiseOr")
class BitwiseOr(Elementwise):
    """The bits that one of both has."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return k.bitwise_or(a, b)


@operator("BitwiseXor")
class BitwiseXor(Elementwise):
    """The bits in which they differ."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return k.bitwise_xor(a, b)


@operator("BitwiseNot")
class BitwiseNot(Elementwise):
    """The bits that X does not have."""

    def scalar(self, x: Expr) -> Expr:
        return k.bitwise_not(x)
