"""The command that runs guided fuzzing, without atheris, and a check of what its checks notice."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from sardonyx.runtime.files import engine_file, trust_records
from tests.robustness.guided import __main__ as command
from tests.robustness.guided.targets import TARGETS


def test_the_command_says_that_atheris_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["guided", "--seconds", "1"])
    assert command.main() == 2
    assert "needs atheris" in capsys.readouterr().err


@pytest.mark.parametrize("said", ["taken", "refused"])
def test_the_command_shows_what_comes_of_an_input(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "input"
    path.write_bytes(TARGETS["kernel"].seeds()[0] if said == "taken" else b"no entry")
    monkeypatch.setattr(sys, "argv", ["guided", "--target", "kernel", "--input", str(path)])
    assert command.main() == 0
    assert capsys.readouterr().out == f"{said}\n"


def test_an_engine_that_is_trusted_without_a_trust_record_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = TARGETS["untrusted"]
    monkeypatch.setattr(trust_records.TrustRecords, "may_run", lambda *given: True)
    with pytest.raises(AssertionError, match="nobody trusts"):
        target.check(target.seeds()[0], tmp_path)


def test_a_checksum_that_is_not_compared_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = TARGETS["sealed"]
    broken = target.seeds()[0][:-1] + b"!"
    assert not target.check(broken, tmp_path)
    monkeypatch.setattr(engine_file.SealedEngine, "verify", lambda engine: None)
    assert target.check(broken, tmp_path)
