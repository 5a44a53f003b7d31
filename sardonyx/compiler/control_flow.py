"""The step of a node with subgraphs: its bodies are plans of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx import errors
from sardonyx.compiler.planner import Compilation, CompiledGraph
from sardonyx.ops.framework.operator import ControlFlow, Operator
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import execute
from sardonyx.runtime.plan import StepCall


def control_flow(operator: Operator, node: ir.Node, compilation: Compilation) -> tuple[StepCall, tuple[ir.Value, ...]]:
    """The call of a node with subgraphs, and the outer values that these read."""
    assert isinstance(operator, ControlFlow)
    bodies: dict[str, CompiledGraph] = {
        name: compilation.compile_graph(attribute.as_graph())
        for name, attribute in node.attributes.items()
        if attribute.type == ir.AttributeType.GRAPH
    }
    captured = tuple(dict.fromkeys(value for body in bodies.values() for value in body.captured))
    count = len(node.inputs)

    def call(context: RunContext, inputs: Sequence[Any]) -> Sequence[Any]:
        outer = dict(zip(captured, inputs[count:], strict=True))
        runners: dict[str, Callable[..., list[Any]]] = {
            name: functools.partial(_run_body, body, context, [outer[value] for value in body.captured])
            for name, body in bodies.items()
        }
        return operator.run_bodies(runners, inputs[:count])

    return call, captured


def _run_body(body: CompiledGraph, context: RunContext, captures: Sequence[Any], *arguments: Any) -> list[Any]:
    expected = len(body.plan.inputs)
    if len(arguments) != expected:
        raise errors.InvalidGraph(f"a subgraph with {expected} inputs was given {len(arguments)} values")
    return execute(body.plan, context, arguments, captures)
