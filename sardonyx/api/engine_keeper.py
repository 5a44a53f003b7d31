"""Engines of sessions: what `stored_session` begins from, written once a session has run."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sardonyx import log
from sardonyx.api.built import Built
from sardonyx.api.engine_store import EngineStore
from sardonyx.api.signature import Declared, Signature
from sardonyx.api.stored_session import graph_content, places_of, segment_of
from sardonyx.compiler.stored_plan import NotStorableError, stored_plan
from sardonyx.providers.cpu import CPUExecutionProvider
from sardonyx.runtime.native_segment import NativeSegment, ReadyPlan

# Seconds that a process waits at its end for engines that are being written; one that is not whole then is lost.
_PATIENCE = 3.0

_WRITERS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _finish() -> None:
    last = time.monotonic() + _PATIENCE
    for writer in tuple(_WRITERS):
        writer.join(max(0.0, last - time.monotonic()))


class Keeper:
    """Writes the engine of a session, on a thread of its own, once the session has run."""

    def __init__(self, store: EngineStore, built: Built, logger: log.Logger) -> None:
        self._store, self._signature, self._plan = store, built.signature, built.plan
        self._providers, self._files, self._logger = built.providers, tuple(built.files), logger

    @staticmethod
    def of(store: EngineStore, built: Built, logger: log.Logger) -> Keeper | None:
        """One for a session that an engine can stand for; None for others."""
        signature = built.signature
        values = (*signature.inputs, *signature.outputs, *signature.declared_outputs)
        if signature.overridable or not all(value.kind is not None and value.kind.form == "tensor" for value in values):
            return None
        if segment_of(built.plan) is None or store.settled(built.files) is None:
            return None
        return Keeper(store, built, logger)

    def __call__(self, inputs: Sequence[Any]) -> None:
        """Keep the plan of a run with these inputs, in the plan's order."""
        segment = segment_of(self._plan)
        assert segment is not None
        places = places_of(self._plan)
        ready = segment.made_plan(tuple(inputs[place].shape for place in places))
        if ready is not None:
            arguments = segment, ready, [inputs[place].shape for place in places]
            writer = threading.Thread(target=self._write, args=arguments, name="sardonyx-engine", daemon=True)
            _WRITERS.add(writer)
            writer.start()

    def _write(self, segment: NativeSegment, ready: ReadyPlan, shapes: Sequence[Sequence[int]]) -> None:
        (provider,) = self._providers
        assert isinstance(provider, CPUExecutionProvider)
        try:
            stored = stored_plan(ready, provider.library, self._files)
        except (NotStorableError, OSError) as error:
            self._logger.info(f"no engine is kept of this model: {error}", "engine")
            return
        content = {
            "signature": _signature_content(self._signature),
            "graph": graph_content(self._plan, segment),
            "shapes": shapes,
            "plan": stored.content,
        }
        self._store.keep(self._files, content, [stored.tables, stored.constants])


def _signature_content(signature: Signature) -> dict[str, Any]:
    groups = {name: getattr(signature, name) for name in ("inputs", "outputs", "declared_outputs")}
    return {
        **{name: [_value_content(one) for one in values] for name, values in groups.items()},
        "order": signature.order,
        "metadata": asdict(signature.metadata),
    }


def _value_content(value: Declared) -> list[Any]:
    assert value.kind is not None
    assert value.kind.dtype is not None
    return [value.name, value.kind.name, value.kind.dtype.name, value.dims]
