"""`sardonyx warm`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sardonyx
from sardonyx.api.engines import engine_store
from sardonyx.compiler.llvm import library as libraries
from tests.cli.conftest import Command


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, of libraries and engines as a process that begins has them."""
    monkeypatch.setattr(libraries, "_LIBRARIES", {})
    monkeypatch.setattr(engine_store, "LEAST_SECONDS", 0.0)
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sardonyx" / "kernels"


IN_ANOTHER_PROCESS = """
import sys, numpy as np
import sardonyx
from sardonyx.compiler.llvm.library import all_counts
from sardonyx.api.engines import engine_store
engine_store.LEAST_SECONDS = 0.0
options = sardonyx.SessionOptions()
options.intra_op_num_threads = 1
if sys.argv[2] == "0":
    options.add_session_config_entry("sardonyx.engine_cache", "0")
session = sardonyx.InferenceSession(sys.argv[1], options)
for length in (3, 7):
    session.run(None, {"ids": np.zeros((2, length), np.int64), "shift": np.array(0, np.float32)})
print(all_counts().compiled, session._session()._is_stored)
"""


def in_another_process(model: Path, *, engines: bool) -> list[str]:
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, str(model), str(int(engines))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    return done.stdout.split()


def test_another_process_compiles_nothing_and_begins_from_the_engine(
    command: Command, embedding: Path, cache: Path
) -> None:
    arguments = ["--dim", "batch=2", "--dim", "length=3,7", "--threads", 1, "--json"]
    outcome = command("warm", embedding, *arguments)
    assert (outcome.code, outcome.err) == (0, "")
    (row,) = json.loads(outcome.out)
    assert row["model"] == str(embedding)
    assert row["compiled"] == len(list(cache.glob("*.o"))) > 0
    assert (row["from_cache"], row["from_pack"], row["engine"], row["assumed"]) == (0, 0, True, {})
    assert in_another_process(embedding, engines=True) == ["0", "True"]
    assert in_another_process(embedding, engines=False) == ["0", "False"]


def test_several_models_share_sizes_and_kernels(
    command: Command, embedding: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.onnx"
    shutil.copy(embedding, other)
    outcome = command("warm", embedding, other, "--dim", "length=4", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    first, second = json.loads(outcome.out)
    assert first["compiled"] > 0 == second["compiled"]
    assert first["engine"] is second["engine"] is True  # though both files were written just now
    assert first["assumed"] == {"batch": 1}
    text = command("warm", embedding, "--dim", "length=4")
    assert text.code == 0
    assert "kept" in text.out
    assert "batch = 1, as none was given" in text.out


def test_options_are_those_of_the_sessions_to_come(command: Command, embedding: Path) -> None:
    outcome = command("warm", embedding, "--option", "sardonyx.engine_cache=0", "--dim", "batch=2", "--json")
    assert json.loads(outcome.out)[0]["engine"] is False
    assert command("warm", embedding, "--dim", "batch=2", "--dim", "length=5").code == 0
    session = sardonyx.InferenceSession(embedding)
    assert session._session()._is_stored
    feeds = {"ids": np.array([[0, 1, 2, 3, 4]] * 2), "shift": np.array(2, np.float32)}
    assert np.isfinite(session.run(None, feeds)[0]).all()


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["--dim", "width=2"], "--dim width: no model has it; there are batch, length", 2),
        (["--dim", "batch=2,x"], "expected a whole number", 2),
        (["--dim", "batch=2,"], "expected a whole number", 2),
        (["--input", "other=1"], "--input other: no model has it; there are ids, shift", 2),
        (["--provider", "GPUExecutionProvider"], "it cannot run here", 2),
        (["--dim", "batch=1,2,3,4,5,6,7,8,9", "--dim", "length=1,2,3,4,5,6,7,8"], "at most 64 are run", 2),
        (["--option", "sardonyx.cpu.kernels=none"], "none", 2),
    ],
)
def test_wrong_arguments(arguments: list[str], words: str, code: int, command: Command, embedding: Path) -> None:
    outcome = command("warm", embedding, *arguments)
    assert outcome.code == code
    assert words in outcome.err
    assert outcome.out == ""


def test_where_nothing_is_kept_it_says_why(command: Command, embedding: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", "off")
    outcome = command("warm", embedding)
    assert outcome.code == 1
    assert "nothing is kept: SARDONYX_CACHE turns it off" in outcome.err


def test_a_file_that_is_no_model(command: Command, tmp_path: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"no model")
    assert command("warm", tmp_path / "no.onnx").code == 1
    assert command("warm").code == 2
