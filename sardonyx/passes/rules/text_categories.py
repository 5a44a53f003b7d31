"""Features of strings: what needs Python objects is a look-up that gives numbers, the features are made of these."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.passes.base import Level
from sardonyx.passes.rule import Match, Replacement, Rule, op

DOMAIN = "ai.onnx.ml"


def numbered(m: Match, texts: ir.Value | None, names: Sequence[str]) -> ir.Node:
    """The node that gives for strings their places among the names, -1 where they have none."""
    places, version = list(range(len(names))), m.context.model.opset_imports.get(DOMAIN, 2)
    table = {"classes_strings": list(names), "default_int64": -1}
    if version >= 2:
        table = {"keys_strings": list(names), "values_int64s": places, "default_int64": -1}
    return m.new_node("LabelEncoder", [texts], table, domain=DOMAIN, version=version)


class NumberCategories(Rule):
    """A OneHotEncoder of strings is a LabelEncoder that gives their places, and a OneHotEncoder of numbers."""

    name = "NumberCategories"
    level = Level.EXTENDED
    patterns = (op.OneHotEncoder("x", domain=DOMAIN),)

    def check(self, m: Match) -> str | None:
        names = m.attribute(m.root, "cats_strings", ())
        if not names or m.fact("x").dtype != ir.DataType.STRING:
            return ""
        if len(set(names)) < len(names):
            return "a category is there twice"
        return None

    def rewrite(self, m: Match) -> Replacement:
        names = m.attribute(m.root, "cats_strings")
        numbers = numbered(m, m.root.inputs[0], names)
        table = {"cats_int64s": list(range(len(names))), "zeros": m.attribute(m.root, "zeros", 1)}
        rows = m.new_node("OneHotEncoder", numbers.outputs, table, domain=DOMAIN)
        return Replacement([numbers, rows], {m.root.outputs[0]: rows.outputs[0]})


RULES = (NumberCategories(),)
