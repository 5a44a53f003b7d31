"""The beginning of a session: from an engine that an earlier one kept, or from the model.

What loads and compiles models is imported where a session needs it: a process that begins from an engine does without.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sardonyx import log
from sardonyx.api import config_keys, engine_store, stored_session
from sardonyx.api.built import Built
from sardonyx.api.engine_store import EngineStore
from sardonyx.api.session_options import SessionOptions

if TYPE_CHECKING:
    from sardonyx.api.session_build import Source
    from sardonyx.runtime.trace import Trace


def open_session(
    source: Source,
    options: SessionOptions,
    names: Sequence[str],
    provider_options: Sequence[Mapping[str, str]],
    disabled: set[str],
    logger: log.Logger,
    trace: Trace | None,
) -> Built:
    """What `build` gives, from the engine that an earlier session kept, or else with a way to keep one."""
    store = EngineStore.of(source, options, names, provider_options, disabled, logger)
    if store is None:
        return build(source, options, names, provider_options, disabled, logger, trace)
    engine = store.find()
    if engine is not None:
        assert isinstance(source, str)  # others have no store
        config_keys.check(options._config, logger)
        again = functools.partial(_build_again, source, options, names, provider_options, disabled, logger)
        built = stored_session.opened(store, engine, again)
        if built is not None:
            logger.info(f"the session is that of an engine kept for {source!r}", "engine")
            return built
    began = time.perf_counter()
    built = build(source, options, names, provider_options, disabled, logger, trace)
    if time.perf_counter() - began < engine_store.LEAST_SECONDS or built.warned:
        return built
    from sardonyx.api.engine_keeper import Keeper

    return replace(built, keep=Keeper.of(store, built, logger))


def _build_again(
    path: str,
    options: SessionOptions,
    names: Sequence[str],
    provider_options: Sequence[Mapping[str, str]],
    disabled: set[str],
    logger: log.Logger,
    held: Mapping[str, memoryview] | None,
) -> Built:
    """`build` from the file of a model, or from what is `held` of its files, by their real paths."""
    if held is None:
        return build(path, options, names, provider_options, disabled, logger, None)
    main = os.path.realpath(path)
    options = options._copy()
    options._external_files = {
        os.path.relpath(other, os.path.dirname(main)): view for other, view in held.items() if other != main
    }
    return build(bytes(held[main]), options, names, provider_options, disabled, logger, None)


def build(*arguments: Any, **others: Any) -> Built:
    """`session_build.build`, imported when it is needed."""
    from sardonyx.api import session_build

    return session_build.build(*arguments, **others)


def effective_options(source: Source, options: SessionOptions) -> SessionOptions:
    """`session_build.effective_options`, imported when it is needed."""
    from sardonyx.api import session_build

    return session_build.effective_options(source, options)
