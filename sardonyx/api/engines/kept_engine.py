"""How the engine that was kept for a model serves a session of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sardonyx import log
from sardonyx.api.engines.engine_store import EngineStore
from sardonyx.api.engines.stored_session import LaterSession


class Observer:
    """Is told of runs as a `Keeper` is, and makes one when the engine lacks a size: the next engine has it."""

    def __init__(self, store: EngineStore, later: LaterSession, logger: log.Logger) -> None:
        """`later` is the session made from the model."""
        self._store, self._later, self._logger = store, later, logger
        self._keeper: Callable[[Sequence[Any]], bool] | None = None
        self._is_served = False

    def __call__(self, inputs: Sequence[Any]) -> bool:
        if not self._later.has_missed:
            if not self._is_served:
                self._is_served = True
                self._store.note_served()
            return True
        if self._keeper is None:
            from sardonyx.api.engines.engine_keeper import Keeper

            self._keeper = Keeper.of(self._store, self._later.built(), self._logger)
        return self._keeper is not None and self._keeper(inputs)
