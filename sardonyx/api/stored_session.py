"""Sessions from engines: what a session needs to run, taken from a file that an earlier session of the model left.

Only what runs comes from there. Whatever else somebody asks for (another shape, fewer outputs, why a node is where it
is) comes from the model, which is loaded and compiled then, as it would have been without an engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.api.built import Built
from sardonyx.api.engine_store import EngineStore
from sardonyx.api.model_metadata import ModelMetadata
from sardonyx.api.signature import Declared, Signature, ValueKind
from sardonyx.compiler.restored_plan import restored_plan
from sardonyx.providers.cpu import CPUExecutionProvider
from sardonyx.runtime.engine_file import Bytes, Engine
from sardonyx.runtime.mapped_pages import map_file
from sardonyx.runtime.native_segment import NativeSegment, ReadyPlan, Shapes
from sardonyx.runtime.plan import Plan, Slot, Step
from sardonyx.runtime.settings import RunSettings

Array = np.ndarray[Any, Any]


def opened(store: EngineStore, engine: Engine, settings: RunSettings, build: Callable[[], Built]) -> Built | None:
    """What a session is made of, from an engine; `build` makes it from the model. None where a kernel is gone."""
    provider = CPUExecutionProvider({})
    resources = provider.resources(settings)
    content = engine.content
    graph = content["graph"]
    later = _Later(build, graph)
    shapes: Shapes = tuple(map(tuple, content["shapes"]))
    mapped: dict[str, Bytes] = {}

    def file(path: str) -> Bytes:
        if path not in mapped:
            mapped[path] = np.frombuffer(map_file(path), np.uint8)
        return mapped[path]

    def plan_again() -> ReadyPlan:
        return later.segment().plan_for(shapes)

    tables, constants = engine.sections
    try:
        kept = restored_plan(content["plan"], tables, constants, resources.library, file, plan_again)
    except OSError:  # a file of the model went away just now
        return None
    if kept is None:
        return None
    plans = {shapes: kept}

    def make_plan(given: Shapes, contents: Sequence[Array]) -> ReadyPlan:
        known = plans.get(given)
        if known is None:
            known = later.segment().plan_for(given)
            if plans:  # what the model was made into has all of the weights, and the engine is not needed any more
                plans.clear()
                segment.forget_plans()
                store.forget()
        return known

    dtypes = [np.dtype(name) for name in graph["dtypes"]]

    def restricted(places: Sequence[int]) -> tuple[NativeSegment, Sequence[int]]:
        return later.segment().restricted(places)

    segment = resources.segment(make_plan, dtypes, graph["names"], (), restricted)
    return Built(
        signature=_signature_of(content["signature"]),
        plan=_plan_of(graph, segment, provider.name),
        defaults={},
        providers=[provider],
        compiled=lambda: later.built().compiled(),
        is_stored=True,
    )


class _Later:
    """The session as it is without an engine, made when it is asked for."""

    def __init__(self, build: Callable[[], Built], graph: Mapping[str, Any]) -> None:
        """`graph` is what the engine says of inputs, outputs and the order in which they come."""
        self._build, self._graph = build, graph
        self._built: Built | None = None
        self._lock = threading.Lock()

    def built(self) -> Built:
        """What the model is made into; the typed errors of loading where it is not there any more."""
        with self._lock:
            if self._built is None:
                self._built = self._build()
            return self._built

    def segment(self) -> NativeSegment:
        plan = self.built().plan
        found = segment_of(plan)
        if found is None or graph_content(plan, found) != self._graph:
            raise errors.Fail("the model file is not the one that this session began with: make the session again")
        return found


def segment_of(plan: Plan) -> NativeSegment | None:
    """The segment that is all of a plan, whatever the contents of its inputs; None where there is more to it."""
    if len(plan.steps) != 1 or plan.constants:
        return None
    (step,) = plan.steps
    if not isinstance(step.call, NativeSegment) or step.call.steering_places:
        return None
    if not set(step.inputs) <= set(plan.inputs) or not set(plan.outputs) <= set(step.outputs):
        return None
    return step.call


def places_of(plan: Plan) -> list[int]:
    """Which of the plan's inputs the only step reads, in its order."""
    return [plan.inputs.index(slot) for slot in plan.steps[0].inputs]


def graph_content(plan: Plan, segment: NativeSegment) -> dict[str, Any]:
    """What an engine says of a plan around its segment."""
    (step,) = plan.steps
    return {
        "inputs": [plan.slots[slot].name for slot in plan.inputs],
        "read": places_of(plan),
        "made": [plan.slots[slot].name for slot in step.outputs],
        "outputs": [step.outputs.index(slot) for slot in plan.outputs],
        "dtypes": [dtype.name for dtype in segment.dtypes],
        "names": list(segment.names),
        "step": [step.name, step.op_type, step.node_index],
    }


def _plan_of(graph: Mapping[str, Any], segment: NativeSegment, provider: str) -> Plan:
    count = len(graph["inputs"])
    name, op_type, index = graph["step"]
    step = Step(
        name=name,
        op_type=op_type,
        provider=provider,
        kind="segment",
        inputs=tuple(graph["read"]),
        outputs=tuple(range(count, count + len(graph["made"]))),
        call=segment,
        node_index=index,
    )
    slots = tuple(Slot(name) for name in (*graph["inputs"], *graph["made"]))
    return Plan(slots, tuple(range(count)), tuple(count + place for place in graph["outputs"]), {}, (step,))


def _signature_of(content: Mapping[str, Any]) -> Signature:
    def values(name: str) -> tuple[Declared, ...]:
        return tuple(
            Declared(name, ValueKind("tensor", kind, np.dtype(dtype)), None if dims is None else tuple(dims))
            for name, kind, dtype, dims in content[name]
        )

    inputs, outputs, declared = map(values, ("inputs", "outputs", "declared_outputs"))
    return Signature(inputs, outputs, (), declared, tuple(content["order"]), ModelMetadata(**content["metadata"]))
