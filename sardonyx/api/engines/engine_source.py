"""What a caller gives as a model and is an engine: a file or bytes that `sardonyx compile` made, or an ONNX model of
one EPContext node that carries such an engine or names its file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, BinaryIO

from sardonyx import errors
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.files.engine_file import DamagedError, SealedEngine, map_sealed, sealed_engine
from sardonyx.runtime.files.model_folder import ModelFolder, open_found
from sardonyx.runtime.files.opening import open_file
from sardonyx.runtime.files.own_files import ENGINE_HEAD
from sardonyx.runtime.memory import address_space
from sardonyx.runtime.memory.mapped_pages import map_open_file

if TYPE_CHECKING:
    from sardonyx.api.options.session_options import SessionOptions
    from sardonyx.graph.context_model import Context

# Bytes of a file that are looked at to tell what it is.
_LOOKED_AT = 64 << 10
# In the beginning of every model that carries an engine, and of few others: the operator of its node.
_MARK = b"EPContext"


@dataclass(frozen=True)
class EngineSource:
    """An engine, and what to call it."""

    name: str
    sealed: SealedEngine


def find(source: Any, options: SessionOptions) -> EngineSource | None:
    """The engine that a source is; None for any other model.

    `Fail` where it is damaged, or the file that a model names is not there.
    """
    if isinstance(source, bytes):
        if source.startswith(ENGINE_HEAD):
            return _opened("the engine given as bytes", memoryview(source), None)
        if _MARK not in source[:_LOOKED_AT]:
            return None
        return _in_model(memoryview(source), None, "", options)
    if not isinstance(source, str) or not source:
        return None
    try:
        with open_file(source) as file:
            beginning = file.read(_LOOKED_AT)
            if beginning.startswith(ENGINE_HEAD):
                return _mapped(file, source)
            if _MARK not in beginning:
                return None
            data, status = map_open_file(file.fileno(), source), os.fstat(file.fileno())
    except (OSError, ValueError):  # whoever loads the model says so
        return None
    return _in_model(data, status, source, options)


def _in_model(
    data: memoryview, status: os.stat_result | None, path: str, options: SessionOptions
) -> EngineSource | None:
    """The engine that the model `data` carries, which is the file `path` (empty: none); None where it carries none."""
    from sardonyx.graph.context_model import context_in  # which few sessions need

    context = context_in(data)
    return None if context is None else _carried(context, data, status, path, options)


def _carried(
    context: Context, data: memoryview, status: os.stat_result | None, path: str, options: SessionOptions
) -> EngineSource:
    """The engine of a node in the model file `path`, which is `data`."""
    name = f"the engine in {path!r}" if path else "the engine in the model given as bytes"
    if context.embedded is not None:
        start, size = context.embedded
        return _opened(name, data[start : start + size], status)
    file = context.file
    if options._context_reader is not None:
        return _opened(f"the engine {file!r}", memoryview(options._read_context(file)), None)
    try:
        found = ModelFolder(os.path.dirname(path), path or None).find(file)
    except ValueError:  # it has a null byte
        found = None
    if found is None:
        raise errors.InvalidArgument(
            f"ep_cache_context of the EPContext node must name a file beside the model or below its folder, not {file}"
        )
    try:
        opened = open_found(found)
    except OSError as error:
        if os.path.isfile(found[1]):
            raise errors.Fail(f"{found[1]}, which holds what {path} was compiled to, cannot be read: {error}") from None
        raise errors.NoSuchFile(f"{found[1]}, which holds what {path} was compiled to, does not exist") from None
    with opened:
        return _mapped(opened, found[1])


def _mapped(file: BinaryIO, path: str) -> EngineSource:
    try:
        return EngineSource(repr(path), map_sealed(file, path))
    except (DamagedError, OSError) as error:
        raise address_space.explained(error, f"Opening {path!r}") or damaged(repr(path), error) from error


def _opened(name: str, data: memoryview, status: os.stat_result | None) -> EngineSource:
    try:
        return EngineSource(name, sealed_engine(data, status))
    except DamagedError as error:
        raise damaged(name, error) from error


def damaged(name: str, error: Exception) -> errors.Fail:
    """The error for an engine that is not what was written."""
    return errors.Fail(f"{name} is damaged: {error}. Compile the model again")
