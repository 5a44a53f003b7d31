"""The CPU provider: it runs everything, as a kernel where there is one and on the host where there is none."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.compiler.interpret import render
from sardonyx.compiler.planner import Compilation, CompiledGraph
from sardonyx.graph.partition import Claims, Partition
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.program import Host, Kernel, View
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import ControlFlow, Operator
from sardonyx.ops.framework.result_size import guarded
from sardonyx.providers.base import ExecutionProvider
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import execute
from sardonyx.runtime.plan import Step, StepCall


class CPUExecutionProvider(ExecutionProvider):
    """Takes every node; its options are accepted and have no effect, as in onnxruntime."""

    name = "CPUExecutionProvider"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({})

    def claim(self, graph: ir.Graph, inference: Inference) -> Claims:
        return Claims(dict.fromkeys(graph, "the CPU provider runs every operator"))

    def compile(self, partition: Partition, compilation: Compilation) -> list[Step]:
        return [self._step(node, compilation) for node in partition.nodes]

    def _step(self, node: ir.Node, compilation: Compilation) -> Step:
        operator = compilation.inference.operator(node)
        captured: tuple[ir.Value, ...] = ()
        if isinstance(operator, ControlFlow):
            call, captured = _control_flow(operator, node, compilation)
            kind, reason = "host", operator.host_reason
        else:
            kernel = _lower(operator, [compilation.inference.fact(value) for value in node.inputs])
            if isinstance(kernel, Host):
                kernel = Host(guarded(operator, kernel.call), kernel.reason)
            call = render(kernel)
            reason = kernel.reason if isinstance(kernel, Host) else ""
            kind = "host" if isinstance(kernel, Host) else "view" if isinstance(kernel, View) else "kernel"
        return Step(
            name=compilation.node_name(node),
            op_type=node.op_type,
            provider=self.name,
            kind=kind,  # type: ignore[arg-type]
            inputs=compilation.slots((*node.inputs, *captured)),
            outputs=compilation.slots(node.outputs),
            call=call,
            node_index=compilation.node_index(node),
            reason=reason,
        )


def _lower(operator: Operator, facts: Sequence[Fact | None]) -> Kernel:
    """The kernel for the dtypes that inference found; the host where one of them is unknown."""
    dtypes: list[np.dtype[Any] | None] = []
    for fact in facts:
        if fact is None:
            dtypes.append(None)
        elif fact.type is None:
            return Host(operator.run, "the type of an input is not known before the run")
        else:
            dtypes.append(numpy_dtype(fact.type.dtype) if isinstance(fact.type, ir.TensorType) else None)
    try:
        return operator.lower(dtypes)
    except errors.OnnxRuntimeError:
        raise
    except Exception as error:  # whatever an operator cannot make sense of is the node's typed error
        node = operator.node
        raise errors.Fail(f"Node ({node.name or ''}) Op ({node.op_type}): {type(error).__name__}: {error}") from error


def _control_flow(
    operator: ControlFlow, node: ir.Node, compilation: Compilation
) -> tuple[StepCall, tuple[ir.Value, ...]]:
    """The call of a node with subgraphs, and the outer values that these read."""
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
