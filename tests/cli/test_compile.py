"""`sardonyx compile`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import sardonyx
from sardonyx.compiler.llvm.library import library
from tests.cli.conftest import Command

PROFILE = "ids:1x1,2x3,4x64"


@pytest.fixture(autouse=True)
def _trust_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library()
    library(purpose="runtime")  # whose kernels come from where all tests have them
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))


def test_an_engine_is_written_and_runs(command: Command, embedding: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.engine"
    arguments = ["compile", embedding, "-o", target, "--profile", PROFILE, "--profile", "ids:1x8", "--threads", 1]
    outcome = command(*arguments, "--option", "sardonyx.cpu.fast_products=0", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    report = json.loads(outcome.out)
    assert report["engine"] == str(target)
    assert report["bytes"] == target.stat().st_size
    assert [profile["ids"] for profile in report["profiles"]] == [[[1, 1], [2, 3], [4, 64]], [[1, 8]] * 3]
    assert report["profiles"][0]["shift"] == [[], [], []]
    assert set(report["sections"]) == {"tables", "image", "constants", "made", "nodes", "model", "weights"}
    made = sardonyx.InferenceSession(target)
    assert made._session()._is_stored
    feeds = {"ids": np.array([[0, 1, 2], [4, 3, 1]]), "shift": np.array(2, np.float32)}
    expected = sardonyx.InferenceSession(embedding).run(None, feeds)
    np.testing.assert_array_equal(made.run(None, feeds)[0], expected[0])


def test_the_text_says_what_is_in_it(command: Command, embedding: Path) -> None:
    outcome = command("compile", embedding, "--dim", "batch=2", "--dim", "length=5")
    assert (outcome.code, outcome.err) == (0, "")
    assert embedding.with_suffix(".engine").exists()
    assert "profile   ids 2x5; shift scalar" in outcome.out
    assert "kernels for" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["--profile", "ids"], "reads NAME:MIN,OPT,MAX", 2),
        (["--profile", PROFILE, "--dim", "batch=2"], "leave it out, or --profile", 2),
        (["--profile", "other:1"], "names 'other'", 1),
        (["-o", "absent/x.engine"], "the engine absent/x.engine cannot be written", 1),
        (["--option", "sardonyx.cpu.kernels=none"], "none", 2),
        (["--option", "sardonyx.cpu.kernel=avx2"], "did you mean sardonyx.cpu.kernels?", 2),
    ],
)
def test_what_is_refused(command: Command, embedding: Path, arguments: list[str], words: str, code: int) -> None:
    outcome = command("compile", embedding, *arguments)
    assert outcome.code == code
    assert ".new-" not in outcome.err
    assert words in outcome.err
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.parametrize("name", ["out.engine", "out.onnx"])
def test_other_commands_take_engines(name: str, command: Command, embedding: Path, tmp_path: Path) -> None:
    """A file of its own, or a model that names one; they show what is inside."""
    target = tmp_path / "out.engine"
    assert command("compile", embedding, "-o", target, "--profile", PROFILE, "--threads", 1).code == 0
    given = tmp_path / name
    if given != target:
        options = sardonyx.SessionOptions()
        options.add_session_config_entry("ep.context_enable", "1")
        options.add_session_config_entry("ep.context_file_path", str(given))
        sardonyx.InferenceSession(embedding, options)
    of_model, of_engine = (json.loads(command("info", one, "--json").out) for one in (embedding, given))
    assert of_engine["inputs"] == of_model["inputs"]
    assert of_engine["parameters"]["bytes"] == of_model["parameters"]["bytes"]
    ran, expected = (command("run", one, "--input", "ids=ones", "--json", "--repeat", 1) for one in (given, embedding))
    assert json.loads(ran.out)["outputs"] == json.loads(expected.out)["outputs"]
    rows = json.loads(command("explain", given, "--json").out)["rows"]
    assert {row["kind"] for row in rows} == {"native"}


def test_an_engine_that_cannot_take_its_place_is_called_by_its_name(
    command: Command, embedding: Path, tmp_path: Path
) -> None:
    """What it is written to first has a name of its own, which the user never chose."""
    taken = tmp_path / "folder.engine"
    taken.mkdir()
    outcome = command("compile", embedding, "-o", taken)
    assert outcome.code == 1
    assert f"the engine {taken} cannot be written: " in outcome.err
    assert ".new-" not in outcome.err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
