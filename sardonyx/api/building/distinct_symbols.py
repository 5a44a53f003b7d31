"""A model in which no two dimensions of inputs are taken for equal because of their names; see `shared_symbols`."""

from __future__ import annotations

import onnx_ir as ir


def make_distinct(model: ir.Model) -> None:
    """Give every symbolic dimension of an input a name of its own, and take names from all other declarations."""
    graph = model.graph
    inputs = set(graph.inputs)
    declared = {*graph.outputs, *(value for node in graph.all_nodes() for value in node.outputs)}
    declared.update(value for node in graph.all_nodes() for value in _inner_inputs(node))
    for value in declared - inputs:
        if value.shape is not None:
            value.shape = ir.Shape([dim if isinstance(dim, int) else None for dim in value.shape])
    for number, value in enumerate(graph.inputs):
        if value.shape is not None:
            value.shape = ir.Shape(
                [dim if isinstance(dim, int) else f"input_{number}_{axis}" for axis, dim in enumerate(value.shape)]
            )


def _inner_inputs(node: ir.Node) -> list[ir.Value]:
    """The inputs of a node's subgraphs."""
    graphs = [one.as_graph() for one in node.attributes.values() if one.type == ir.AttributeType.GRAPH]
    return [value for graph in graphs for value in graph.inputs]
