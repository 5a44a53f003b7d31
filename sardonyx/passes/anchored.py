"""Rules that are searched for from a rare operator inside their pattern, not from the common one at its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

import onnx_ir as ir

from sardonyx.passes.base import Context
from sardonyx.passes.rule import Match, Rule


class AnchoredRule(Rule):
    """A rule whose patterns end in operators that are everywhere (Mul, Add) and contain one that is not (Erf).

    The search goes from each `anchor` ("Erf|Tanh" for several) to the nodes that are at most `reach` results away,
    the farthest first: longer patterns win over parts of them.
    """

    anchor: ClassVar[str]
    reach: ClassVar[int]

    def roots(self) -> Iterable[tuple[str, str]]:
        return [("", kind) for kind in self.anchor.split("|")]

    def matches(self, node: ir.Node, context: Context) -> Iterator[Match]:
        for root in reversed(_followers(node, self.reach)):
            for match in super().matches(root, context):
                if node in match.nodes:
                    yield match


def _followers(node: ir.Node, reach: int) -> list[ir.Node]:
    """The nodes that read a result of `node`, those that read a result of theirs, and so on: the nearest first."""
    found = {node: None}
    edge = [node]
    for _ in range(reach):
        edge = [
            use.node
            for one in edge
            for value in one.outputs
            for use in value.uses()
            if use.node.graph is node.graph and use.node not in found
        ]
        found.update(dict.fromkeys(edge))
    return list(found)
