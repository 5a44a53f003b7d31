"""Sessions from engines: what a session needs to run, taken from a file that was made of its model earlier.

Only what runs comes from there. Whatever else somebody asks for (a shape that the engine has no plan for, fewer
outputs, why a node is where it is) comes from the model, which is loaded and compiled then, as it would have been
without an engine.
"""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import errors
from sardonyx.api.building import late_build
from sardonyx.api.building.built import Built
from sardonyx.api.building.model_metadata import ModelMetadata
from sardonyx.api.building.signature import Declared, Signature, ValueKind
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.stored.restored_plan import NotRestorableError, RestoredPlans, adopt_image
from sardonyx.compiler.stored.restored_program import RestoredProgram
from sardonyx.light_dataclass import dataclass
from sardonyx.providers.cpu import CPUExecutionProvider
from sardonyx.runtime.dtype_names import dtype_called
from sardonyx.runtime.files.engine_file import Bytes, Engine
from sardonyx.runtime.forks import free_in_child, whole
from sardonyx.runtime.memory import address_space
from sardonyx.runtime.memory.constant_memory import HeldConstant
from sardonyx.runtime.native.native_segment import NEW_SIZES_REMEDY, NativeSegment, PlanKey, ReadyPlan, Shapes
from sardonyx.runtime.native.waits import described, note_model
from sardonyx.runtime.plan import Plan
from sardonyx.runtime.settings import RunSettings

if TYPE_CHECKING:
    from sardonyx.compiler.stored.constant_names import Homes
    from sardonyx.compiler.stored.offered_constants import OfferedConstants

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Origin:
    """An engine for a session of these settings. `mapped` gives a file of the model by its path, `build` makes the
    session from the model.

    If it `lets_go`, the plans of the engine are given up once the model is compiled, which has all weights again.
    `on_missed` is called once, when the model has been asked for a plan that the engine has not. If it `offers`, the
    session made from the model takes the constants for kernels that the engine has; `homes` as of `constant_name`.
    """

    engine: Engine
    settings: RunSettings
    mapped: Callable[[str], Bytes]
    build: Callable[[], Built]
    lets_go: bool = False
    on_missed: Callable[[], None] = lambda: None
    offers: bool = True
    homes: Homes | None = None


def opened(origin: Origin) -> tuple[Built, LaterSession] | None:
    """What a session is made of, and the same made from the model when it is asked for.

    None where the engine cannot be used in this process: a kernel of it is gone.
    """
    content, sections = origin.engine.content, origin.engine.sections
    program = content["program"]

    def offers() -> OfferedConstants | None:
        now = is_held()
        return now[0].offers(origin.homes) if now and origin.offers else None

    later = LaterSession(origin.build, program, offers)
    kernels = origin.settings.kernels
    libraries = {"models": library(kernels), "runtime": library(kernels, "runtime")}
    adopt_image(content["image"], sections["image"], libraries)
    provider = CPUExecutionProvider({})
    resources = provider.resources(origin.settings)

    def plan_again(key: PlanKey) -> ReadyPlan:
        sizes = described(program["segments"][key.segment]["names"], key.shapes)
        what = f"Compiling for new sizes ({sizes}), for which the engine has no plan,"
        with address_space.telling(what, NEW_SIZES_REMEDY):
            return later.segment(key.segment, what).plan_of(key)

    try:
        stored = RestoredPlans(content, sections, resources.library, origin.mapped, plan_again)
    except NotRestorableError:
        return None
    held = _Held([stored])
    is_held = weakref.ref(held)  # what is held leads to the later session, which has functions of this one
    alive: weakref.WeakSet[NativeSegment] = weakref.WeakSet()  # no circle keeps the weights of a session that is gone

    def missed() -> None:
        if origin.lets_go and held:
            held.clear()
            for segment in alive:
                segment.forget_plans()
        later.note_missed(origin.on_missed)

    def segment_of_number(number: int, said: Mapping[str, Any]) -> NativeSegment:
        def make_plan(given: Shapes, contents: Sequence[Array]) -> ReadyPlan:
            key = PlanKey(number, given, tuple(array.tobytes() for array in contents))
            known = held[0].plan(key) if held else None
            if known is None:
                known = plan_again(key)
                missed()
            return known

        def restricted(places: Sequence[int]) -> tuple[NativeSegment, Sequence[int]]:
            what = "Compiling for fewer outputs, for which the engine has no plan,"
            part = later.segment(number, what).restricted(places)
            missed()
            return part

        def constants_now() -> Iterable[HeldConstant]:
            return held[0].held_constants() if held else later.segment(number, "Compiling the model").held()

        dtypes = [dtype_called(name) for name in said["dtypes"]]
        return resources.segment(make_plan, dtypes, said["names"], said["steering"], restricted, constants_now)

    segments = [segment_of_number(*numbered) for numbered in enumerate(program["segments"])]
    alive.update(segments)
    restored = RestoredProgram(program, sections["nodes"], segments, stored.array, provider.name, kernels)
    plan = restored.plan(program["plan"])
    built = Built(
        signature=_signature_of(content["signature"]),
        plan=plan,
        defaults={name: stored.array(number) for name, number in program["defaults"].items()},
        providers=[provider],
        compiled=lambda: later.built().compiled(),
        is_stored=True,
        open_ifs=content.get("open_ifs", ()),
        in_place=content.get("in_place", ()),
        length_limits=content.get("length_limits", {}),
        coverage=content.get("coverage") or (),
    )

    def renew(engine: Engine) -> None:
        """Take plans from another engine of the same model."""
        content, sections, now = engine.content, engine.sections, is_held()
        if content["program"] != program or not now:
            return
        adopt_image(content["image"], sections["image"], libraries)
        with contextlib.suppress(NotRestorableError):
            now[0] = RestoredPlans(content, sections, resources.library, origin.mapped, now[0].plan_again)

    later.renew_plans = renew
    return built, later


