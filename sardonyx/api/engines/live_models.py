"""Models that sessions of this process have made ready, for other sessions of the same model file and options.

Such a session runs the plans of the first one in memory of its own: packed weights, plans and code are there once,
however the first one got them, and it is there at once. A model is forgotten with the last session that uses it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sardonyx.api.building.built import Built
from sardonyx.providers.cpu import CPUExecutionProvider
from sardonyx.runtime.file_state import file_state
from sardonyx.runtime.memory.constant_memory import HeldConstant
from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.plan import Plan

if TYPE_CHECKING:
    from sardonyx.api.engines.engine_store import EngineStore
    from sardonyx.compiler.native_resources import NativeResources


class LiveModel:
    """What a session was made of, of which one native segment is all of the plan; `states` are those of its files."""

    def __init__(self, built: Built, segment: NativeSegment, states: Mapping[str, Sequence[int] | None]) -> None:
        self._built, self._segment, self._states = built, segment, states
        self._users: weakref.WeakSet[LiveUse] = weakref.WeakSet()
        segment.held = _held_by(self._users, segment.held)

    @property
    def is_current(self) -> bool:
        """Whether the files are as they were."""
        return all(file_state(path) == state for path, state in self._states.items())

    def first(self) -> Built:
        """The session that made it."""
        return replace(self._built, live=LiveUse(self))

    def another(self, store: EngineStore) -> Built:
        """Another session, whose runs have their own memory."""
        provider = CPUExecutionProvider({})
        segment = _on(provider.resources(store.settings), self._segment)
        return replace(
            self._built,
            plan=_with(self._built.plan, segment),
            providers=[provider],
            live=LiveUse(self),
            borrows=True,
        )


def _held_by(
    users: weakref.WeakSet[LiveUse], held: Callable[[], Iterable[HeldConstant]]
) -> Callable[[], Iterable[HeldConstant]]:
    """What is `held`, which is shared where there are several users."""

    def constants() -> Iterator[HeldConstant]:
        for one in held():
            yield one._replace(is_shared=one.is_shared or len(users) > 1)

    return constants


class LiveUse:
    """What a session holds as long as it uses a model."""

    def __init__(self, model: LiveModel) -> None:
        self.model = model
        model._users.add(self)


_KNOWN: weakref.WeakValueDictionary[str, LiveModel] = weakref.WeakValueDictionary()


def find(store: EngineStore) -> Built | None:
    """A session like the one that the store is for, of a model that another one has made ready; None where none has."""
    known = _KNOWN.get(store.key)
    return known.another(store) if known is not None and known.is_current else None


def offered(
    store: EngineStore, built: Built, segment: NativeSegment | None, states: Mapping[str, Sequence[int] | None] | None
) -> Built:
    """A session, which others may use from now on: if its plan is one segment, of files with known states.

    Not one whose threads a caller's functions make: they shall end with it.
    """
    if segment is None or states is None or store.settings.hooks is not None:
        return built
    model = _KNOWN[store.key] = LiveModel(built, segment, states)
    return model.first()


def _on(resources: NativeResources, segment: NativeSegment) -> NativeSegment:
    """A segment with the plans of another one, which run on these resources."""

    def restricted(places: Sequence[int]) -> tuple[NativeSegment, Sequence[int]]:
        part, inputs = segment.restricted(places)
        return _on(resources, part), inputs

    given = segment.plan_for, segment.dtypes, segment.names, segment.steering_places, restricted
    return resources.segment(*given, lambda: segment.held())


def _with(plan: Plan, segment: NativeSegment) -> Plan:
    (step,) = plan.steps
    return replace(plan, steps=(replace(step, call=segment),))
