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
        if not dtype.name.startswith("FLOAT8"):
            return m.new_node("Cast", [m.value("x")], {"to": int(dtype)}, version=m.root.version)
        attributes = {"to": int(dtype), "saturate": m.attribute(m.root, "saturate", 1)}
        return m.new_node("Cast", [m.value("x")], attributes, version=m.root.version)


RULES: tuple[Rule, ...] = (CastLikeToCast(),)
