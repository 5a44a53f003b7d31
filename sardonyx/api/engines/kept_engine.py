"""How the engine that was kept for a model serves a session of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sardonyx import errors
from sardonyx.api.building.session_request import SessionRequest
from sardonyx.api.engines.engine_store import EngineStore, shapes_of, wants_sizes
from sardonyx.api.engines.process_end import AT_END
from sardonyx.api.engines.stored_session import LaterSession
from sardonyx.runtime.memory import address_space

# Seconds between a first run and the work for others, of which many a process does not see the end.
DELAY_SECONDS = 2.0

_WORK = "Making plans for new sizes"


class Observer:
    """Is told of runs as a `Keeper` is, and makes one when the engine lacks a size: the next engine has it.

    If the engine `lacks_sizes`, those that are near to its own, because the process that wrote it ended too early, they
    are made in the background after the first run.
    """

    def __init__(
        self, store: EngineStore, later: LaterSession, request: SessionRequest, names: Sequence[str], lacks_sizes: bool
    ) -> None:
        """`later` is the session made from the model, `names` are those of its inputs."""
        self._store, self._later, self._request, self._names = store, later, request, names
        self._lacks_sizes = lacks_sizes and wants_sizes(request)
        self._keeper: Callable[[Sequence[Any]], bool] | None = None
        self._is_served = False

    def __call__(self, inputs: Sequence[Any]) -> bool:
        if not self._later.has_missed:
            if not self._is_served:
                self._is_served = True
                self._store.note_served()
                if self._lacks_sizes and address_space.has_spare():
                    self._begin(shapes_of(self._names, inputs))
            return True
        if self._keeper is None:
            from sardonyx.api.engines.engine_keeper import Keeper

            self._keeper = Keeper.of(self._store, self._later.built(), self._request)
        return self._keeper is not None and self._keeper(inputs)

    def _begin(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Start the thread that makes plans for new sizes; nothing where there are no more threads."""
        thread = threading.Thread(target=self._cover, args=(shapes,), name="sardonyx-engine", daemon=True)
        try:
            if not AT_END.is_set():
                thread.start()
        except RuntimeError as error:
            self._request.logger.info(f"no plans are made for new sizes: {error}", "engine")

    def _cover(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Load the model, write the engine with more plans, take these, and forget the model."""
        if AT_END.wait(DELAY_SECONDS):
            return
        try:
            self._later.require_room(_WORK)
            from sardonyx.api.engines.engine_keeper import Keeper

            keeper = Keeper.of(self._store, self._later.built(_WORK), self._request)
            if keeper is not None:
                keeper.cover(shapes)
                engine = self._store.find()
                if engine is not None:
                    self._later.renew(engine)
        except (errors.OnnxRuntimeError, *address_space.KINDS) as error:
            self._request.logger.info(f"no plans are made for new sizes: {error}", "engine")
