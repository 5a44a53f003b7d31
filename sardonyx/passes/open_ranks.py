"""Ifs that give one value with as many dimensions in one branch as in the other not: its readers go into the branches.

There the number of dimensions is known, which kernels ask for. Exporters that script a model write such Ifs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from sardonyx import errors
from sardonyx.graph.constants import graphs_of, subgraphs
from sardonyx.passes.base import Context, is_named
from sardonyx.passes.branches import BRANCHES
from sardonyx.passes.rule import stamp, take_over

NAME = "OpenRankSinking"
# More nodes than this are not written twice.
_MOST_NODES = 100


def sink_open_ranks(context: Context) -> int:
    """Let what reads results of unknown rank follow them into both branches; how many Ifs changed."""
    ifs = [
        (graph, node)
        for graph in graphs_of(context.model.graph)
        for node in graph
        if node.op_type == "If" and node.domain == "" and _open_results(node, context)
    ]
    return sum(_sink(graph, node, context) for graph, node in ifs)


def _open_results(node: ir.Node, context: Context) -> list[ir.Value]:
    """The tensors whose ranks both branches know, but differently."""
    facts = context.inference.facts
    outcomes = [[facts.get(value) for value in node.attributes[name].as_graph().outputs] for name in BRANCHES]
    return [
        value
        for value, one, other in zip(node.outputs, *outcomes, strict=True)
        if _is_open(value, context) and one is not None and other is not None and None not in (one.rank, other.rank)
    ]


def _is_open(value: ir.Value, context: Context) -> bool:
    known = context.inference.facts.get(value)
    return known is not None and known.dtype is not None and known.shape is None


def _sink(graph: ir.Graph, node: ir.Node, context: Context) -> bool:
    followers = _Followers(graph, node, context)
    reason = followers.reason
    if reason is None:
        branches = [node.attributes[name].as_graph() for name in BRANCHES]
        made: list[dict[ir.Value, ir.Value]] = []
        try:
            for branch in branches:
                made.append({})
                _append(branch, node, followers.nodes, made[-1], context)
        except errors.Fail as error:
            for branch, values in zip(branches, made, strict=False):
                branch.remove(list(dict.fromkeys(_producers(values))), safe=True)
            reason = f"a branch cannot be followed by its readers: {error.message}"
    if reason is not None:
        context.decline(node, reason)
        return False
    followers.replace(branches, made)
    return True


class _Followers:
    """The nodes behind an If that read its open results, directly or through others, and what these need of it."""

    def __init__(self, graph: ir.Graph, node: ir.Node, context: Context) -> None:
        self._graph, self._node, self._context = graph, node, context
        order = list(graph)
        behind = order[order.index(node) + 1 :]
        dependent, opened = set(node.outputs), set(_open_results(node, context))
        wanted: set[ir.Node] = set()
        for one in behind:
            if opened.intersection(_read(one)):
                wanted.add(one)
                opened.update(value for value in one.outputs if _is_open(value, context))
            if dependent.intersection(_read(one)):
                dependent.update(one.outputs)
        needed = {value for one in wanted for value in _read(one)}
        earlier: set[ir.Node] = set()
        for one in reversed(behind):
            if one not in wanted and needed.intersection(one.outputs):
                (wanted if dependent.intersection(one.outputs) else earlier).add(one)
                needed.update(_read(one))
        self.nodes = [one for one in behind if one in wanted]
        self._earlier = [one for one in behind if one in earlier]
        produced = [value for one in self.nodes for value in one.outputs if is_named(value)]
        self._results = [value for value in produced if self._is_read(value, wanted)]
        self._kept = [place for place, value in enumerate(node.outputs) if self._is_read(value, wanted)]
        self._opened = opened

    @staticmethod
    def _is_read(value: ir.Value, inside: set[ir.Node]) -> bool:
        return value.is_graph_output() or any(use.node not in inside for use in value.uses())

    @property
    def reason(self) -> str | None:
        """Why they stay where they are."""
        if any(subgraph for one in self.nodes for subgraph in subgraphs(one)):
            return "control flow reads a result with an unknown number of dimensions"
        if len(self.nodes) > _MOST_NODES:
            return "too many nodes depend on a result with an unknown number of dimensions"
        given = [*self._results, *(self._node.outputs[place] for place in self._kept)]
        if not self.nodes or self._opened.intersection(given):
            return "a result with an unknown number of dimensions is given out"
        return None

    def replace(self, branches: Sequence[ir.Graph], made: Sequence[dict[ir.Value, ir.Value]]) -> None:
        """Put an If that ends with the copies in the branches in the place of the old one and of the nodes."""
        graph, node = self._graph, self._node
        for branch, values in zip(branches, made, strict=True):
            outputs = [branch.outputs[place] for place in self._kept] + [values[value] for value in self._results]
            branch.outputs.clear()
            branch.outputs.extend(outputs)
        old = [node.outputs[place] for place in self._kept] + self._results
        attributes, condition, version = list(node.attributes.values()), node.inputs[0], node.version
        new = ir.Node("", "If", [condition], attributes, num_outputs=len(old), version=version, name=node.name)
        stamp([new], NAME, [node, *self.nodes])
        graph.remove(self._earlier)
        graph.insert_before(node, [*self._earlier, new])
        for before, after in zip(old, new.outputs, strict=True):
            take_over(after, before)
            ir.convenience.replace_all_uses_with(before, after, replace_graph_outputs=True)
        graph.remove([node, *self.nodes], safe=True)
        self._context.added(new)


def _append(
    branch: ir.Graph,
    node: ir.Node,
    followers: Sequence[ir.Node],
    made: dict[ir.Value, ir.Value],
    context: Context,
) -> None:
    """Copies of the nodes behind those of a branch, what they make being put into `made`; errors.Fail where one of them
    breaks a rule.
    """
    given = dict(zip(node.outputs, branch.outputs, strict=True))
    for one in followers:
        inputs = [value if value is None else made.get(value, given.get(value, value)) for value in one.inputs]
        outputs = [ir.Value(name=f"{value.name}_in_{branch.name}" if is_named(value) else "") for value in one.outputs]
        kept = list(one.attributes.values())
        copy = ir.Node(one.domain, one.op_type, inputs, kept, outputs=outputs, version=one.version, name=one.name)
        stamp([copy], NAME, [one])
        branch.append(copy)
        made.update(zip(one.outputs, outputs, strict=True))
        context.added(copy)


def _producers(values: dict[ir.Value, ir.Value]) -> Iterator[ir.Node]:
    for value in values.values():
        producer = value.producer()
        if producer is not None:
            yield producer


def _read(node: ir.Node) -> set[ir.Value]:
    """What a node reads, in its subgraphs too."""
    inner = (other for graph in subgraphs(node) for part in graphs_of(graph) for other in part)
    return {value for one in (node, *inner) for value in one.inputs if value is not None}
