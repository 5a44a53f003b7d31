"""The nodes of a model by operator, so that a rule visits only those that may be the root of a match."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import onnx_ir as ir

from sardonyx.graph.constants import graphs_of


class NodeIndex:
    """Nodes by domain and operator, of a graph and of all graphs inside it.

    Nodes that were removed since are left out; nodes that were added are known once `add` was told.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._nodes: dict[tuple[str, str], list[ir.Node]] = defaultdict(list)
        for inner in graphs_of(graph):
            for node in inner:
                self.add(node)

    def add(self, node: ir.Node) -> None:
        self._nodes[node.domain, node.op_type].append(node)

    def find(self, operators: Iterable[tuple[str, str]]) -> list[ir.Node]:
        """The nodes of operators that are still in a graph; those of one operator in the order of the graph."""
        return [node for key in operators for node in self._nodes.get(key, ()) if node.graph is not None]
