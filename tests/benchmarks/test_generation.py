"""The command that measures generation: what it tells of figures, and of engines that are not there."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.generation import __main__ as command
from benchmarks.generation.worker import Job


def _run(seconds: float, tokens: list[int], **more: float) -> dict[str, object]:
    return {"seconds": seconds, "tokens": tokens, "before": 10_000_000, "peak": 30_000_000, **more}


def test_figures_are_medians_and_other_tokens_are_told() -> None:
    row = command.Row("r", "Some model", prompt=32, new=100, goals=(("optimum", 2.0), ("torch", 0)))
    runs = {
        command.OURS: [_run(2.0, [1, 2], native=1.99), _run(1.0, [1, 2], native=0.995), _run(9.0, [1, 2], native=8.9)],
        "optimum": [_run(5.0, [1, 2])] * 3,
        "torch": [_run(3.0, [1, 9])] * 3,
    }
    told = command.lines({"row": asdict(row), "runs": runs, "missing": {"genai": "no"}, "model_bytes": 0})
    assert "50.0 tokens/s" in told[1]
    assert "ours 2.50 times as fast (goal 2.0), equal tokens" in told[2]
    assert "OTHER TOKENS" in told[3]
    assert "9.95 ms native, 50 µs python" in told[4]
    assert told[-1] == "  genai: no"


def test_an_engine_that_is_not_there_is_missing_with_its_reason(tmp_path: Path) -> None:
    job = Job("sardonyx", str(tmp_path), 4, 4, 1, 1)
    with pytest.raises(RuntimeError, match="FileNotFoundError"):
        command.Worker(sys.executable, job)
