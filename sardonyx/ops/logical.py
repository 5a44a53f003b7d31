"""Operators on truth values."""

from __future__ import annotations

from sardonyx.kernel import expr as k
from sardonyx.kernel.expr import Expr
from sardonyx.ops.elementwise import LegacyBroadcast
from sardonyx.ops.framework.operator import Elementwise, operator


@operator("And")
class OldAnd(LegacyBroadcast):
    """A and B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return k.logical_and(a, b)


@operator("And", since=7)
class And(Elementwise):
    """A and B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return k.logical_and(a, b)


@operator("Or")
class OldOr(LegacyBroadcast):
    """A or B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return k.logical_or(a, b)


@operator("Or", since=7)
class Or(Elementwise):
    """A or B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return k.logical_or(a, b)


@operator("Xor")
class OldXor(LegacyBroadcast):
    """Either A or B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return k.logical_xor(a, b)


@operator("Xor", since=7)
class Xor(Elementwise):
    """Either A or B."""

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return k.logical_xor(a, b)


@operator("Not")
class Not(Elementwise):
    """Not X."""

    def scalar(self, x: Expr) -> Expr:
        return k.logical_not(x)
