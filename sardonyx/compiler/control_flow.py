"""Nodes with subgraphs become steps: their bodies are compiled to plans of their own."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.compiler.control_flow_call import ControlFlowCall
from sardonyx.compiler.planner import Compilation
from sardonyx.compiler.round_sizes import with_sizes
from sardonyx.ops.control_flow import Collecting
from sardonyx.ops.framework.operator import ControlFlow


def control_flow(
    operator: ControlFlow, node: ir.Node, compilation: Compilation
) -> tuple[ControlFlowCall, tuple[ir.Value, ...]]:
    """The call of a node with subgraphs, and the outer values that these read."""
    bodies = {name: compilation.compile_graph(graph) for name, graph in graphs_of_node(node).items()}
    captured = tuple(dict.fromkeys(value for body in bodies.values() for value in body.captured))
    places = {value: len(node.inputs) + index for index, value in enumerate(captured)}
    captures = {name: tuple(places[value] for value in body.captured) for name, body in bodies.items()}
    plans = {name: body.plan for name, body in bodies.items()}
    kernels = compilation.settings.kernels
    flow = operator.flow()
    if isinstance(operator, Collecting):
        flow = with_sizes(operator, node, bodies["body"].captured, compilation.inference)
    return ControlFlowCall.of(flow, plans, captures, len(node.inputs), kernels), captured


def graphs_of_node(node: ir.Node) -> dict[str, ir.Graph]:
    """The subgraphs of a node by the attributes that hold them."""
    return {
        name: attribute.as_graph()
        for name, attribute in node.attributes.items()
        if attribute.type == ir.AttributeType.GRAPH
    }
