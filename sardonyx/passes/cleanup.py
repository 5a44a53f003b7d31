"""What costs nothing to leave out: Identity nodes and nodes whose results nobody reads."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common.unused_removal import RemoveUnusedNodesPass

from sardonyx.graph.constants import graphs_of
from sardonyx.passes.base import Context
from sardonyx.passes.rule import may_be_output, take_over


def remove_unused(context: Context) -> int:
    """Remove nodes without effect and initializers without readers; inputs and outputs of the model stay."""
    before = _size(context.model.graph)
    RemoveUnusedNodesPass()(context.model)
    for graph in graphs_of(context.model.graph):  # onnx-ir's pass looks at those of the main graph alone
        for name, value in list(graph.initializers.items()):
            if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
                del graph.initializers[name]
    return before - _size(context.model.graph)


def _size(graph: ir.Graph) -> int:
    return sum(len(inner) + len(inner.initializers) for inner in graphs_of(graph))


def eliminate_identity(context: Context) -> int:
    """Let the readers of an Identity read its input.

    onnx-ir's pass of the same purpose renames a value of an enclosing graph when a subgraph gives it out, and
    with it possibly an output of the model; this one renames only what the same graph computes.
    """
    return sum(
        _eliminate(node)
        for graph in list(graphs_of(context.model.graph))
        for node in list(graph)
        if node.op_type == "Identity" and node.domain == ""
    )


def _eliminate(node: ir.Node) -> bool:
    source, result = node.inputs[0], node.outputs[0]
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    if source is None:
        return False
    if result.is_graph_output():
        if not may_be_output(source, graph):
            return False  # only a node can give it this name
        take_over(source, result)
    ir.convenience.replace_all_uses_with(result, source, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    return True
