"""Nodes with subgraphs become steps: their bodies are compiled to plans of their own."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from sardonyx.compiler.control_flow_call import ControlFlowCall
from sardonyx.compiler.llvm.kernels.engine.rounds import emit_rounds
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.planner import Compilation, CompiledGraph
from sardonyx.ops.framework.operator import ControlFlow, Operator
from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.native.rounds import NativeBody, RoundsCode
from sardonyx.runtime.plan import Plan


def control_flow(operator: Operator, node: ir.Node, compilation: Compilation) -> ControlFlowCall:
    """The call of a node with subgraphs."""
    bodies = {name: compilation.compile_graph(graph) for name, graph in graphs_of_node(node).items()}
    captured = tuple(dict.fromkeys(value for body in bodies.values() for value in body.captured))
    places = {value: len(node.inputs) + index for index, value in enumerate(captured)}
    captures = {name: tuple(places[value] for value in body.captured) for name, body in bodies.items()}
    return _call(operator, bodies, captured, captures, len(node.inputs), compilation.settings.kernels)


def with_bodies(
    operator: Operator, bodies: Mapping[str, Plan], captures: Mapping[str, tuple[int, ...]], inputs: int, kernels: str
) -> ControlFlowCall:
    """The call of a node whose bodies have plans already; `kernels` says for which instructions code is made."""
    graphs = {name: CompiledGraph(plan, ()) for name, plan in bodies.items()}
    return _call(operator, graphs, (), captures, inputs, kernels)


def graphs_of_node(node: ir.Node) -> dict[str, ir.Graph]:
    """The subgraphs of a node by the attributes that hold them."""
    return {
        name: attribute.as_graph()
        for name, attribute in node.attributes.items()
        if attribute.type == ir.AttributeType.GRAPH
    }


def _call(
    operator: Operator,
    bodies: Mapping[str, CompiledGraph],
    captured: tuple[ir.Value, ...],
    captures: Mapping[str, tuple[int, ...]],
    inputs: int,
    kernels: str,
) -> ControlFlowCall:
    assert isinstance(operator, ControlFlow)
    native = {name: body for name in bodies if (body := _native(bodies[name].plan, kernels)) is not None}
    return ControlFlowCall(operator, graphs_of_node(operator.node), bodies, native, captured, captures, inputs)


def _native(plan: Plan, kernels: str) -> NativeBody | None:
    """A body that native code can repeat; None for others."""
    if len(plan.steps) != 1 or not isinstance(plan.steps[0].call, NativeSegment):
        return None
    runtime = library(kernels, "runtime")
    return NativeBody.of(plan, RoundsCode(runtime.address(emit_rounds, ()), runtime))
