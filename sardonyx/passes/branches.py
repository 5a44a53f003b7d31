"""Ifs whose condition is known: the branch that it always chooses takes their place."""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from sardonyx.graph.constants import nodes_of, subgraphs
from sardonyx.ops.framework.inference import Inference
from sardonyx.passes.base import Context
from sardonyx.passes.rule import stamp

NAME = "BranchElimination"
BRANCHES = ("then_branch", "else_branch")
_COPIES_ALL = 16  # the opset from which on Identity copies whatever an If gives


def settle_known_branches(context: Context) -> int:
    """Put the branch that a condition always chooses in the place of its If; how many Ifs went.

    Exporters that script a model ask for sizes that inference knows to be equal, or not to be. Ifs in bodies of loops
    are left alone, where declared shapes may hold for the first turn only.
    """
    return _settled(context.model.graph, context)


def _settled(graph: ir.Graph, context: Context) -> int:
    changes = 0
    for node in list(graph):
        if node.op_type != "If" or node.domain != "":
            continue
        chosen = chosen_branch(node, context.inference)
        if chosen is None:
            changes += sum(_settled(branch, context) for branch in subgraphs(node))
            continue
        changes += 1 + _settled(chosen, context)
        for added in inline(graph, node, chosen):
            context.added(added)
    return changes


def chosen_branch(node: ir.Node, inference: Inference) -> ir.Graph | None:
    """The branch that an If takes in every run; None where that is not known."""
    condition = inference.fact(node.inputs[0])
    known = None if condition is None else condition.integers()
    if known is None or len(known) != 1:
        return None
    branch = node.attributes[BRANCHES[0 if known[0] else 1]].as_graph()
    # An output of the graph is copied from the branch's: early opsets copy tensors alone.
    copied = (node.version or 1) >= _COPIES_ALL or not any(
        value.is_graph_output() and not isinstance(value.type, ir.TensorType) for value in node.outputs
    )
    return branch if copied and len(branch.outputs) == len(node.outputs) else None


def inline(graph: ir.Graph, node: ir.Node, branch: ir.Graph, rule: str = NAME) -> list[ir.Node]:
    """Move the nodes of a branch in front of its If, which goes; the Identities that make outputs of the graph.

    The same for a body that takes nothing any more, where another rule puts it in the place of its node.
    """
    for name, value in list(branch.initializers.items()):
        del branch.initializers[name]
        value.name = _free_name(name, graph.initializers)
        graph.register_initializer(value)
    results = list(branch.outputs)
    nodes = list(branch)
    taken = _names(graph, node)
    for inner in nodes_of(branch):
        for value in inner.outputs:
            if value.name in taken:  # branches beside each other may use the same names
                value.name = _free_name(value.name, taken)
    branch.outputs.clear()
    branch.remove(nodes)
    graph.insert_before(node, nodes)
    copies = []
    for old, new in zip(node.outputs, results, strict=True):
        if not old.is_graph_output():
            old.replace_all_uses_with(new)
            continue
        copy = ir.node("Identity", [new], outputs=[ir.Value(name=old.name, type=old.type, shape=old.shape)])
        copy.version = node.version
        stamp([copy], rule, [node])
        graph.insert_before(node, copy)
        old.replace_all_uses_with(copy.outputs[0], replace_graph_outputs=True)
        copies.append(copy)
    for other in subgraphs(node):
        _drop(other)
    graph.remove(node, safe=True)
    return copies


def _names(graph: ir.Graph, without: ir.Node) -> set[str]:
    """The names of values in a graph and inside its nodes but one."""
    found = {value.name for value in graph.inputs} | set(graph.initializers)
    for node in graph:
        if node is not without:
            inside = (inner for branch in subgraphs(node) for inner in nodes_of(branch))
            found |= {value.name for one in (node, *inside) for value in one.outputs}
    return {name for name in found if name}


def _drop(graph: ir.Graph) -> None:
    """Take the nodes of a graph apart, which no longer read what lies around it."""
    graph.outputs.clear()
    nodes = list(graph)
    for node in nodes:
        for inner in subgraphs(node):
            _drop(inner)
    graph.remove(nodes, safe=True)


def _free_name(name: str, taken: Container[str]) -> str:
    found, number = name, 0
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found
