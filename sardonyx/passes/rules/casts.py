"""Conversions whose type another value gives."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.base import Level
from sardonyx.passes.rule import Match, Rule, op


class CastLikeToCast(Rule):
    """A CastLike whose second input has a known type is a Cast to it: the other's elements are not needed."""

    name = "CastLikeToCast"
    level = Level.BASIC
    patterns = (op.CastLike("x", "like"),)

    def check(self, m: Match) -> str | None:
        return "the type of the second input is not known" if m.fact("like").dtype is None else None

    def rewrite(self, m: Match) -> ir.Node:
        dtype = m.fact("like").dtype
        assert dtype is not None
        attributes = {name: attribute.value for name, attribute in m.root.attributes.items()} | {"to": int(dtype)}
        return m.new_node("Cast", [m.value("x")], attributes, version=m.root.version)


_INEXACT = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_INNER = op.Cast("x")


class JoinCasts(Rule):
    """A conversion of a conversion is the second one alone; only where it is asked for.

    What the type in between would have rounded stays unrounded. A type in between that drops fractions or signs, or
    holds flags, stays: without it the result would mean something else.
    """

    name = "CastChainElimination"
    level = Level.BASIC
    optional = True
    patterns = (op.Cast(_INNER),)

    def check(self, m: Match) -> str | None:
        before, between = m.fact("x").dtype, ir.DataType(m.attribute(m.covered(_INNER), "to"))
        if before is None or before == ir.DataType.STRING or m.attribute(m.root, "to") == ir.DataType.STRING:
            return "it is a conversion from or to text"
        if between in _INEXACT or _holds(between, before):
            return None
        return f"the type in between, {between.name}, changes more than the last digits"

    def rewrite(self, m: Match) -> ir.Node:
        attributes = {name: attribute.value for name, attribute in m.root.attributes.items()}
        return m.new_node("Cast", [m.value("x")], attributes, version=m.root.version)


def _holds(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Whether an integer type holds every number of another one, or of flags."""
    if not wide.is_integer() or not (narrow.is_integer() or narrow == ir.DataType.BOOL):
        return False
    if narrow == ir.DataType.BOOL:
        return True
    spare = wide.bitwidth - narrow.bitwidth
    return (wide.is_signed() or not narrow.is_signed()) and spare >= int(wide.is_signed() != narrow.is_signed())


RULES: tuple[Rule, ...] = (CastLikeToCast(), JoinCasts())
