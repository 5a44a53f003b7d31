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
def _vouchers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert set(report["sections"]) == {"tables", "image", "constants", "nodes", "model", "weights"}
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
    ("arguments", "words"),
    [
        (["--profile", "ids"], "reads NAME:MIN,OPT,MAX"),
        (["--profile", PROFILE, "--dim", "batch=2"], "leave it out, or --profile"),
        (["--profile", "other:1"], "names 'other'"),
        (["-o", "absent/x.engine"], "cannot be written"),
        (["--option", "sardonyx.cpu.kernels=none"], "none"),
    ],
)
def test_what_is_refused(command: Command, embedding: Path, arguments: list[str], words: str) -> None:
    outcome = command("compile", embedding, *arguments)
    assert outcome.code == 1
    assert words in outcome.err
    assert len(outcome.err.splitlines()) == 1
