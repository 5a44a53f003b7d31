"""Plans from an earlier process: see `stored_program`, which needs what compiles; this does not.

Operators of the host, and what they need, are imported when their step runs for the first time; those with bodies,
which decide how a plan runs, at once.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sardonyx.runtime.context import RunContext
from sardonyx.runtime.files.engine_file import Bytes
from sardonyx.runtime.native.counted_call import CountedCall
from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.plan import Plan, Slot, Step, StepCall, Value


class LaterCall:
    """The function of a step, made when it is called for the first time."""

    def __init__(self, make: Callable[[], StepCall]) -> None:
        self._make = make
        self._made: StepCall | None = None
        self._lock = threading.Lock()

    def __call__(self, context: RunContext, inputs: Sequence[Value]) -> Sequence[Value]:
        if self._made is None:
            with self._lock:
                self._made = self._made or self._make()
        return self._made(context, inputs)


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
            places, axes, outputs = content["counted"]
            return CountedCall(segment, tuple(places), tuple(axes), outputs)
        data, node = self._nodes[content["node"]]
        if "flow" in content:
            return self._flow(data, node, content["flow"])

        def make() -> StepCall:
            from sardonyx.compiler.stored.restored_node import restored_call

            return restored_call(data.tobytes(), node)

        return LaterCall(make)

    def _flow(self, data: Bytes, node: Mapping[str, Any], content: Mapping[str, Any]) -> StepCall:
        from sardonyx.compiler.control_flow import with_bodies
        from sardonyx.compiler.stored.restored_node import restored_operator

        bodies = {name: self.plan(body) for name, body in content["bodies"].items()}
        captures = {name: tuple(places) for name, places in content["captures"].items()}
        return with_bodies(restored_operator(data.tobytes(), node), bodies, captures, content["inputs"], self._kernels)
