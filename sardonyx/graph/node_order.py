"""Orders in which the nodes of a graph may run, beside the one in which it is written."""

from __future__ import annotations

import collections
import heapq
from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from sardonyx.graph.constants import nodes_of, subgraphs

# They read sizes alone: what waits for sizes can begin as soon as possible.
_FIRST = frozenset({"Shape", "Size"})

# How many bytes a value takes.
Sizes = Callable[[ir.Value], int]


def reorder(graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
    """Bring the nodes of a graph into another order; ValueError unless they are the same nodes."""
    if set(nodes) != set(graph) or len(nodes) != len(graph):
        raise ValueError("an order has every node of the graph once")
    graph.remove(nodes)
    graph.extend(nodes)


def by_priority(graph: ir.Graph) -> list[ir.Node]:
    """Nodes that read sizes as soon as they can run, the others in the order in which they are written.

    That is the priority that onnxruntime gives to nodes.
    """
    order = _Order(graph)
    waiting = [(node.op_type not in _FIRST, order.place[node], node) for node in order.ready()]
    heapq.heapify(waiting)
    nodes: list[ir.Node] = []
    while waiting:
        node = heapq.heappop(waiting)[2]
        nodes.append(node)
        for one in order.released_by(node):
            heapq.heappush(waiting, (one.op_type not in _FIRST, order.place[one], one))
    return nodes


def by_memory(graph: ir.Graph, size_of: Sizes) -> list[ir.Node]:
    """Always the node that leaves the fewest bytes alive, of equal ones the one that became able to run last.

    A greedy choice: where its peak is not below that of the written order, it is the written order.
    """
    order = _Order(graph)
    left = {value: len(readers) for value, readers in order.readers.items()}

    def growth(node: ir.Node) -> int:
        """Bytes that are alive after the node and were not before it."""
        made = sum(size_of(value) for value in node.outputs if value in left)
        return made - sum(size_of(value) for value in order.reads[node] if left[value] == 1)

    waiting = list(order.ready())[::-1]
    nodes: list[ir.Node] = []
    while waiting:
        node = min(reversed(waiting), key=growth)
        waiting.remove(node)
        nodes.append(node)
        for value in order.reads[node]:
            left[value] -= 1
        waiting.extend(sorted(order.released_by(node), key=order.place.__getitem__, reverse=True))
    written = list(graph)
    return nodes if order.peak(nodes, size_of) < order.peak(written, size_of) else written


class _Order:
    """Who waits for whom in a graph. Nodes also wait for what is read inside of them."""

    def __init__(self, graph: ir.Graph) -> None:
        nodes = list(graph)
        self.place = {node: place for place, node in enumerate(nodes)}
        self.reads = {node: [value for value in _read_by(node) if value.producer() in self.place] for node in nodes}
        self.readers: dict[ir.Value, list[ir.Node]] = collections.defaultdict(list)
        for node, values in self.reads.items():
            for value in values:
                self.readers[value].append(node)
        for value in graph.outputs:
            if nodes:  # somebody reads it after all nodes
                self.readers[value].append(nodes[-1])
        self._missing = {node: len({value.producer() for value in values}) for node, values in self.reads.items()}

    def ready(self) -> Iterator[ir.Node]:
        """The nodes that wait for no other."""
        return (node for node, count in self._missing.items() if count == 0)

    def released_by(self, node: ir.Node) -> list[ir.Node]:
        """The nodes that waited for this one last."""
        waiting = dict.fromkeys(
            reader for value in node.outputs for reader in self.readers.get(value, ()) if value in self.reads[reader]
        )
        for one in waiting:
            self._missing[one] -= 1
        return [one for one in waiting if self._missing[one] == 0]

    def peak(self, nodes: Sequence[ir.Node], size_of: Sizes) -> int:
        """The most bytes that are alive at once in an order."""
        left = {value: len(readers) for value, readers in self.readers.items()}
        alive = most = 0
        for node in nodes:
            alive += sum(size_of(value) for value in node.outputs if value in left)
            most = max(most, alive)
            for value in self.reads[node]:
                left[value] -= 1
                if left[value] == 0:
                    alive -= size_of(value)
        return most


def _read_by(node: ir.Node) -> list[ir.Value]:
    """What a node and the graphs inside it read, each value once."""
    inside = (inner for graph in subgraphs(node) for inner in nodes_of(graph))
    given = [value for one in (node, *inside) for value in one.inputs if value is not None]
    results = [value for graph in subgraphs(node) for value in graph.outputs]
    return list(dict.fromkeys([*given, *results]))
