"""The step of a node with subgraphs: its bodies are plans of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from sardonyx import errors
from sardonyx.compiler.llvm.kernels.engine.rounds import emit_rounds
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.planner import Compilation, CompiledGraph
from sardonyx.ops.framework.operator import ControlFlow, Operator
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import execute
from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.native.rounds import NativeBody, Outcome, Rounds, RoundsCode


@dataclass(frozen=True, eq=False)
class ControlFlowCall:
    """Runs the bodies as their operator says; `graphs` and `bodies` by the attributes that hold them.

    The step's inputs are the node's own, `inputs` of them, and then `captured`, the outer values that the bodies read;
    `captures` has the places among them of what each body reads. `native` are the bodies that can be repeated in native
    code.
    """

    operator: ControlFlow
    graphs: Mapping[str, ir.Graph]
    bodies: Mapping[str, CompiledGraph]
    native: Mapping[str, NativeBody]
    captured: tuple[ir.Value, ...]
    captures: Mapping[str, tuple[int, ...]]
    inputs: int

    def __call__(self, context: RunContext, inputs: Sequence[Any]) -> Sequence[Any]:
        runners: dict[str, Callable[..., list[Any]]] = {
            name: BodyCall(body, self.native.get(name), context, [inputs[place] for place in self.captures[name]])
            for name, body in self.bodies.items()
        }
        return self.operator.run_bodies(runners, inputs[: self.inputs])


@dataclass(eq=False, slots=True)
class BodyCall:
    """A body in one run of its node: `captures` are the outer values that it reads."""

    body: CompiledGraph
    native: NativeBody | None
    context: RunContext
    captures: Sequence[Any]

    def __call__(self, *arguments: Any) -> list[Any]:
        """The body's outputs."""
        expected = len(self.body.plan.inputs)
        if len(arguments) != expected:
            raise errors.InvalidGraph(f"a subgraph with {expected} inputs was given {len(arguments)} values")
        return execute(self.body.plan, self.context, arguments, self.captures)

    def rounds(self, given: Rounds) -> Outcome | None:
        """Some rounds of the body in native code; None where they must be done one by one."""
        expected = len(self.body.plan.inputs)
        if self.native is None or len(given.leading) + len(given.carried) + len(given.trailing) != expected:
            return None
        return self.native.rounds(given, self.captures, self.context)


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
    places = {value: len(node.inputs) + index for index, value in enumerate(captured)}
    captures = {name: tuple(places[value] for value in body.captured) for name, body in bodies.items()}
    native = {name: body for name in bodies if (body := _native(bodies[name], compilation)) is not None}
    return ControlFlowCall(operator, graphs, bodies, native, captured, captures, len(node.inputs))


def _native(body: CompiledGraph, compilation: Compilation) -> NativeBody | None:
    """A body that native code can repeat; None for others."""
    steps = body.plan.steps
    if len(steps) != 1 or not isinstance(steps[0].call, NativeSegment):
        return None
    runtime = library(compilation.settings.kernels, "runtime")
    return NativeBody.of(body.plan, RoundsCode(runtime.address(emit_rounds, ()), runtime))
