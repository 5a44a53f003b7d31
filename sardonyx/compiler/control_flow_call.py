"""The step of a node with subgraphs, whose bodies are plans of their own; sessions from engines need no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sardonyx import errors
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import execute
from sardonyx.runtime.native.rounds import NativeBody, Outcome, Rounds

if TYPE_CHECKING:
    import onnx_ir as ir

    from sardonyx.compiler.planner import CompiledGraph
    from sardonyx.ops.framework.operator import ControlFlow

# Operators that a chain runs in native code, and since which opset.
_CHAINED = {"If": 1, "Loop": 1, "Scan": 9}


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

    @property
    def chained(self) -> str:
        """The operator, if it is one that a chain may run."""
        operator = self.operator
        since = _CHAINED.get(operator.op_type) if operator.domain == "" else None
        return operator.op_type if since is not None and operator.since >= since else ""

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
