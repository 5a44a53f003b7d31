"""`sardonyx tune-kernels`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sardonyx.compiler.choice.gemm_cuts import Tuning
from sardonyx.compiler.native.rows.rows import Rates
from sardonyx.tuning import stored
from sardonyx.tuning.ceilings import Ceilings
from sardonyx.tuning.fitting import Fit
from tests.cli.conftest import Command

FOUND = stored.Found(
    Ceilings({1: {"f32": 100.0}}, {1: {"L2": 9.0, "L3": 5.0, "DRAM": 1.0}}, 1, 2),
    Fit(Tuning(prefetch=1024), Rates(), {"prefetch": 1.25}),
)


@pytest.fixture(autouse=True)
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and a machine that is measured at once."""
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path))

    def measure(threads: int, progress: Any) -> stored.Found:
        progress(f"for {threads} threads")
        return FOUND

    monkeypatch.setattr(stored, "measure", measure)


def test_numbers_are_shown_and_kept(command: Command, tmp_path: Path) -> None:
    outcome = command("tune-kernels", "--threads", 2)
    assert outcome.code == 0
    assert outcome.err == "measuring for 2 threads …\n"
    (path,) = tmp_path.rglob("machine-*.json")
    assert outcome.out.splitlines()[-1] == f"wrote {path}"
    (row,) = [line.split() for line in outcome.out.splitlines() if "prefetch" in line]
    assert row == ["gemm", "prefetch", "8,192", "1,024", "1.250x"]
    assert json.loads(path.read_text())["sections"]["tuning"]["gemm"]["prefetch"] == 1024


def test_a_dry_run_keeps_nothing(command: Command, tmp_path: Path) -> None:
    assert command("tune-kernels", "--dry-run").out.endswith("nothing was kept\n")
    assert not list(tmp_path.rglob("machine-*.json"))


def test_json_has_stable_keys(command: Command) -> None:
    report = json.loads(command("tune-kernels", "--json").out)
    assert sorted(report) == ["ceilings", "file", "gains", "tuning"]
    assert sorted(report["tuning"]) == ["gemm", "rows"]
    assert Path(report["file"]).is_file()


def test_what_was_kept_can_be_forgotten(command: Command, tmp_path: Path) -> None:
    assert command("tune-kernels", "--reset").out == "nothing was stored\n"
    command("tune-kernels")
    (path,) = tmp_path.rglob("machine-*.json")
    assert command("tune-kernels", "--reset").out == f"forgot {path}\n"
    assert not path.exists()


def test_a_folder_that_cannot_be_written_is_an_error(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SARDONYX_CACHE", str(blocked))
    outcome = command("tune-kernels")
    assert outcome.code == 1
    assert "SARDONYX_CACHE" in outcome.err
