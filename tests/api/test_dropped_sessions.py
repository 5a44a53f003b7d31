"""What a session made is gone with it, without Python's garbage collector, which may not come for long."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sardonyx as ort
from sardonyx.compiler.binding import Binder
from sardonyx.runtime.native.native_segment import NativeSegment
from tests.api.engine_models import IDS, is_stored, keeps_every_engine, wait, write_model
from tests.compiler.small_models import SMALL_MODELS

Made = list[weakref.ref[Any]]


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def noted(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> Made:
    """All objects of a class that are made from now on."""
    found: Made = []
    begin = kind.__init__

    def note(made: Any, *arguments: Any, **others: Any) -> None:
        begin(made, *arguments, **others)
        found.append(weakref.ref(made))

    monkeypatch.setattr(kind, "__init__", note)
    return found


def alive(made: Made) -> list[Any]:
    return [one() for one in made if one() is not None]


@pytest.fixture
def binders(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Those of all plans that are made: each leads to all constants that its plan packed."""
    return noted(Binder, monkeypatch)


@pytest.fixture
def segments(monkeypatch: pytest.MonkeyPatch) -> Made:
    return noted(NativeSegment, monkeypatch)


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_packed_constants_go_with_the_session(name: str, binders: Made) -> None:
    small = SMALL_MODELS[name]
    session = ort.InferenceSession(small.model.SerializeToString(), providers=["CPUExecutionProvider"])
    for sizes in small.sizes:
        session.run(None, small.inputs(sizes))
    assert binders
    del session
    assert alive(binders) == []


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_the_model_that_was_given_goes_with_the_session(name: str, level: str) -> None:
    small = SMALL_MODELS[name]
    data = small.model.SerializeToString()
    given = sys.getrefcount(data)
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    for sizes in small.sizes:
        session.run(None, small.inputs(sizes))
    del session
    assert sys.getrefcount(data) == given


def test_segments_go_with_a_session_that_an_engine_stands_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segments: Made
) -> None:
    keeps_every_engine(tmp_path / "cache", monkeypatch)
    path = tmp_path / "model.onnx"
    write_model(path)
    for counts, stored in [
        ((7,), False),
        ((7,), True),
        ((7, 5), True),
    ]:
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        assert is_stored(session) == stored
        for count in counts:
            session.run(None, {"ids": IDS[:count]})
        wait()
        assert alive(segments)
        del session
        assert alive(segments) == []
