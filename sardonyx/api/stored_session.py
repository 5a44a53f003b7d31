"""Sessions from engines: what a session needs to run, taken from a file that an earlier session of the model left.

Only what runs comes from there. Whatever else somebody asks for (another shape, fewer outputs, why a node is where it
is) comes from the model, which is loaded and compiled then, as it would have been without an engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import errors, log
from sardonyx.api.built import Built
from sardonyx.api.engine_store import EngineStore
from sardonyx.api.model_metadata import ModelMetadata
from sardonyx.api.signature import Declared, Signature
from sardonyx.compiler.stored_plan import NotStorableError, restored_plan, stored_plan
from sardonyx.graph.external_data import map_file
from sardonyx.providers.cpu import CPUExecutionProvider
from sardonyx.runtime.engine_file import Bytes, Engine
from sardonyx.runtime.native_segment import NativeSegment, ReadyPlan, Shapes
from sardonyx.runtime.plan import Plan, Slot, Step
from sardonyx.runtime.settings import RunSettings

Array = np.ndarray[Any, Any]


class Keeper:
    """Writes the engine of a session, on a thread of its own, once the session has run."""

    def __init__(self, store: EngineStore, built: Built, files: Sequence[str], logger: log.Logger) -> None:
        self._store, self._signature, self._plan = store, built.signature, built.plan
        self._providers, self._files, self._logger = built.providers, tuple(files), logger

    @staticmethod
    def of(store: EngineStore, built: Built, files: Sequence[str], logger: log.Logger) -> Keeper | None:
        """One for a session that an engine can stand for; None for others."""
        signature = built.signature
        values = (*signature.inputs, *signature.outputs, *signature.declared_outputs)
        if signature.overridable or not all(isinstance(value.type, ir.TensorType) for value in values):
            return None
        if segment_of(built.plan) is None or store.settled(files) is None:
            return None
        return Keeper(store, built, files, logger)

    def __call__(self, inputs: Sequence[Any]) -> None:
        """Keep the plan of a run with these inputs, in the plan's order."""
        segment = segment_of(self._plan)
        assert segment is not None
        places = _places(self._plan)
        ready = segment.made_plan(tuple(inputs[place].shape for place in places))
        if ready is not None:
            threading.Thread(target=self._write, args=(segment, ready, inputs, places), name="sardonyx-engine").start()

    def _write(self, segment: NativeSegment, ready: ReadyPlan, inputs: Sequence[Any], places: Sequence[int]) -> None:
        (provider,) = self._providers
        assert isinstance(provider, CPUExecutionProvider)
        try:
            stored = stored_plan(ready, provider.library, self._files)
        except (NotStorableError, OSError) as error:
            self._logger.info(f"no engine is kept of this model: {error}", "engine")
            return
        content = {
            "signature": _signature_content(self._signature),
            "graph": _graph_content(self._plan, segment),
            "shapes": [inputs[place].shape for place in places],
            "plan": stored.content,
        }
        self._store.keep(self._files, content, [stored.tables, stored.constants])


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
        if found is None or _graph_content(plan, found) != self._graph:
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


def _places(plan: Plan) -> list[int]:
    """Which of the plan's inputs the only step reads, in its order."""
    return [plan.inputs.index(slot) for slot in plan.steps[0].inputs]


def _graph_content(plan: Plan, segment: NativeSegment) -> dict[str, Any]:
    (step,) = plan.steps
    return {
        "inputs": [plan.slots[slot].name for slot in plan.inputs],
        "read": _places(plan),
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


def _signature_content(signature: Signature) -> dict[str, Any]:
    groups = {name: getattr(signature, name) for name in ("inputs", "outputs", "declared_outputs")}
    return {
        **{name: [[one.name, int(one.type.dtype), one.dims] for one in values] for name, values in groups.items()},
        "order": signature.order,
        "metadata": asdict(signature.metadata),
    }


def _signature_of(content: Mapping[str, Any]) -> Signature:
    def values(name: str) -> tuple[Declared, ...]:
        return tuple(
            Declared(name, ir.TensorType(ir.DataType(kind)), None if dims is None else tuple(dims))
            for name, kind, dims in content[name]
        )

    inputs, outputs, declared = map(values, ("inputs", "outputs", "declared_outputs"))
    return Signature(inputs, outputs, (), declared, tuple(content["order"]), ModelMetadata(**content["metadata"]))
