"""When engines of sessions are written: once a session has run, by a thread of its own.

When that is done, plans for new sizes are made (`kept_sizes`), and the engine is written again with them.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx import errors
from sardonyx.api.building.built import Built
from sardonyx.api.building.session_request import SessionRequest
from sardonyx.api.building.signature import Declared
from sardonyx.api.engines.engine_store import MOST_SHAPES, EngineStore, Make, shapes_of, wants_sizes
from sardonyx.api.engines.kept_engine import DELAY_SECONDS
from sardonyx.api.engines.process_end import AT_END, WRITERS
from sardonyx.api.engines.shape_profiles import Shape
from sardonyx.compiler.bound_plan import segments_in
from sardonyx.runtime.files.engine_file import Sections
from sardonyx.runtime.forks import free_in_child, whole
from sardonyx.runtime.memory import address_space
from sardonyx.runtime.native.native_segment import BindingError, PlanKey

if TYPE_CHECKING:
    from sardonyx.api.engines.engine_sizes import Coverage
    from sardonyx.compiler.stored.sized_plans import SizedPlans

# Seconds in which further sizes are gathered before an engine is written again.
GATHER_SECONDS = 1.0


class Keeper:
    """Writes the engine of a session, on a thread of its own, when the session has run with a size for the first time.

    Sizes that come soon after each other are written together.
    """

    def __init__(
        self, store: EngineStore, built: Built, states: Mapping[str, Sequence[int]], request: SessionRequest
    ) -> None:
        """`states` are those of the model's files since before it was read."""
        logger = request.logger
        self._wants_sizes = self._covers = wants_sizes(request) and _has_open_sizes(built.signature.inputs)
        self._ran: list[Mapping[str, Shape]] = []  # shapes of inputs, the latest first
        self._covered: Collection[PlanKey] = ()  # what the engine has plans for beside the keys
        self._store, self._states, self._logger = store, states, logger
        self._built, self._segments = built, segments_in(built.plan)
        self._keys: list[PlanKey] | None = None  # the latest first
        self._seen: set[PlanKey] = set()  # these, and those that were made for the engine alone
        self._count = 0
        self._is_writing = self._has_written = False
        self._lock = free_in_child(threading.Lock())

    @staticmethod
    def of(store: EngineStore, built: Built, request: SessionRequest) -> Keeper | None:
        """One for a session that an engine can stand for; None for others."""
        states = store.settled(built.files)
        if not built.plan.steps or states is None:
            return None
        return Keeper(store, built, states, request)

    def __call__(self, inputs: Sequence[Any]) -> bool:
        """A run had these inputs; whether others are to be told, too: not when the process ends, which starts no more
        threads."""
        if AT_END.is_set():
            return False
        count = sum([segment.plans_made for segment in self._segments])
        if count == self._count and self._keys is not None:
            return True
        self._count = count
        made = [key for number, segment in enumerate(self._segments) for key in segment.made_keys(number)]
        with self._lock:
            new = [key for key in made if key not in self._seen and key not in self._covered]
            if not new and self._keys is not None:
                return True
            self._wants_sizes = self._covers
            self._seen.update(new)
            self._keys = [*new, *(self._keys or [])]
            self._ran.insert(0, shapes_of(self._built.signature.order, inputs))
            if not self._is_writing and not self._begin():
                return False
            counts = Counter(key.segment for key in self._keys)
        return bool(counts) and max(counts.values()) < MOST_SHAPES

    def _begin(self) -> bool:
        """Start the thread that writes; whether that was possible."""
        if not address_space.has_spare():
            self._logger.info("no engine is kept of this model: there is little address space left", "engine")
            return False
        writer = threading.Thread(target=self._write, name="sardonyx-engine", daemon=True)
        try:
            writer.start()
        except RuntimeError as error:  # no more threads, or the process ends
            self._logger.info(f"no engine is kept of this model: {error}", "engine")
            return False
        self._is_writing = True
        WRITERS.add(writer)
        return True

    def _write(self) -> None:
        """Write an engine with all sizes so far, until no others come meanwhile."""
        _import_what_writes()
        written: list[PlanKey] | None = None
        while True:
            with self._lock:
                is_written = written == self._keys
                if is_written and not self._wants_sizes:
                    self._is_writing = False
                    return
            if is_written:
                self._wants_sizes = False
                WRITERS.discard(threading.current_thread())
                if not AT_END.wait(DELAY_SECONDS):
                    self._cover(written or [])
                WRITERS.add(threading.current_thread())
                continue
            if self._has_written:
                AT_END.wait(GATHER_SECONDS)
            written, self._has_written = self._keys, True
            self._keep(written or [], self._made)

    def _keep(self, keys: Sequence[PlanKey], make: Make, *, covers: bool = False) -> None:
        from sardonyx.api.engines.engine_parts import NotStorableError

        try:
            self._store.keep(self._states, keys, make, covers=covers)
        except (NotStorableError, errors.OnnxRuntimeError, *address_space.KINDS) as error:
            self._logger.info(f"no engine is kept of this model: {error}", "engine")

    def _cover(self, keys: Sequence[PlanKey]) -> None:
        """Make plans for sizes near to those of the last run, and write the engine again with them.

        The process does not wait for the former, only for the latter.
        """
        from sardonyx.api.engines.engine_parts import NotStorableError, program_of
        from sardonyx.api.engines.engine_sizes import Coverage, StoppedError
        from sardonyx.api.engines.kept_sizes import MOST_RAN, planned

        with self._lock:
            ran = [one for index, one in enumerate(self._ran) if one not in self._ran[:index]]
        ran = [*ran, *(one for one in self._store.ran() if one not in ran)][:MOST_RAN]
        own = threading.current_thread()
        WRITERS.discard(own)
        try:
            sized, coverage = planned(self._built, program_of(self._built), ran, AT_END)
        except StoppedError:
            return
        except (NotStorableError, errors.OnnxRuntimeError, *address_space.KINDS) as error:
            sized, coverage = None, [Coverage(0, 0, str(error))]
        if AT_END.is_set():
            return
        WRITERS.add(own)
        self._keep(keys, functools.partial(self._made, sized=sized, coverage=coverage, ran=ran), covers=True)
        self._covered = () if sized is None else sized.keys

    def cover(self, shapes: Mapping[str, Shape]) -> None:
        """Write the engine that is there again, on this thread, with plans for sizes near to those of a run with inputs
        of these shapes."""
        _import_what_writes()
        self._ran, self._wants_sizes = [shapes], False
        self._cover([])

    def _made(
        self,
        keys: Sequence[PlanKey],
        sized: SizedPlans | None = None,
        coverage: Sequence[Coverage] = (),
        ran: Sequence[Mapping[str, Shape]] = (),
    ) -> tuple[Mapping[str, Any], Sections]:
        from sardonyx.api.engines.engine_parts import NotStorableError, engine_parts, program_of

        program = program_of(self._built)
        with self._lock:
            self._seen.update(keys)
        plans = {}
        for key in keys:
            with contextlib.suppress(BindingError, errors.OnnxRuntimeError):
                plans[key] = program.segments[key.segment].plan_of(key)
        if keys and not plans:
            raise NotStorableError("there is no plan for its sizes")
        content, sections = engine_parts(self._built, program, plans, tuple(self._states), sized)
        is_open = self._wants_sizes and not coverage  # whoever begins from it goes on with that
        covered = None if is_open else [one.content() for one in coverage]
        return {**content, "warnings": self._built.warnings, "coverage": covered, "ran": ran}, sections


def _has_open_sizes(inputs: Sequence[Declared]) -> bool:
    """Whether inputs have sizes that are not fixed."""
    return any(not isinstance(dim, int) for value in inputs for dim in value.dims or ())


def _import_what_writes() -> None:
    """What writes engines comes behind the first result, and whole: or a child process that is forked meanwhile waits
    for it."""
    with whole():
        from sardonyx.api.engines import engine_parts, kept_sizes  # noqa: F401
