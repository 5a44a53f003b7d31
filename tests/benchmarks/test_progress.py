"""What the long measurement says of itself."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest

import benchmarks.__main__ as everything
from benchmarks.effort import QUICK, THOROUGH, USUAL
from benchmarks.progress import Progress
from benchmarks.turns import Budget, take_turns


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_is_left_follows_the_plan_and_then_the_pace() -> None:
    clock = Clock()
    progress = Progress({"first": 100.0, "second": 50.0, "third": 10.0}, clock)
    progress.begin("first")
    assert progress.left(0.0) == 160.0
    clock.now += 100.0
    assert progress.left(0.5) == 100.0 + 2 * 60.0  # half of the first took as long as all of it should have
    clock.now += 100.0
    progress.begin("second")
    assert progress.left(0.0) == 2 * 60.0
    clock.now += 30.0
    assert progress.left(0.6) == pytest.approx(20.0 + 10.0 * 230.0 / 130.0)
    progress.end()
    assert progress.spent == {"first": 200.0, "second": 30.0}
    assert progress.minutes == pytest.approx(230.0 / 60)


def test_a_word_comes_from_time_to_time(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = Progress({"models": 60.0, "memory": 60.0}, clock)

    def rows() -> list[int]:
        found = []
        progress.begin("models")
        for row in progress.over(range(6), 6):
            clock.now += 10.0
            found.append(row)
        return found

    assert rows() == list(range(6))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Part 1 of 2, models: 0.0 minutes so far, about 2 left"
    assert lines[1] == "models: 2 of 6 rows, 0.3 minutes so far, about 2 left of all parts"
    assert len(lines) == 4


def test_more_rows_than_expected_are_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = Progress({"gemm": 1.0}, clock)
    progress.begin("gemm")
    for _ in progress.over(range(3), 1):
        clock.now += 30.0
    assert "gemm: 2 of 2 rows" in capsys.readouterr().err


def test_every_part_is_planned() -> None:
    chosen = argparse.Namespace(quick=False, thorough=False, seconds=None)
    assert everything.effort_of(chosen) is USUAL
    assert everything.effort_of(argparse.Namespace(quick=True, thorough=False, seconds=None)) is QUICK
    assert everything.effort_of(argparse.Namespace(quick=False, thorough=True, seconds=None)) is THOROUGH
    longer = everything.effort_of(argparse.Namespace(quick=False, thorough=False, seconds=2.5))
    assert longer == replace(USUAL, models=replace(USUAL.models, seconds=2.5))
    for part in everything.PARTS.values():
        assert part.row_seconds > 0


def test_long_runs_need_no_waking() -> None:
    budget = Budget(runs=2, turn_seconds=0.0, pause_seconds=0.0, long_run_seconds=0.0)
    calls: list[int] = []
    taken = take_turns({"a": lambda: calls.append(1)}, budget)
    assert len(taken["a"]) == 2
    assert len(calls) == 3  # only the first turn begins with a run that does not count
    calls.clear()
    take_turns({"a": lambda: calls.append(1)}, replace(budget, long_run_seconds=60.0))
    assert len(calls) == 4
