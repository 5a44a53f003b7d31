"""Fills the user's caches ahead: what the first process of a model would compile and keep is there when it begins."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sardonyx.api.engines import process_end
from sardonyx.api.engines.engine_store import EngineStore
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.session import InferenceSession
from sardonyx.compiler.llvm.library import LibraryCounts, all_counts
from sardonyx.runtime.file_state import SETTLED_SECONDS, file_state


class Warmed(NamedTuple):
    """What warming a model did: kernels that were compiled, found in the cache, and ready in an installed pack, and
    whether an engine is kept, from which later sessions begin while the model's files stay as they are."""

    compiled: int
    from_cache: int
    from_pack: int
    engine: bool
    seconds: float


def warm(
    model: str,
    files: Iterable[str],
    options: SessionOptions,
    providers: Sequence[str],
    runs: Iterable[Mapping[str, Any]],
) -> Warmed:
    """Make a session of a model that was read from these files, and run it with each of these inputs.

    The typed errors of sessions and runs. Files that changed less than two seconds ago are waited for, as no engine is
    kept of them.
    """
    began, before = time.perf_counter(), all_counts()
    _let_settle(files)
    session = InferenceSession(model, options, providers=list(providers))
    for inputs in runs:
        session.run(None, dict(inputs))
    process_end.finish_writing()
    store = EngineStore.of(session._session()._request)
    has_engine = store is not None and store.find() is not None
    done = _difference(all_counts(), before)
    return Warmed(done.compiled, done.from_cache, done.from_pack, has_engine, time.perf_counter() - began)


def _let_settle(files: Iterable[str]) -> None:
    """Wait until a change of one of the files could not show the times of the one before."""
    states = [state for path in files if (state := file_state(path)) is not None]
    latest = max((time_ns for state in states for time_ns in state[1:3]), default=0) / 1e9
    left = latest + SETTLED_SECONDS - time.time()
    if 0 <= left <= SETTLED_SECONDS:  # times in the future are not waited for
        time.sleep(left + 0.01)


def _difference(now: LibraryCounts, before: LibraryCounts) -> LibraryCounts:
    return LibraryCounts(
        now.compiled - before.compiled,
        now.from_cache - before.from_cache,
        now.seconds - before.seconds,
        now.from_pack - before.from_pack,
    )
