"""Engines of sessions: what `stored_session` begins from, written once a session has run."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx import errors, log
from sardonyx.api.building.built import Built
from sardonyx.api.engines.engine_store import MOST_SHAPES, EngineStore
from sardonyx.api.engines.stored_session import graph_content, places_of, segment_of, signature_content
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.stored_plan import NotStorableError, StoredPlans, stored_plans
from sardonyx.providers.cpu import CPUExecutionProvider
from sardonyx.runtime.files.engine_file import Sections
from sardonyx.runtime.native.native_segment import BindingError, NativeSegment, Shapes

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

    def __init__(self, store: EngineStore, built: Built, signature: Mapping[str, Any], logger: log.Logger) -> None:
        self._store, self._signature, self._plan = store, signature, built.plan
        self._providers, self._files, self._logger = built.providers, tuple(built.files), logger
        self._places = places_of(built.plan)
        self._shapes: list[Shapes] = []  # the latest first
        self._is_writing = self._has_written = False
        self._lock = threading.Lock()

    @staticmethod
    def of(store: EngineStore, built: Built, logger: log.Logger) -> Keeper | None:
        """One for a session that an engine can stand for; None for others."""
        signature = signature_content(built.signature)
        if signature is None or segment_of(built.plan) is None or store.settled(built.files) is None:
            return None
        return Keeper(store, built, signature, logger)

    def __call__(self, inputs: Sequence[Any]) -> bool:
        """A run had these inputs, in the plan's order; whether others are to be told, too."""
        shapes = tuple([inputs[place].shape for place in self._places])
        if shapes in self._shapes:
            return True
        with self._lock:
            self._shapes = [shapes, *self._shapes]
            if not self._is_writing:
                self._is_writing = True
                writer = threading.Thread(target=self._write, name="sardonyx-engine", daemon=True)
                _WRITERS.add(writer)
                writer.start()
        return len(self._shapes) < MOST_SHAPES

    def _write(self) -> None:
        """Write an engine with all sizes so far, until no others come meanwhile."""
        written: list[Shapes] = []
        while True:
            with self._lock:
                if written == self._shapes:
                    self._is_writing = False
                    return
            if self._has_written:
                _AT_END.wait(GATHER_SECONDS)
            written, self._has_written = self._shapes, True
            try:
                self._store.keep(self._files, written, self._made)
            except (NotStorableError, OSError) as error:
                self._logger.info(f"no engine is kept of this model: {error}", "engine")

    def _made(self, shapes: Sequence[Shapes]) -> tuple[Mapping[str, Any], Sections]:
        (provider,) = self._providers
        assert isinstance(provider, CPUExecutionProvider)
        segment = segment_of(self._plan)
        assert segment is not None
        stored = plans_of(segment, shapes, provider, self._files)
        graph = graph_content(self._plan, segment)
        return engine_content(stored, self._signature, graph), engine_sections(stored)


def plans_of(
    segment: NativeSegment, shapes: Sequence[Shapes], provider: CPUExecutionProvider, files: Sequence[str]
) -> StoredPlans:
    """Plans for these shapes, without those that nodes do not take; NotStorableError where none is left."""
    plans = {}
    for one in shapes:
        try:
            plans[one] = segment.plan_for(one)
        except (BindingError, errors.OnnxRuntimeError):
            continue
    if not plans:
        raise NotStorableError("there is no plan for its sizes")
    runtime = library(provider.settings.kernels, "runtime")
    return stored_plans(plans, provider.library, runtime, files)


def engine_content(stored: StoredPlans, signature: Mapping[str, Any], graph: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of every engine."""
    return {"signature": signature, "graph": graph, **stored.content}


def engine_sections(stored: StoredPlans) -> Sections:
    """What lies behind that in every engine."""
    return {"tables": stored.tables, "image": stored.image, "constants": stored.constants}
