"""The step of a node with subgraphs: its bodies are plans of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from sardonyx import errors
from sardonyx.compiler.planner import Compilation, CompiledGraph
from sardonyx.ops.framework.operator import ControlFlow, Operator
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import execute


@dataclass(frozen=True, eq=False)
class ControlFlowCall:
    """Runs the bodies as their operator says; `graphs` and `bodies` by the attributes that hold them.

    The step's inputs are the node's own, `inputs` of them, and then `captured`, the outer values that the bodies read.
    """

    operator: ControlFlow
    graphs: Mapping[str, ir.Graph]
    bodies: Mapping[str, CompiledGraph]
    captured: tuple[ir.Value, ...]
    inputs: int

    def __call__(self, context: RunContext, inputs: Sequence[Any]) -> Sequence[Any]:
        outer = dict(zip(self.captured, inputs[self.inputs :], strict=True))
        runners: dict[str, Callable[..., list[Any]]] = {
            name: functools.partial(_run_body, body, context, [outer[value] for value in body.captured])
            for name, body in self.bodies.items()
        }
        return self.operator.run_bodies(runners, inputs[: self.inputs])


def control_flow(operator: Operator, node: ir.Node, compilation: Compilation) -> ControlFlowCall:
    """The call of a node with subgraphs."""
    assert isinstance(operator, ControlFlow)
    graphs = {
        name: attribute.as_graph()
        for name, attribute in node.attributes.items()
        if attribute.type == ir.AttributeType.GRAPH
    }
    bodies = {name: compilation.compile_graph(graph) for name, graph in graphs.items()}
    captured = tuple(dict.fromkeys(value for body in bodies.values() for value in body.captured))
    return ControlFlowCall(operator, graphs, bodies, captured, len(node.inputs))


def _run_body(body: CompiledGraph, context: RunContext, captures: Sequence[Any], *arguments: Any) -> list[Any]:
    expected = len(body.plan.inputs)
    if len(arguments) != expected:
        raise errors.InvalidGraph(f"a subgraph with {expected} inputs was given {len(arguments)} values")
    return execute(body.plan, context, arguments, captures)
