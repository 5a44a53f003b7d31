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
from sardonyx.api.engine_store import EngineStore, file_state
from sardonyx.api.model_metadata import ModelMetadata
from sardonyx.api.signature import Declared, Signature, ValueKind
from sardonyx.compiler.restored_plan import restored_plan
from sardonyx.providers.cpu import CPUExecutionProvider
from sardonyx.runtime.engine_file import Bytes, Engine
from sardonyx.runtime.mapped_pages import map_file
from sardonyx.runtime.native_segment import NativeSegment, ReadyPlan, Shapes
from sardonyx.runtime.plan import Plan, Slot, Step

Array = np.ndarray[Any, Any]


def opened(store: EngineStore, engine: Engine, build: Build) -> Built | None:
    """What a session is made of, from an engine; `build` makes it from the model. None where a kernel is gone."""
    content = engine.content
    graph = content["graph"]
    shapes: Shapes = tuple(map(tuple, content["shapes"]))
    try:
        files = HeldFiles(content["files"])
    except OSError:  # one went away just now
        return None
    later = _Later(build, files, graph)
    provider = CPUExecutionProvider({})
    resources = provider.resources(store.settings)

    def plan_again() -> ReadyPlan:
        return later.segment().plan_for(shapes)

    tables, constants = engine.sections
    kept = restored_plan(content["plan"], tables, constants, resources.library, files.array, plan_again)
    if kept is None:
        return None
    plans = {shapes: kept}

    def let_go() -> None:
        """What the model was made into has all of the weights: the plan of the engine is not needed any more."""
        if plans:
            plans.clear()
            segment.forget_plans()
            store.forget()

    def make_plan(given: Shapes, contents: Sequence[Array]) -> ReadyPlan:
        known = plans.get(given)
        if known is None:
            known = later.segment().plan_for(given)
            let_go()
        return known

    def restricted(places: Sequence[int]) -> tuple[NativeSegment, Sequence[int]]:
        part = later.segment().restricted(places)
        let_go()
        return part

    dtypes = [np.dtype(name) for name in graph["dtypes"]]
    segment = resources.segment(make_plan, dtypes, graph["names"], (), restricted)
    return Built(
        signature=_signature_of(content["signature"]),
        plan=_plan_of(graph, segment, provider.name),
        defaults={},
        providers=[provider],
        compiled=lambda: later.built().compiled(),
        is_stored=True,
    )


class HeldFiles:
    """The files of a model as they were when its session began: mapped, so that they outlive their names."""

    def __init__(self, states: Mapping[str, Sequence[int]]) -> None:
        """`states` by path, as `file_state` gives them; OSError where a file is not like that."""
        self._states = {path: list(state) for path, state in states.items()}
        self.views = {path: map_file(path) for path in states}
        if self.changed():
            raise FileNotFoundError(f"{self.changed()[0]} has changed")

    def array(self, path: str) -> Bytes:
        """The bytes of a file."""
        return np.frombuffer(self.views[path], np.uint8)

    def changed(self) -> list[str]:
        """The paths that lead to other contents now, or nowhere."""
        return [path for path, state in self._states.items() if file_state(path) != state]

    def overwritten(self) -> list[str]:
        """Those of them whose old contents are gone: the same file was written to."""
        found = {path: file_state(path) for path in self.changed()}
        return [path for path, now in found.items() if now is not None and now[3:] == self._states[path][3:]]


# Makes a session from its model file, or, given the bytes of the model's files by path, from those.
Build = Callable[[Mapping[str, memoryview] | None], Built]


class _Later:
    """The session as it is without an engine, made when it is asked for."""

    def __init__(self, build: Build, files: HeldFiles, graph: Mapping[str, Any]) -> None:
        """`graph` is what the engine says of inputs, outputs and the order in which they come."""
        self._build, self._files, self._graph = build, files, graph
        self._built: Built | None = None
        self._lock = threading.Lock()

    def built(self) -> Built:
        """What the model is made into, also where its files were replaced; `Fail` where one was written to."""
        with self._lock:
            if self._built is None:
                self._built = self._made()
            return self._built

    def _made(self) -> Built:
        files = self._files
        if not files.changed():
            made = self._build(None)
            if not files.changed():
                return made
        if files.overwritten():
            raise errors.Fail(
                f"{files.overwritten()[0]} was written to since this session began, which now needs to read it again "
                "(for other sizes, fewer outputs or an error): make the session anew"
            )
        return self._build(files.views)

    def segment(self) -> NativeSegment:
        plan = self.built().plan
        found = segment_of(plan)
        if found is None or graph_content(plan, found) != self._graph:
            raise errors.Fail("the model is not the one that this session began with: make the session anew")
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
