"""Reductions of one tensor over the same axes: one node, whose kernel reads each element once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from sardonyx.ops.framework.operator import OWN_DOMAIN
from sardonyx.ops.joint_reduction import JOINABLE
from sardonyx.passes.base import Context, Level
from sardonyx.passes.rule import Match, Replacement, Rule

NAME = "ReductionFusion"


class _Siblings(Match):
    """Reductions that go over the same rows, in the order of the readers of their tensor."""

    def __init__(self, root: ir.Node, context: Context, siblings: Sequence[ir.Node]) -> None:
        super().__init__(root, context)
        self.siblings = siblings

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        return tuple(self.siblings)

    @property
    def shared_nodes(self) -> Sequence[ir.Node]:
        """Whoever reads a result reads that of the new node."""
        return self.siblings


class JoinReductions(Rule):
    """Sums, extremes and norms of one tensor over the same axes are results of one node."""

    name = NAME
    level = Level.EXTENDED

    def roots(self) -> Iterable[tuple[str, str]]:
        return [("", kind) for kind in JOINABLE]

    def matches(self, node: ir.Node, context: Context) -> Iterator[Match]:
        x = node.inputs[0]
        if x is None:
            return
        rows = _rows(node)
        siblings = [
            reader
            for reader, place in x.uses()
            if place == 0
            and reader.domain == ""
            and reader.op_type in JOINABLE
            and reader.graph is node.graph
            and _rows(reader) == rows
        ]
        if len(siblings) > 1:
            yield _Siblings(node, context, siblings)

    def rewrite(self, m: Match) -> Replacement:
        assert isinstance(m, _Siblings)
        shared = {
            name: attribute.value
            for name, attribute in m.root.attributes.items()
            if name in ("axes", "noop_with_empty_axes")
        }
        own = {
            "kinds": [one.op_type for one in m.siblings],
            "kept": [m.attribute(one, "keepdims", 1) for one in m.siblings],
        }
        node = m.new_node("Reductions", list(m.root.inputs), shared | own, domain=OWN_DOMAIN, outputs=len(m.siblings))
        values = {one.outputs[0]: made for one, made in zip(m.siblings, node.outputs, strict=True)}
        graph, covered = m.root.graph, set(m.siblings)
        assert isinstance(graph, ir.Graph)
        return Replacement([node], values, place=next(one for one in graph if one in covered))


def _rows(node: ir.Node) -> tuple[object, ...]:
    """Over which elements a reduction goes; equal for those that go over the same."""
    axes, noop = node.attributes.get("axes"), node.attributes.get("noop_with_empty_axes")
    given = node.inputs[1] if len(node.inputs) > 1 else None
    return given, None if axes is None else tuple(axes.as_ints()), 0 if noop is None else noop.as_int()


RULES: tuple[Rule, ...] = (JoinReductions(),)
