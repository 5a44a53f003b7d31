"""Sessions from engines: what a session needs to run, taken from a file that was made of its model earlier.

Only what runs comes from there. Whatever else somebody asks for (a shape that the engine has no plan for, fewer
outputs, why a node is where it is) comes from the model, which is loaded and compiled then, as it would have been
without an engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.api.building.built import Built
from sardonyx.api.building.model_metadata import ModelMetadata
from sardonyx.api.building.signature import Declared, Signature, ValueKind
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.restored_plan import NotRestorableError, RestoredPlans, adopt_image
from sardonyx.light_dataclass import dataclass
from sardonyx.providers.cpu import CPUExecutionProvider
from sardonyx.runtime.files.engine_file import Bytes, Engine
from sardonyx.runtime.memory.constant_memory import HeldConstant
from sardonyx.runtime.native.native_segment import NativeSegment, ReadyPlan, Shapes
from sardonyx.runtime.plan import Plan, Slot, Step
from sardonyx.runtime.settings import RunSettings

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Origin:
    """An engine for a session of these settings. `mapped` gives a file of the model by its path, `build` makes the
    session from the model.

    If it `lets_go`, the plans of the engine are given up once the model is compiled, which has all weights again.
    `on_missed` is called once, when the model has been asked for a plan that the engine has not.
    """

    engine: Engine
    settings: RunSettings
    mapped: Callable[[str], Bytes]
    build: Callable[[], Built]
    lets_go: bool = False
    on_missed: Callable[[], None] = lambda: None


def opened(origin: Origin) -> tuple[Built, LaterSession] | None:
    """What a session is made of, and the same made from the model when it is asked for.

    None where the engine cannot be used in this process: a kernel of it is gone.
    """
    content, sections = origin.engine.content, origin.engine.sections
    graph = content["graph"]
    later = LaterSession(origin.build, graph)
    kernels = origin.settings.kernels
    homes = {"models": library(kernels), "runtime": library(kernels, "runtime")}
    adopt_image(content["image"], sections["image"], homes)
    provider = CPUExecutionProvider({})
    resources = provider.resources(origin.settings)
    tables, constants = sections["tables"], sections["constants"]

    def plan_again(shapes: Shapes) -> ReadyPlan:
        return later.segment().plan_for(shapes)

    try:
        stored = RestoredPlans(content, tables, constants, resources.library, origin.mapped, plan_again)
    except NotRestorableError:
        return None
    held: list[RestoredPlans] = [stored]

    def missed() -> None:
        if origin.lets_go and held:
            held.clear()
            segment.forget_plans()
        later.note_missed(origin.on_missed)

    def make_plan(given: Shapes, contents: Sequence[Array]) -> ReadyPlan:
        known = held[0].plan(given) if held else None
        if known is None:
            known = plan_again(given)
            missed()
        return known

    def restricted(places: Sequence[int]) -> tuple[NativeSegment, Sequence[int]]:
        part = later.segment().restricted(places)
        missed()
        return part

    def constants_now() -> Iterable[HeldConstant]:
        return held[0].held_constants() if held else later.segment().held()

    dtypes = [np.dtype(name) for name in graph["dtypes"]]
    segment = resources.segment(make_plan, dtypes, graph["names"], (), restricted, constants_now)
    built = Built(
        signature=_signature_of(content["signature"]),
        plan=_plan_of(graph, segment, provider.name),
        defaults={},
        providers=[provider],
        compiled=lambda: later.built().compiled(),
        is_stored=True,
    )
    return built, later


class LaterSession:
    """The session as it is without an engine, made when it is asked for."""

    def __init__(self, build: Callable[[], Built], graph: Mapping[str, Any]) -> None:
        """`graph` is what the engine says of inputs, outputs and the order in which they come."""
        self._build, self._graph = build, graph
        self._built: Built | None = None
        self.has_missed = False  # whether something came from the model that the engine has not
        self._lock = threading.Lock()

    def built(self) -> Built:
        """What the model is made into."""
        with self._lock:
            if self._built is None:
                self._built = self._build()
            return self._built

    def segment(self) -> NativeSegment:
        """The segment of that; `Fail` where it is not like the engine's."""
        plan = self.built().plan
        found = segment_of(plan)
        if found is None or graph_content(plan, found) != self._graph:
            raise errors.Fail("the model is not the one that this session began with: make the session anew")
        return found

    def note_missed(self, tell: Callable[[], None]) -> None:
        """Call a function, the first time."""
        with self._lock:
            is_first, self.has_missed = not self.has_missed, True
        if is_first:
            tell()


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


def signature_content(signature: Signature) -> dict[str, Any] | None:
    """What callers see of a model; None where it takes or gives more than tensors, or values may be left out."""
    groups = {name: getattr(signature, name) for name in ("inputs", "outputs", "declared_outputs")}
    values = [value for group in groups.values() for value in group]
    if signature.overridable or not all(value.kind is not None and value.kind.form == "tensor" for value in values):
        return None
    return {
        **{name: [_value_content(one) for one in group] for name, group in groups.items()},
        "order": signature.order,
        "metadata": vars(signature.metadata),
    }


def _value_content(value: Declared) -> list[Any]:
    assert value.kind is not None
    assert value.kind.dtype is not None
    return [value.name, value.kind.name, value.kind.dtype.name, value.dims]


def _signature_of(content: Mapping[str, Any]) -> Signature:
    def values(name: str) -> tuple[Declared, ...]:
        return tuple(
            Declared(name, ValueKind("tensor", kind, np.dtype(dtype)), None if dims is None else tuple(dims))
            for name, kind, dtype, dims in content[name]
        )

    inputs, outputs, declared = map(values, ("inputs", "outputs", "declared_outputs"))
    return Signature(inputs, outputs, (), declared, tuple(content["order"]), ModelMetadata(**content["metadata"]))