class _Held(list[RestoredPlans]):
    """The plans that a session has of its engine, or nothing: a list that others can know without keeping it."""


class LaterSession:
    """The session as it is without an engine, made when it is asked for."""

    def __init__(
        self, build: Callable[[], Built], program: Mapping[str, Any], offers: Callable[[], OfferedConstants | None]
    ) -> None:
        """`program` is what the engine says of the plan, `offers` what it has of the constants for kernels."""
        self._build, self._program, self._offers = build, program, offers
        self._built: Built | None = None
        self._segments: Sequence[NativeSegment] | None = None
        self.has_missed = False  # whether something came from the model that the engine has not
        self.renew_plans: Callable[[Engine], None] = lambda engine: None
        self._lock = free_in_child(threading.Lock())

    def built(self, what: str = "Compiling the model of an engine") -> Built:
        """What the model is made into; `Fail` where there is no room for `what` needs that."""
        with whole(), self._lock:
            if self._built is None:
                self.require_room(what)
                from sardonyx.compiler.shared_constants import offering

                with offering(self._offers()):
                    self._built = self._build()
                note_model()
            return self._built

    @staticmethod
    def require_room(what: str) -> None:
        """`Fail` where there is no room for what loads and compiles models, which `what` needs."""
        late_build.require_room(what, NEW_SIZES_REMEDY)

    def renew(self, engine: Engine) -> None:
        """Take the plans of an engine that was made of this session, and let it go unless runs needed it."""
        with whole(), self._lock:
            self.renew_plans(engine)
            if not self.has_missed:
                self._built = self._segments = None

    def segment(self, number: int, what: str) -> NativeSegment:
        """A segment of that; `Fail` where it is not like the engine's, or there is no room for `what` needs it."""
        segments = self._segments
        if segments is None:
            self.require_room(what)  # before any of it is imported: a module that is half made stays so
            from sardonyx.api.engines.engine_parts import program_of
            from sardonyx.compiler.stored.constant_places import NotStorableError

            try:
                found = program_of(self.built(what))
            except NotStorableError:
                found = None
            if found is None or json.loads(json.dumps(found.content)) != self._program:
                raise errors.Fail("the model is not the one that this session began with: make the session anew")
            segments = self._segments = found.segments
        return segments[number]

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


def signature_content(signature: Signature) -> dict[str, Any]:
    """What callers see of a model."""
    groups = {name: getattr(signature, name) for name in _GROUPS}
    return {
        **{name: [_value_content(one) for one in group] for name, group in groups.items()},
        "order": signature.order,
        "metadata": vars(signature.metadata),
    }


_GROUPS = ("inputs", "outputs", "overridable", "declared_outputs")


def _value_content(value: Declared) -> list[Any]:
    return [value.name, _kind_content(value.kind), value.dims]


def _kind_content(kind: ValueKind | None) -> list[Any] | None:
    if kind is None:
        return None
    dtype, key = (None if one is None else one.name for one in (kind.dtype, kind.key))
    return [kind.form, kind.name, dtype, _kind_content(kind.item), key]


def _kind_of(content: Sequence[Any] | None) -> ValueKind | None:
    if content is None:
        return None
    form, name, dtype, item, key = content
    known, keys = (None if one is None else dtype_called(one) for one in (dtype, key))
    return ValueKind(form, name, known, _kind_of(item), keys)


def _signature_of(content: Mapping[str, Any]) -> Signature:
    def values(name: str) -> tuple[Declared, ...]:
        return tuple(
            Declared(name, _kind_of(kind), None if dims is None else tuple(dims)) for name, kind, dims in content[name]
        )

    inputs, outputs, overridable, declared = map(values, _GROUPS)
    order, metadata = tuple(content["order"]), ModelMetadata(**content["metadata"])
    return Signature(inputs, outputs, overridable, declared, order, metadata)
