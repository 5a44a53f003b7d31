"""The step of a node with subgraphs, whose bodies are plans of their own; sessions from engines need no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx import errors
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.llvm.runtime_functions import runtime_functions
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import execute
from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.native.rounds import NativeBody, Outcome, Rounds, RoundsCode
from sardonyx.runtime.plan import Plan

if TYPE_CHECKING:
    from sardonyx.runtime.control_flow import Flow


@dataclass(frozen=True, eq=False)
class ControlFlowCall:
    """Runs the bodies as `flow` says; `bodies` by the attributes that hold them.

    The step's inputs are the node's own, `inputs` of them, and then the outer values that the bodies read; `captures`
    has the places among them of what each body reads. `native` are the bodies that can be repeated in native code.
    """

    flow: Flow
    bodies: Mapping[str, Plan]
    native: Mapping[str, NativeBody]
    captures: Mapping[str, tuple[int, ...]]
    inputs: int

    @staticmethod
    def of(
        flow: Flow, bodies: Mapping[str, Plan], captures: Mapping[str, tuple[int, ...]], inputs: int, kernels: str
    ) -> ControlFlowCall:
        """The call; `kernels` says for which instructions code is made."""
        native = {name: body for name, plan in bodies.items() if (body := _native(plan, kernels)) is not None}
        return ControlFlowCall(flow, bodies, native, captures, inputs)

    def __call__(self, context: RunContext, inputs: Sequence[Any]) -> Sequence[Any]:
        runners: dict[str, Callable[..., list[Any]]] = {
            name: BodyCall(body, self.native.get(name), context, [inputs[place] for place in self.captures[name]])
            for name, body in self.bodies.items()
        }
        return self.flow.run_bodies(runners, inputs[: self.inputs])


def _native(plan: Plan, kernels: str) -> NativeBody | None:
    """A body that native code can repeat; None for others."""
    if len(plan.steps) != 1 or not isinstance(plan.steps[0].call, NativeSegment):
        return None
    runtime = library(kernels, "runtime")
    (address,) = runtime_functions(runtime, ["rounds"])
    return NativeBody.of(plan, RoundsCode(address, runtime))


@dataclass(eq=False, slots=True)
class BodyCall:
    """A body in one run of its node: `captures` are the outer values that it reads."""

    body: Plan
    native: NativeBody | None
    context: RunContext
    captures: Sequence[Any]

    def __call__(self, *arguments: Any) -> list[Any]:
        """The body's outputs."""
        expected = len(self.body.inputs)
        if len(arguments) != expected:
            raise errors.InvalidGraph(f"a subgraph with {expected} inputs was given {len(arguments)} values")
        return execute(self.body, self.context, arguments, self.captures)

    def rounds(self, given: Rounds) -> Outcome | None:
        """Some rounds of the body in native code; None where they must be done one by one."""
        expected = len(self.body.inputs)
        if self.native is None or len(given.leading) + len(given.carried) + len(given.trailing) != expected:
            return None
        return self.native.rounds(given, self.captures, self.context)
