"""Classifiers whose labels are strings: the model gives numbers, which become strings behind it."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.base import Level
from sardonyx.passes.rule import Match, Replacement, Rule, op

DOMAIN = "ai.onnx.ml"
_NUMBERS = {
    "TreeEnsembleClassifier": "classlabels_int64s",
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
}


class NumberClasses(Rule):
    """A classifier with string labels is one with the numbers of its classes, and a LabelEncoder of these.

    Scores need no Python objects then.
    """

    name = "NumberClasses"
    level = Level.EXTENDED
    patterns = tuple(getattr(op, name)("x", domain=DOMAIN) for name in _NUMBERS)

    def check(self, m: Match) -> str | None:
        labels = m.attribute(m.root, "classlabels_strings", ())
        if not labels:
            return ""
        if m.attribute(m.root, _NUMBERS[m.root.op_type], ()):
            return "it has labels of both kinds"
        if len(set(labels)) < 2:
            return "it has one class only"
        single = len(m.attribute(m.root, "intercepts", ())) == 1
        if m.root.op_type == "LinearClassifier" and single and len(labels) != 2:
            return "one score for other than two labels"
        return None

    def rewrite(self, m: Match) -> Replacement:
        labels = m.attribute(m.root, "classlabels_strings")
        numbers = ir.AttrInt64s(_NUMBERS[m.root.op_type], list(range(len(labels))))
        kept = {name: attribute for name, attribute in m.root.attributes.items() if name != "classlabels_strings"}
        model = m.new_node(m.root.op_type, m.root.inputs, {}, domain=DOMAIN, outputs=2)
        for attribute in (*kept.values(), numbers):
            model.attributes.add(attribute)
        version = m.context.model.opset_imports[DOMAIN]
        names = {"classes_strings": labels}
        if version >= 2:
            names = {"keys_int64s": list(range(len(labels))), "values_strings": labels}
        encoder = m.new_node("LabelEncoder", [model.outputs[0]], names, domain=DOMAIN)
        results = {m.root.outputs[0]: encoder.outputs[0]}
        if len(m.root.outputs) > 1:
            results[m.root.outputs[1]] = model.outputs[1]
        return Replacement([model, encoder], results)


RULES = (NumberClasses(),)
