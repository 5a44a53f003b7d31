"""The model that a command is given: an ONNX file, or an engine that has one inside."""

from __future__ import annotations

from pathlib import Path

from sardonyx.api.engines import compiled_engine, engine_source
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.cli.failure import note
from sardonyx.graph.load import LoadedModel, load_model
from sardonyx.runtime.files import kept


def read_model(path: Path) -> LoadedModel:
    """The model in a file; the typed error of loading where there is none."""
    engine = engine_source.find(str(path), SessionOptions())
    return load_model(path) if engine is None else compiled_engine.model_in(engine)


def tell_if_compiled(path: Path, options: SessionOptions) -> None:
    """A line where a session of an engine compiles the model in it, for which sessions have a warning."""
    engine = engine_source.find(str(path), options)
    if engine is not None and (why := compiled_engine.why_compiled(engine, options)):
        note(why)


def tell_what_is_kept() -> None:
    """A line where each process compiles anew, unless the user wants that."""
    if not kept.is_off() and (why := kept.why_nothing_is_kept()):
        note(why)
