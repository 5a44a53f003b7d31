"""Engines are of what their sessions read: never of other files that have got the same names since."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

import sardonyx as ort
from sardonyx.api.engines import engine_keeper
from tests.api.engine_models import IDS, engines_in, expected, keeps_every_engine, wait, write_model


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    keeps_every_engine(tmp_path / "cache", monkeypatch)
    return engines_in(tmp_path / "cache")


def session(path: Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def check(made: ort.InferenceSession, constants: dict[str, np.ndarray], count: int) -> None:
    y, _ = made.run(None, {"ids": IDS[:count]})
    np.testing.assert_allclose(y, expected(constants, IDS[:count]), rtol=1e-4, atol=1e-4)


def test_a_folder_that_took_the_name_of_another_has_no_engine_of_that(tmp_path: Path) -> None:
    written = {}
    for seed, name in enumerate(("now", "next")):
        (tmp_path / name).mkdir()
        written[name] = write_model(tmp_path / name / "model.onnx", seed)
    path = tmp_path / "now" / "model.onnx"
    made = session(path)
    (tmp_path / "now").rename(tmp_path / "before")
    (tmp_path / "next").rename(tmp_path / "now")  # its files are as old as ever
    check(made, written["now"], 7)
    wait()
    check(session(path), written["next"], 7)


@pytest.mark.parametrize("external", ["", "weights.bin"])
def test_a_session_whose_files_were_replaced_leaves_no_engine_of_the_old_ones(tmp_path: Path, external: str) -> None:
    path = tmp_path / "model.onnx"
    old = write_model(path, external=external)
    check(session(path), old, 7)
    wait()
    made = session(path)
    (tmp_path / "next").mkdir()
    new = write_model(tmp_path / "next" / "model.onnx", 1, external=external)
    for name in filter(None, ("model.onnx", external)):
        os.replace(tmp_path / "next" / name, tmp_path / name)
    check(made, old, 12)  # which the engine lacks
    wait()
    for count in (7, 12):
        check(session(path), new, count)


def test_no_engine_is_begun_when_the_process_ends(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = write_model(tmp_path / "model.onnx")
    ended = threading.Event()
    ended.set()
    monkeypatch.setattr(engine_keeper, "AT_END", ended)  # a thread that is started so late may never begin
    check(session(tmp_path / "model.onnx"), constants, 7)
    wait()
    assert not list(folder.glob("*.engine"))
