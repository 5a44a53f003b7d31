"""Model files that somebody writes to while a session has weights mapped from them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sardonyx as ort
from sardonyx import errors
from tests.api.engine_models import IDS, expected, keeps_every_engine, wait, write_model

pytestmark = [
    pytest.mark.machine_neutral,
    pytest.mark.skipif(os.name != "posix", reason="the system keeps mapped files from being written to"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    keeps_every_engine(tmp_path / "cache", monkeypatch)
    return tmp_path


def session(path: Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("is_kept", [False, True])
def test_every_way_to_run_refuses_weights_that_were_written_to(folder: Path, is_kept: bool) -> None:
    path, weights = folder / "model.onnx", folder / "weights.bin"
    constants = write_model(path, external=weights.name)
    feeds = {"ids": IDS[:7]}
    if is_kept:
        session(path).run(None, feeds)
        wait()
    made = session(path)
    for _ in range(3):  # the third one takes the short way
        np.testing.assert_allclose(made.run(None, feeds)[0], expected(constants, IDS[:7]), rtol=1e-4, atol=1e-4)
    bound = made.io_binding()
    bound.bind_cpu_input("ids", IDS[:7])
    for output in made.get_outputs():
        bound.bind_output(output.name)
    made.run_with_iobinding(bound)
    with weights.open("r+b") as file:
        file.write(bytes(64))
    os.utime(weights)
    for _ in range(2):
        with pytest.raises(errors.Fail, match=r"weights.bin was written to .* make the session anew"):
            made.run(None, feeds)
    with pytest.raises(RuntimeError, match=r"weights.bin was written to"):
        made.run_with_iobinding(bound)
    with pytest.raises(errors.Fail, match=r"weights.bin was written to"):
        made.run_streamed(None, feeds)
    session(path).run(None, feeds)


def test_files_that_took_the_names_make_no_difference(folder: Path) -> None:
    path, weights = folder / "model.onnx", folder / "weights.bin"
    constants = write_model(path, external=weights.name)
    made = session(path)
    shutil.copy(weights, folder / "other.bin")
    os.replace(folder / "other.bin", weights)
    np.testing.assert_allclose(made.run(None, {"ids": IDS[:7]})[0], expected(constants, IDS[:7]), rtol=1e-4, atol=1e-4)
    weights.unlink()
    np.testing.assert_allclose(made.run(None, {"ids": IDS[:7]})[0], expected(constants, IDS[:7]), rtol=1e-4, atol=1e-4)


def test_a_shorter_file_does_not_end_the_process(folder: Path) -> None:
    """In a process of its own, which the system would end."""
    path, weights = folder / "model.onnx", folder / "weights.bin"
    write_model(path, external=weights.name)
    program = """
import sys
import sardonyx as ort
from tests.api.engine_models import IDS
made = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
made.run(None, {"ids": IDS[:7]})
open(sys.argv[2], "wb").close()
try:
    made.run(None, {"ids": IDS[:7]})
except ort.capi.onnxruntime_pybind11_state.Fail as error:
    print("refused")
"""
    command = [sys.executable, "-c", program, str(path), str(weights)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "refused\n", done
