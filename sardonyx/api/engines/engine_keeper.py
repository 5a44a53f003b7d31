"""When engines of sessions are written: once a session has run, by a thread of its own."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx import errors, log
from sardonyx.api.building.built import Built
from sardonyx.api.engines.engine_store import MOST_SHAPES, EngineStore
from sardonyx.compiler.bound_plan import segments_in
from sardonyx.runtime.files.engine_file import Sections
from sardonyx.runtime.forks import free_in_child, whole
from sardonyx.runtime.memory import address_space
from sardonyx.runtime.native.native_segment import BindingError, PlanKey

# Seconds that a process waits at its end for engines that are being written; one that is not whole then is lost.
_PATIENCE = 3.0
# Seconds in which further sizes are gathered before an engine is written again.
GATHER_SECONDS = 1.0

_WRITERS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_AT_END = threading.Event()


@atexit.register
def _finish() -> None:
    _AT_END.set()
    last = time.monotonic() + _PATIENCE
    for writer in tuple(_WRITERS):
        writer.join(max(0.0, last - time.monotonic()))


class Keeper:
    """Writes the engine of a session, on a thread of its own, when the session has run with a size for the first time.

    Sizes that come soon after each other are written together.
    """

    def __init__(
        self, store: EngineStore, built: Built, states: Mapping[str, Sequence[int]], logger: log.Logger
    ) -> None:
        """`states` are those of the model's files since before it was read."""
        self._store, self._states, self._logger = store, states, logger
        self._built, self._segments = built, segments_in(built.plan)
        self._keys: list[PlanKey] | None = None  # the latest first
        self._seen: set[PlanKey] = set()  # these, and those that were made for the engine alone
        self._count = 0
        self._is_writing = self._has_written = False
        self._lock = free_in_child(threading.Lock())

    @staticmethod
    def of(store: EngineStore, built: Built, logger: log.Logger) -> Keeper | None:
        """One for a session that an engine can stand for; None for others."""
        states = store.settled(built.files)
        if not built.plan.steps or states is None:
            return None
        return Keeper(store, built, states, logger)

    def __call__(self, inputs: Sequence[Any]) -> bool:
        """A run had these inputs; whether others are to be told, too: not when the process ends, which starts no more
        threads."""
        if _AT_END.is_set():
            return False
        count = sum([segment.plans_made for segment in self._segments])
        if count == self._count and self._keys is not None:
            return True
        self._count = count
        made = [key for number, segment in enumerate(self._segments) for key in segment.made_keys(number)]
        with self._lock:
            new = [key for key in made if key not in self._seen]
            if not new and self._keys is not None:
                return True
            self._seen.update(new)
            self._keys = [*new, *(self._keys or [])]
            if not self._is_writing:
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
                _WRITERS.add(writer)
            counts = Counter(key.segment for key in self._keys)
        return bool(counts) and max(counts.values()) < MOST_SHAPES

    def _write(self) -> None:
        """Write an engine with all sizes so far, until no others come meanwhile."""
        with whole():  # or a child process that is forked meanwhile waits for the import
            from sardonyx.api.engines.engine_parts import NotStorableError  # behind the first result

        written: list[PlanKey] | None = None
        while True:
            with self._lock:
                if written == self._keys:
                    self._is_writing = False
                    return
            if self._has_written:
                _AT_END.wait(GATHER_SECONDS)
            written, self._has_written = self._keys, True
            try:
                self._store.keep(self._states, written or [], self._made)
            except (NotStorableError, OSError, MemoryError, errors.OnnxRuntimeError) as error:
                self._logger.info(f"no engine is kept of this model: {error}", "engine")

    def _made(self, keys: Sequence[PlanKey]) -> tuple[Mapping[str, Any], Sections]:
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
        content, sections = engine_parts(self._built, program, plans, tuple(self._states))
        return {**content, "warnings": self._built.warnings}, sections
