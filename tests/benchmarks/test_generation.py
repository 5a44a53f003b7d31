"""The command that measures generation: what it tells of figures, and of engines that are not there."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.generation import __main__ as command
from benchmarks.generation import models, rows
from benchmarks.generation.engines import Job
from benchmarks.generation.rows import OPTIMUM, OURS, TEXT, TORCH, Cell, Row


def _run(seconds: float, tokens: list[int], native: float | None = None, first: float | None = None) -> dict:
    times = {"seconds": seconds, "native": native, "first": first}
    return {**times, "tokens": tokens, "before": 10_000_000, "peak": 30_000_000}


def _figures(row: Row, *cells: dict[str, list[dict]], **more: object) -> dict:
    return {"row": asdict(row), "cells": cells, "missing": {}, "model_bytes": 0, **more}


_ROW = Row("r", "Some model", "r", TEXT, (Cell(32, 100),), ((OPTIMUM, 2.0), (TORCH, 0.0)))


def test_figures_are_medians_and_other_tokens_are_told() -> None:
    runs = {
        OURS: [_run(2.0, [1, 2], 1.99), _run(1.0, [1, 2], 0.995), _run(9.0, [1, 2], 8.9)],
        OPTIMUM: [_run(5.0, [1, 2])] * 3,
        TORCH: [_run(3.0, [1, 9])] * 3,
    }
    told = command.lines(_figures(_ROW, runs, missing={"genai": "no"}))
    assert told[0] == "Some model: 100 tokens behind 32"
    assert "50.0 tokens/s" in told[1]
    assert "ours 2.50 times as fast (goal 2.0), equal tokens" in told[2]
    assert "OTHER TOKENS from 1 of 2 on" in told[3]
    assert "9.95 ms native, 50 µs python" in told[4]
    assert told[-1] == "  genai: no"


def test_several_cells_have_a_mean_and_a_least() -> None:
    row = replace(_ROW, cells=(Cell(8, 100), Cell(8, 100, 5)))
    first = {OURS: [_run(1.0, [1])], TORCH: [_run(2.0, [1])]}
    second = {OURS: [_run(1.0, [1])], TORCH: [_run(8.0, [1])]}
    told = command.lines(_figures(row, first, second))
    assert "Some model: 100 tokens behind 8, 5 beams" in told
    assert told[-1] == "  over torch: geometric mean 4.00, least 2.00"


def test_the_first_token_and_those_behind_it_are_compared() -> None:
    row = replace(_ROW, goals=((OPTIMUM, 1.5),), first=1.15)
    runs = {OURS: [_run(10.0, [1], None, 0.1)], OPTIMUM: [_run(40.1, [1], None, 0.5)]}
    told = command.lines(_figures(row, runs))
    assert "the first after 100 ms" in told[1]
    assert "the first 5.00 (goal 1.15), behind it 4.00, equal tokens" in told[2]


def test_memory_is_over_the_model_and_one_cache() -> None:
    row = replace(_ROW, memory=1.15)
    told = command.lines(_figures(row, {OURS: [_run(1.0, [1])]}, model_bytes=6_000_000, cache_bytes=10_000_000))
    assert told[-1] == "  memory over model and cache: 1.25 (goal 1.15)"


def test_a_tiny_model_is_built_once_and_run_by_us_and_by_torch(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    pythons = dict.fromkeys((OURS, TORCH, OPTIMUM, rows.GENAI), sys.executable)
    places = models.Places(tmp_path, tmp_path, pythons, tiny=True)
    folder = models.ensure("t5-small", places)
    made = (folder / "config.json").stat().st_mtime_ns
    assert models.ensure("t5-small", places) == folder
    assert (folder / "config.json").stat().st_mtime_ns == made
    row = replace(next(row for row in rows.ROWS if row.name == "t5-small"), cells=(Cell(8, 6), Cell(8, 6, 5)))
    figures = command.measure(row, folder, pythons, threads=1, turns=1)
    assert figures["missing"] == {}
    told = command.lines(figures)
    assert sum("equal tokens" in line for line in told) == 2


def test_a_model_whose_tool_fails_is_told_with_the_reason_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(folder: Path, places: models.Places) -> None:
        (folder / "model.onnx").touch()
        models._run(sys.executable, ["no_such_tool"])

    monkeypatch.setitem(models._BUILDERS, "llama-int4", build)
    with pytest.raises(RuntimeError, match="no_such_tool"):
        models.ensure("llama-int4", models.Places(tmp_path, tmp_path, {}, tiny=True))
    assert not (tmp_path / "tiny" / "llama-int4").exists()


def test_an_engine_that_is_not_there_is_missing_with_its_reason(tmp_path: Path) -> None:
    job = Job(OURS, rows.DECODER, str(tmp_path), 1)
    with pytest.raises(RuntimeError, match="FileNotFoundError"):
        command.Worker(sys.executable, job)
