"""Nodes that give back what they are given."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.passes.base import Level
from sardonyx.passes.rule import Match, Rule, op
from sardonyx.passes.rules.facts import all_known, in_main_graph, may_change_shape, result_fact, same_shape


class EliminateDropout(Rule):
    """Dropout outside training is its input."""

    name = "EliminateDropout"
    level = Level.BASIC
    patterns = (op.Dropout("x", "ratio?", "training?"),)

    def check(self, m: Match) -> str | None:
        if any(mask.uses() or mask.is_graph_output() for mask in m.root.outputs[1:]):
            return "its mask is read"
        if (m.root.version or 1) < 7 and not m.attribute(m.root, "is_test", 0):
            return "it is in training mode"
        if m.optional("training") is None:
            return None
        training = m.constant("training")
        if training is None:
            return "whether it trains is not known before the run"
        return "it is in training mode" if training.any() else None

    def rewrite(self, m: Match) -> ir.Value:
        return m.value("x")


class EliminateCast(Rule):
    """A Cast to the type that the value has is the value."""

    name = "CastElimination"
    level = Level.BASIC
    patterns = (op.Cast("x"),)

    def check(self, m: Match) -> str | None:
        wanted = m.attribute(m.root, "to")
        return None if m.fact("x").dtype == wanted else ""

    def rewrite(self, m: Match) -> ir.Value:
        return m.value("x")


class EliminateNoop(Rule):
    """x + 0, x - 0, x * 1 and x / 1 are x.

    The zero added to a floating-point number must be -0.0, because -0.0 + 0.0 is 0.0.
    """

    name = "NoopElimination"
    level = Level.BASIC
    patterns = (op.Add("x", "c!"), op.Sub("x", "c!"), op.Mul("x", "c!"), op.Div("x", "c!"))

    def check(self, m: Match) -> str | None:
        shape = m.fact("c").shape
        if shape is None or not set(shape) <= {1}:
            return ""
        constant = m.constant("c")
        assert constant is not None
        if not bool((constant == self._neutral(m.root.op_type)).all()):
            return ""
        floating = not np.issubdtype(constant.dtype, np.integer)
        sign = bool(np.signbit(constant.astype(np.float64)).all()) if floating else False
        if floating and ((m.root.op_type == "Add" and not sign) or (m.root.op_type == "Sub" and sign)):
            return "the zero would change the sign of -0.0"
        rank = m.fact("x").rank
        if rank is None or rank < constant.ndim:
            return "the constant may give the result more dimensions"
        return None

    @staticmethod
    def _neutral(op_type: str) -> int:
        return 1 if op_type in ("Mul", "Div") else 0

    def rewrite(self, m: Match) -> ir.Value:
        return m.value("x")


class EliminateSlice(Rule):
    """A Slice that takes all of every axis is its input."""

    name = "EliminateSlice"
    level = Level.BASIC
    patterns = (op.Slice("x", "starts", "ends", "axes?", "steps?"),)

    def check(self, m: Match) -> str | None:
        shape, result = m.fact("x").shape, result_fact(m).shape
        if not all_known(shape) or not all_known(result):
            return "its bounds or the shape of its input are not known"
        if not same_shape(shape, result):
            return ""
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        # As many elements in steps of one are all of them, in order.
        steps = [1] if m.optional("steps") is None else m.fact("steps").integers()
        return None if steps is not None and set(steps) <= {1} else "it takes the elements in another order"

    def rewrite(self, m: Match) -> ir.Value:
        return m.value("x")


class EliminateExpand(Rule):
    """An Expand to the shape that its input has is its input."""

    name = "ExpandElimination"
    level = Level.BASIC
    patterns = (op.Expand("x", "shape"),)

    def check(self, m: Match) -> str | None:
        return may_change_shape(m)

    def rewrite(self, m: Match) -> ir.Value:
        return m.value("x")


class EliminateConcat(Rule):
    """A Concat of one tensor is this tensor."""

    name = "EliminateConcat"
    level = Level.BASIC
    patterns = (op.Concat("x"),)

    def rewrite(self, m: Match) -> ir.Value:
        return m.value("x")


class SwapBranchesOfNegatedWhere(Rule):
    """Where(Not(c), a, b) is Where(c, b, a)."""

    name = "NotWhereFusion"
    level = Level.BASIC
    patterns = (op.Where(op.Not("condition"), "yes", "no"),)

    def rewrite(self, m: Match) -> ir.Node:
        return m.new_node("Where", [m.value("condition"), m.value("no"), m.value("yes")], version=m.root.version)


RULES: tuple[Rule, ...] = (
    EliminateDropout(),
    EliminateCast(),
    EliminateNoop(),
    EliminateSlice(),
    EliminateExpand(),
    EliminateConcat(),
    SwapBranchesOfNegatedWhere(),
)
