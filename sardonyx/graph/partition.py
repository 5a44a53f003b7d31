"""Which provider runs which node, and the order in which parts of a graph go to their providers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import onnx_ir as ir

from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class Claims:
    """A provider's answer about a graph: the nodes it takes and those it declines, each with a reason."""

    taken: Mapping[ir.Node, str]
    declined: Mapping[ir.Node, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Partition:
    """Consecutive nodes of a graph that one provider runs."""

    provider: str
    nodes: tuple[ir.Node, ...]

    def inputs(self) -> tuple[ir.Value, ...]:
        """The values that its nodes and their subgraphs read but do not make, in order of first use."""
        made = {value for node in self._all_nodes() for value in node.outputs}
        given = {value for node in self.nodes for graph in _subgraphs(node) for value in graph.inputs}
        read = dict.fromkeys(value for node in self._all_nodes() for value in node.inputs if value is not None)
        return tuple(value for value in read if value.name and value not in made and value not in given)

    def outputs(self) -> tuple[ir.Value, ...]:
        """The values that its nodes make and that others read or that leave the graph."""
        inside = set(self._all_nodes())
        return tuple(
            value
            for node in self.nodes
            for value in node.outputs
            if value.is_graph_output() or any(reader not in inside for reader in value.consumers())
        )

    def _all_nodes(self) -> list[ir.Node]:
        return [
            inner
            for node in self.nodes
            for inner in (node, *(nested for graph in _direct_subgraphs(node) for nested in graph.all_nodes()))
        ]


def _direct_subgraphs(node: ir.Node) -> list[ir.Graph]:
    return [item.as_graph() for item in node.attributes.values() if item.type == ir.AttributeType.GRAPH]


def _subgraphs(node: ir.Node) -> list[ir.Graph]:
    """The graphs inside a node, at every depth."""
    direct = _direct_subgraphs(node)
    return [*direct, *(inner for graph in direct for nested in graph for inner in _subgraphs(nested))]


@dataclass(frozen=True)
class Placement:
    """Where every node of one graph runs and why; `declined` keeps what earlier providers answered."""

    provider: Mapping[ir.Node, str]
    reason: Mapping[ir.Node, str]
    declined: Mapping[ir.Node, Mapping[str, str]]


def place(graph: ir.Graph, claims: Mapping[str, Claims]) -> tuple[Placement, list[ir.Node]]:
    """Give each node to the first provider of `claims`, in order, that takes it; also the nodes that none takes."""
    provider: dict[ir.Node, str] = {}
    reason: dict[ir.Node, str] = {}
    declined: dict[ir.Node, dict[str, str]] = {}
    left: list[ir.Node] = []
    for node in graph:
        for name, answer in claims.items():
            if node in answer.taken:
                provider[node] = name
                reason[node] = answer.taken[node]
                break
            declined.setdefault(node, {})[name] = answer.declined.get(node, "not claimed")
        else:
            left.append(node)
    return Placement(provider, reason, declined), left


def partitions(nodes: Sequence[ir.Node], placement: Placement) -> list[Partition]:
    """Runs of consecutive nodes of one provider, in graph order; so every partition is convex."""
    parts: list[Partition] = []
    current: list[ir.Node] = []
    for node in nodes:
        if current and placement.provider[node] != placement.provider[current[0]]:
            parts.append(Partition(placement.provider[current[0]], tuple(current)))
            current = []
        current.append(node)
    if current:
        parts.append(Partition(placement.provider[current[0]], tuple(current)))
    return parts
