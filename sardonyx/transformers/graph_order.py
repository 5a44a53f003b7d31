"""Graphs inside graphs, and an order of nodes in which each follows those that it reads."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator

from onnx import AttributeProto, GraphProto, NodeProto


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph, then all graphs inside its nodes, outer ones first."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs_of(inner)


def captured(node: NodeProto) -> set[str]:
    """The values of outer graphs that the graphs inside a node read."""
    names: set[str] = set()
    for graph in subgraphs(node):
        own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        own.update(name for inner in graph.node for name in inner.output)
        read = {name for inner in graph.node for name in (*inner.input, *captured(inner))}
        names |= (read | {value.name for value in graph.output}) - own
    return names - {""}


def sort_nodes(graph: GraphProto, by_name: bool = False, outer: Collection[str] = frozenset()) -> None:
    """Sort the nodes of a graph and of the graphs inside it.

    Nodes keep their order where they may, or come in the order of their names. `outer` are the values of the graphs
    around it. RuntimeError where nodes read each other in a circle, or read what nobody makes.
    """
    known = {*outer, *(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)}
    known.update(tensor.values.name for tensor in graph.sparse_initializer)
    nodes = list(graph.node)
    producer = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    keys = [(node.name if by_name else "", index) for index, node in enumerate(nodes)]
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for name in ({*node.input} | captured(node)) - known - {""}:
            if name not in producer:
                raise RuntimeError(f"Graph is not a DAG: {node.name or node.op_type} reads {name}, which nobody makes")
            waiting[index] += 1
            readers[producer[name]].append(index)
    free = [key for key, count in zip(keys, waiting, strict=True) if count == 0]
    heapq.heapify(free)
    order: list[int] = []
    while free:
        _, index = heapq.heappop(free)
        order.append(index)
        for reader in readers[index]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(free, keys[reader])
    if len(order) < len(nodes):
        left = next(node for node, count in zip(nodes, waiting, strict=True) if count)
        raise RuntimeError(f"Graph is not a DAG: {left.name or left.op_type} reads what follows from it")
    for node in nodes:
        for inner in subgraphs(node):
            sort_nodes(inner, by_name, known | producer.keys())
    if order != list(range(len(nodes))):
        in_order = [nodes[index] for index in order]
        copies = [NodeProto.FromString(node.SerializeToString()) for node in in_order]
        del graph.node[:]
        graph.node.extend(copies)
