"""Plans from an earlier process: see `stored_program`, which needs what compiles; this does not.

Operators of the host, and what they need, are imported when their step runs for the first time; what steps of other
kinds need, where a plan has such steps.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from sardonyx.runtime.context import RunContext
from sardonyx.runtime.files.engine_file import Bytes
from sardonyx.runtime.forks import free_in_child, whole
from sardonyx.runtime.memory import address_space
from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.plan import Plan, Slot, Step, StepCall, Value
from sardonyx.runtime.random_state import serving_streams

if TYPE_CHECKING:
    from sardonyx.runtime.control_flow import Flow


_Made = TypeVar("_Made")


class _Later(Generic[_Made]):
    """Something that is made when it is asked for the first time, with the session's streams of random numbers."""

    def __init__(self, make: Callable[[], _Made]) -> None:
        self._make = make
        self._streams = serving_streams()
        self._made: _Made | None = None
        self._lock = free_in_child(threading.Lock())

    def now(self) -> _Made:
        if self._made is None:
            with whole(), self._lock, self._streams.serving():
                self._made = self._made or self._make()
        return self._made


class _LaterCall(_Later[StepCall]):
    """The function of a step."""

    def __call__(self, context: RunContext, inputs: Sequence[Value]) -> Sequence[Value]:
        return self.now()(context, inputs)


class _LaterFlow(_Later["Flow"]):
    """An operator that runs its bodies itself."""

    is_chained: ClassVar[bool] = False

    def run_bodies(self, bodies: Mapping[str, Any], inputs: Sequence[Value]) -> Sequence[Value]:
        return self.now().run_bodies(bodies, inputs)


class RestoredProgram:
    """What plans of a `StoredProgram` are made of; its nodes are these bytes.

    `constant` gives a constant by its number, `kernels` says for which instructions code is made.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        nodes: Bytes,
        segments: Sequence[NativeSegment],
        constant: Callable[[int], Value],
        provider: str,
        kernels: str,
    ) -> None:
        self._segments, self._constant, self._provider, self._kernels = segments, constant, provider, kernels
        sizes = [node["bytes"] for node in content["nodes"]]
        starts = itertools.accumulate((-(-size // 8) * 8 for size in sizes), initial=0)
        self._nodes = [
            (nodes[start : start + size], node)
            for start, size, node in zip(starts, sizes, content["nodes"], strict=False)
        ]

    def plan(self, content: Mapping[str, Any]) -> Plan:
        """The plan that this content describes: that of the whole program, or of a body."""
        return Plan(
            slots=tuple(map(Slot, content["slots"])),
            inputs=tuple(content["inputs"]),
            outputs=tuple(content["outputs"]),
            constants={slot: self._constant(number) for slot, number in content["constants"]},
            steps=tuple(map(self._step, content["steps"])),
            captures=tuple(content["captures"]),
        )

    def _step(self, content: Mapping[str, Any]) -> Step:
        return Step(
            name=content["name"],
            op_type=content["op_type"],
            provider=self._provider,
            kind=content["kind"],
            inputs=tuple(content["inputs"]),
            outputs=tuple(content["outputs"]),
            call=self._call(content),
            node_index=content["index"],
            reason=content["reason"],
            release=tuple(content["release"]),
        )

    def _call(self, content: Mapping[str, Any]) -> StepCall:
        if "segment" in content:
            segment: NativeSegment = self._segments[content["segment"]]
            if "counted" not in content:
                return segment
            from sardonyx.runtime.native.counted_call import CountedCall

            places, axes, outputs = content["counted"]
            return CountedCall(segment, tuple(places), tuple(axes), outputs)
        if "flow" in content:
            return self._control_flow(content["flow"])
        data, node = self._nodes[content["node"]]

        def make() -> StepCall:
            _require_room()
            from sardonyx.compiler.stored.restored_node import restored_call

            return restored_call(data.tobytes(), node)

        return _LaterCall(make)

    def _control_flow(self, content: Mapping[str, Any]) -> StepCall:
        from sardonyx.compiler.control_flow_call import ControlFlowCall

        bodies = {name: self.plan(body) for name, body in content["bodies"].items()}
        captures = {name: tuple(places) for name, places in content["captures"].items()}
        return ControlFlowCall.of(self._flow(content), bodies, captures, content["inputs"], self._kernels)

    def _flow(self, content: Mapping[str, Any]) -> Flow:
        if "runs" in content:
            from sardonyx.runtime.control_flow import flow_of

            return flow_of(content["runs"])
        data, node = self._nodes[content["node"]]

        def make() -> Flow:
            _require_room()
            from sardonyx.compiler.stored.restored_node import restored_operator
            from sardonyx.ops.framework.operator import ControlFlow

            operator = restored_operator(data.tobytes(), node)
            assert isinstance(operator, ControlFlow)
            return operator.flow()

        return _LaterFlow(make)


# Address space that operators take with onnx and onnx-ir.
_OPERATOR_BYTES = 30 << 20


def _require_room() -> None:
    address_space.require_import(
        "sardonyx.compiler.stored.restored_node",
        _OPERATOR_BYTES,
        "A step on the host, for which onnx and onnx-ir are imported,",
    )
