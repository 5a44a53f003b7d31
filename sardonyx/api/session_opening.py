"""The beginning of a session: from an engine, kept by an earlier one or given as such, or from the model.

What loads and compiles models is imported where a session needs it: a process that begins from an engine does without.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sardonyx import errors, log
from sardonyx.api.building import late_build
from sardonyx.api.building.built import Built
from sardonyx.api.building.session_request import SessionRequest
from sardonyx.api.engines import engine_source, engine_store, live_models
from sardonyx.api.engines.engine_store import EngineStore
from sardonyx.api.options import config_keys
from sardonyx.api.options.config_keys import is_on
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.runtime.file_state import file_state
from sardonyx.runtime.files.engine_file import Engine
from sardonyx.runtime.files.kept import why_nothing_is_kept
from sardonyx.runtime.random_state import Streams

if TYPE_CHECKING:
    from sardonyx.api.building.model_loading import Source
    from sardonyx.api.engines.held_files import HeldFiles

# Whether a session from an engine loads at once what it needs for sizes that the engine has no plan for.
_COMPILER = "sardonyx.engine_compiler"


def open_session(request: SessionRequest) -> Built:
    """What `build` gives, from the engine that an earlier session kept, or else with a way to keep one."""
    with (request.streams or Streams()).serving():
        built = _opened(request)
    if built.is_stored and is_on(request.options._config, _COMPILER):
        from sardonyx.compiler.llvm import codegen

        built.compiled()
        codegen.load()
    return built


def _opened(request: SessionRequest) -> Built:
    source, options, logger = request.source, request.options, request.logger
    if logger.is_enabled(log.Severity.INFO):
        _tell_what_is_there(logger)
    given = engine_source.find(source, options)
    if request.extra_outputs and (given is not None or is_on(options._config, "ep.context_enable")):
        raise errors.InvalidArgument(
            "extra_outputs: an engine has the outputs that it was compiled for, and no others; make the session from "
            "the ONNX model, without ep.context_enable"
        )
    if given is not None:
        from sardonyx.api.engines.compiled_engine import open_engine

        return open_engine(given, request)
    if is_on(options._config, "ep.context_enable"):
        return _exported(request)
    store = EngineStore.of(request)
    if store is None:
        return build(request)
    known = live_models.find(store)
    if known is not None:
        config_keys.check(options._config, logger)
        _warn_again(known, logger)
        logger.info(f"the session has the plans of another one of {source!r}", "engine")
        return known
    engine = store.find()
    if engine is not None:
        config_keys.check(options._config, logger)
        built = _from_kept(store, engine, request)
        if built is not None:
            from sardonyx.api.engines.stored_session import segment_of

            _warn_again(built, logger)
            logger.info(f"the session is that of an engine kept for {source!r}", "engine")
            return live_models.offered(store, built, segment_of(built.plan), built.states)
    began = time.perf_counter()
    built = build(request)
    if time.perf_counter() - began < engine_store.LEAST_SECONDS:
        return built
    from sardonyx.api.engines.engine_keeper import Keeper
    from sardonyx.api.engines.stored_session import segment_of

    states = store.settled(built.files)
    built = replace(built, keep=Keeper.of(store, built, request), states=states)
    return live_models.offered(store, built, segment_of(built.plan), states)


def _tell_what_is_there(logger: log.Logger) -> None:
    """Lines where nothing is kept between processes, and of an installed pack of kernels."""
    from sardonyx.compiler.llvm.installed_packs import installed_pack
    from sardonyx.compiler.llvm.library import why_not_ready
    from sardonyx.compiler.llvm.target import host_target

    if why := why_nothing_is_kept():
        logger.info(why, "engine")
    if (pack := installed_pack(host_target())) is not None:
        logger.info(why_not_ready(pack) or f"{len(pack)} kernels come ready in {pack.path}", "kernels")


def find_for_sizes(request: SessionRequest, states: Mapping[str, Sequence[int]]) -> Built | None:
    """What an earlier session kept of the model, its files in these states, for the sizes that are asked for."""
    store = EngineStore.of(request)
    engine = None if store is None else store.find()
    if store is None or engine is None or engine.content["files"] != states:
        return None
    with (request.streams or Streams()).serving():
        return _from_kept(store, engine, request)


def kept_for_sizes(built: Built, request: SessionRequest, states: Mapping[str, Sequence[int]]) -> Built:
    """What was built for the sizes of a request, with a way to keep it where the model's files have these states."""
    store = EngineStore.of(request)
    if store is None or {path: file_state(path) for path in built.files} != states:
        return built
    from sardonyx.api.engines.engine_keeper import Keeper

    return replace(built, keep=Keeper.of(store, built, request))


def _warn_again(built: Built, logger: log.Logger) -> None:
    """What the session that made an engine, or lends its plans, said of the model."""
    for line, origin in built.warnings:
        logger.warning(line, origin)


def _exported(request: SessionRequest) -> Built:
    """The session of a model, whose compiled form is written, too."""
    from sardonyx.api.engines.context_export import export_if_asked, path_of

    path_of(request.source, request.options)
    built = build(request)
    export_if_asked(request.source, request.options, request.logger)
    return built


def _from_kept(store: EngineStore, engine: Engine, request: SessionRequest) -> Built | None:
    """A session from a kept engine; None where that is no good here."""
    from sardonyx.api.engines.held_files import HeldFiles
    from sardonyx.api.engines.kept_engine import Observer
    from sardonyx.api.engines.stored_session import Origin, opened

    content = engine.content
    try:
        files = HeldFiles(content["files"])
    except OSError:  # one went away just now
        return None
    origin = Origin(
        engine,
        store.settings,
        files.array,
        functools.partial(_build_again, request.wherever(), files),
        lets_go=True,
        on_missed=store.note_missed,
    )
    found = opened(origin)
    if found is None:
        return None
    built, later = found
    again = functools.partial(_build_again, files=files)
    lacks_sizes = content["coverage"] is None
    observer = Observer(store, later, request, built.signature.order, lacks_sizes)
    kept = {"warnings": content["warnings"], "states": content["files"], "maps": files.in_use}
    return replace(built, keep=observer, again=again, **kept)


def _build_again(request: SessionRequest, files: HeldFiles) -> Built:
    """`build` from the file of a model, or, where that is another one by now, from what is held of its files.

    Warnings about the model were given before.
    """
    path: str = request.source
    request = request._replace(trace=None, logger=request.logger.without_warnings())
    if not files.changed():
        made = build(request)
        if not files.changed():
            return made
    files.check_whole()
    main, folder = next(iter(files.views)), os.path.realpath(os.path.dirname(path))
    options = request.options._copy()
    options._external_files = {os.path.relpath(other, folder): view for other, view in files.views.items()}
    return build(request._replace(source=bytes(files.views[main]), options=options))


def build(request: SessionRequest) -> Built:
    """`session_build.build`, imported when it is needed; of an engine, from the model in it."""
    given = engine_source.find(request.source, request.options)
    if given is not None:
        from sardonyx.api.engines.compiled_engine import build_again

        return build_again(given, request)
    return late_build.build(request)


def effective_options(source: Source, options: SessionOptions) -> SessionOptions:
    """`session_build.effective_options`, imported when it is needed; engines have their options inside."""
    if engine_source.find(source, options) is not None:
        return options
    return late_build.effective_options(source, options)
