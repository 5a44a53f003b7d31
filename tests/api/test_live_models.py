"""Sessions of one model file and the same options: one set of weights, plans and code, however the first was made."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as ort
from sardonyx.api.engines import engine_store
from sardonyx.runtime import file_state
from tests.api.test_engine_cache import wait
from tests.api.test_memory_report import WIDTH, layers, packed_bytes, run, session

pytestmark = pytest.mark.machine_neutral


@pytest.fixture(autouse=True)
def _engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every model has an engine, in a folder of the test."""
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(engine_store, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(file_state, "SETTLED_SECONDS", -3600.0)
    yield
    wait()
    gc.collect()


@pytest.fixture
def path(tmp_path: Path) -> str:
    onnx.save(layers(), tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


def core(made: ort.InferenceSession) -> Any:
    assert made._sess is not None
    return made._sess


def kind(made: ort.InferenceSession) -> tuple[bool, bool]:
    """Whether it comes from an engine, and whether its plans are those of another session."""
    return core(made)._is_stored, core(made)._borrows


def test_a_second_session_runs_the_plans_of_the_first(path: str) -> None:
    first = session(path)
    expected = {rows: run(first, rows) for rows in (4, 40)}
    second = session(path)
    assert kind(second) == (False, True)
    for rows, result in expected.items():
        for _ in range(3):
            np.testing.assert_array_equal(run(second, rows), result)
    reports = [made.memory_report() for made in (first, second)]
    for report in reports:
        assert report.weights.packed == report.weights.shared == packed_bytes()
    addresses = [{execution_context.address for execution_context in report.execution_contexts} for report in reports]
    assert not addresses[0] & addresses[1]
    mine, other = (core(made).plan.steps[0].call.made_plans for made in (first, second))
    assert [ready.plan for _, ready in mine] == [ready.plan for _, ready in other]


def test_sizes_that_only_one_of_them_has_seen_are_for_both(path: str) -> None:
    first, second = session(path), session(path)
    result = run(second, 21)
    np.testing.assert_array_equal(run(first, 21), result)
    assert [plan.shapes for plan in first.memory_report().plans] == [((21, WIDTH),)]


def test_the_second_one_goes_on_when_the_first_is_gone(path: str) -> None:
    first = session(path)
    expected = run(first, 7)
    second = session(path)
    del first
    gc.collect()
    np.testing.assert_array_equal(run(second, 7), expected)
    assert run(second, 30).shape == (30, WIDTH)
    report = second.memory_report()
    assert (report.weights.packed, report.weights.shared) == (packed_bytes(), 0)
    del second
    wait()
    gc.collect()
    third = session(path)
    assert kind(third)[0]  # nobody is left, so it begins from the engine
    np.testing.assert_array_equal(run(third, 7), expected)


def test_sessions_from_an_engine_share_it(path: str) -> None:
    expected = run(session(path), 7)
    gc.collect()
    wait()
    gc.collect()
    first, second = session(path), session(path)
    assert (kind(first), kind(second)) == ((True, False), (True, True))
    for made in (first, second):
        np.testing.assert_array_equal(run(made, 7), expected)
        weights = made.memory_report().weights
        assert weights.mapped > 0  # the engine's pages, of which the process has one copy
        assert weights.packed == 0
        assert made.memory_report().kernels > 0
    np.testing.assert_array_equal(run(second, 50), run(session(layers().SerializeToString()), 50))


def test_a_model_that_has_changed_is_another_one(path: str) -> None:
    first = session(path)
    before = run(first, 5)
    onnx.save(layers(8), path)
    os.utime(path, (time.time() - 50,) * 2)
    assert file_state.file_state(path) is not None
    second = session(path)
    assert kind(second) == (False, False)
    np.testing.assert_array_equal(run(second, 5), run(session(layers(8).SerializeToString()), 5))
    np.testing.assert_array_equal(run(first, 5), before)


def test_other_options_make_another_session(path: str) -> None:
    first = session(path)
    assert kind(session(path, {"sardonyx.cpu.winograd": "0"})) == (False, False)
    assert kind(session(path)) == (False, True)
    assert run(first, 3).shape == (3, WIDTH)


def test_arenas_and_their_shrinkage_are_for_each_session(path: str) -> None:
    first, second = session(path), session(path)
    run(first, 16)
    run(second, 16)
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    expected = run(first, 16)
    np.testing.assert_array_equal(run(second, 16, options), expected)
    gc.collect()
    assert second.memory_report().arena == 0
    assert first.memory_report().arena > 0


def test_a_limit_counts_what_it_shares(path: str) -> None:
    limit = {"sardonyx.memory_limit": str(packed_bytes() + (8 << 20))}
    first, second = session(path, limit), session(path, limit)
    for made in (first, second):
        run(made, 9)
        assert made.memory_report().charged["weights packed for kernels"] == packed_bytes()
