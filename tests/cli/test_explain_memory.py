"""`sardonyx explain --memory`: where the bytes of the session are."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from sardonyx.tuning import ceilings
from tests.api.test_memory_report import WIDTH, layers, packed_bytes
from tests.cli.conftest import Command
from tests.cli.test_explain import RATES


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ceilings of a machine that nobody has to measure."""
    monkeypatch.setattr(ceilings, "stored_ceilings", lambda threads: RATES)


def test_the_report_follows_the_table(command: Command, tmp_path: Path) -> None:
    onnx.save(layers(), tmp_path / "model.onnx")
    arguments = ("explain", str(tmp_path / "model.onnx"), "--dim", "n=12", "--memory")
    text = command(*arguments).out
    assert "packed for kernels" in text
    assert f"12x{WIDTH}" in text
    content = json.loads(command(*arguments, "--json").out)
    assert content["memory"]["weights"]["packed"] == packed_bytes()
    assert content["memory"]["execution_contexts"][0]["arena"] == content["memory"]["plans"][-1]["arena"] > 0
    assert "memory" not in json.loads(command(*arguments[:-1], "--json").out)
