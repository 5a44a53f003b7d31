"""Why nothing is kept between processes, and that sessions say so where they are asked to log it."""

from __future__ import annotations

from pathlib import Path

import pytest

import sardonyx as ort
from sardonyx.runtime.files import cache_folder
from sardonyx.runtime.files.kept import why_nothing_is_kept
from tests.api import session_models


def _without_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SARDONYX_CACHE", raising=False)
    monkeypatch.setattr(cache_folder, "_base", lambda: None)


def test_a_folder_that_can_be_used_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path))
    assert why_nothing_is_kept() == ""


def test_no_home_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_home(monkeypatch)
    assert why_nothing_is_kept() == "nothing is kept: no home folder; set SARDONYX_CACHE"


def test_a_wish_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", "off")
    assert why_nothing_is_kept() == "nothing is kept: SARDONYX_CACHE turns it off"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "file"))
    assert str(tmp_path / "file") in why_nothing_is_kept()
    assert why_nothing_is_kept().endswith("; set SARDONYX_CACHE to a folder of your own")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that is read-only nobody may write, whoever owns the folder."""
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path))
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert "cannot be written" in why_nothing_is_kept()


@pytest.mark.parametrize(("severity", "lines"), [(1, 1), (2, 0)])
def test_sessions_log_it_as_information(
    severity: int, lines: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _without_home(monkeypatch)
    options = ort.SessionOptions()
    options.log_severity_level = severity
    ort.InferenceSession(session_models.add(), options)
    said = [line for line in capfd.readouterr().err.splitlines() if "nothing is kept: no home folder" in line]
    assert len(said) == lines
    assert all("[I:onnxruntime:" in line for line in said)
