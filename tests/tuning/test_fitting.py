"""Fitting takes a candidate only where it is clearly faster, and what is kept is what sessions then use."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.choice import tuned as module
from sardonyx.compiler.choice.gemm_blocking import choose_blocking
from sardonyx.compiler.choice.gemm_choice import Problem
from sardonyx.compiler.choice.gemm_cuts import Tuning
from sardonyx.compiler.choice.tuned import SECTION, tuned, using, with_stored
from sardonyx.compiler.llvm.target import host_target
from sardonyx.compiler.native.rows.rows import Rates, elements_per_chunk
from sardonyx.runtime.files.machine_file import machine_key, read_sections, write_section
from sardonyx.tuning import fitting, stored
from sardonyx.tuning.ceilings import Ceilings
from sardonyx.tuning.fitting import Fit, best_of

CEILINGS = Ceilings({1: {"f32": 530.0}}, {1: {"L2": 9.0, "L3": 5.0, "DRAM": 1.0}}, 1, 2)


@dataclass(frozen=True)
class Numbers:
    """A group of numbers of every kind."""

    share: float = 0.5
    count: int = 8
    pair: tuple[float, float] = (1.0, 2.0)
    off: int = 0


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No numbers in use from before or from a file, none left for later."""
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_in_use", {})
    monkeypatch.setattr(module, "read_sections", read_sections)
    module.stored_numbers.cache_clear()
    yield
    module.stored_numbers.cache_clear()


def clock(seconds: float) -> Any:
    return lambda: seconds


def test_a_clearly_faster_candidate_is_taken() -> None:
    chosen, gain = best_of([1.0, 0.5, 0.8], lambda seconds: [clock(seconds), clock(2 * seconds)])
    assert chosen == 0.5
    assert gain == pytest.approx(2.0)


def test_a_candidate_that_is_hardly_faster_is_not() -> None:
    assert best_of([1.0, 0.99], lambda seconds: [clock(seconds)]) == (1.0, 1.0)
    assert best_of([1.0], lambda seconds: [clock(seconds)]) == (1.0, 1.0)


def test_a_candidate_has_to_win_twice() -> None:
    """The second candidate is fast for as long as all are timed in turns, and slow afterwards."""
    calls = 0

    def lucky() -> float:
        nonlocal calls
        calls += 1
        return 0.1 if calls <= fitting._ROUNDS else 3.0

    assert best_of(["steady", "lucky"], lambda name: [lucky if name == "lucky" else clock(1.0)]) == ("steady", 1.0)


def test_numbers_of_a_file_replace_defaults() -> None:
    found = with_stored(Numbers(), {"share": 0.25, "count": 16, "pair": [3.0, 4.0], "unknown": 1})
    assert found == Numbers(0.25, 16, (3.0, 4.0), 0)
    assert isinstance(with_stored(Numbers(), {"share": 2}).share, float)


@pytest.mark.parametrize(
    "stored_numbers",
    [
        None,
        [],
        "text",
        {"share": "0.5"},
        {"share": -1.0},
        {"share": 0},
        {"share": float("inf")},
        {"share": True},
        {"count": 1.5},
        {"count": 1e9},
        {"count": 10**400},
        {"share": 10**400},
        {"count": float("nan")},
        {"pair": [1.0]},
        {"pair": 3.0},
        {"pair": [1.0, None]},
        {"off": -1},
    ],
)
def test_what_is_unlike_a_default_is_left_out(stored_numbers: Any) -> None:
    assert with_stored(Numbers(), stored_numbers) == Numbers()


def test_a_file_decides_what_is_used() -> None:
    write_section(
        machine_key(host_target().key), SECTION, {"gemm": {"chunk_flops": [1e8, 2e8]}, "rows": {"chunk_ns": 8.0}}
    )
    stored_tuning = Tuning(chunk_flops=(1e8, 2e8))
    assert tuned("gemm", Tuning) == stored_tuning
    assert tuned("rows", Rates).chunk_ns == 8.0
    blocking = choose_blocking(host_target(), Problem(m=512, n=4096, k=1024))
    assert blocking == choose_blocking(host_target(), Problem(m=512, n=4096, k=1024), stored_tuning)
    assert blocking.chunks < choose_blocking(host_target(), Problem(m=512, n=4096, k=1024), Tuning()).chunks


def test_without_a_file_there_are_defaults() -> None:
    assert tuned("gemm", Tuning) == Tuning()
    assert tuned("rows", Rates) == Rates()


def test_numbers_can_be_tried_for_a_while() -> None:
    with using("rows", Rates(bytes_per_ns=1.0, operations_per_ns=1.0, chunk_ns=10.0, small_step_ns=50.0)):
        assert elements_per_chunk(49, 2.0, 0.0) == 49
        assert elements_per_chunk(50, 2.0, 0.0) == 5
        with using("rows", Rates(bytes_per_ns=2.0, chunk_ns=10.0, small_step_ns=50.0)):
            assert elements_per_chunk(50, 4.0, 0.0) == 5
        assert elements_per_chunk(50, 4.0, 0.0) == 2
    assert tuned("rows", Rates) == Rates()


def test_chunks_take_as_long_on_a_faster_machine() -> None:
    least, most = Tuning().chunk_flops
    assert fitting._scaled(Tuning(), CEILINGS).chunk_flops == (2 * least, 2 * most)


def test_the_products_that_are_timed_are_products() -> None:
    """What is timed computes A x B, with any numbers."""
    runner = fitting.Runner(1)
    for tuning in (Tuning(), Tuning(panel_l1=0.1, group_columns=32, prefetch=4096)):
        results: list[Any] = []
        original = runner.timer

        def kept(bound: Any, inputs: Any, original: Any = original, results: list[Any] = results) -> Any:
            run = original(bound, inputs)
            run()
            results.append((inputs[0], run.__defaults__[0][1]))
            return run

        runner.timer = kept  # type: ignore[method-assign]
        (timer,) = fitting._timers(runner, [(20, 40, 70)], tuning)
        runner.timer = original  # type: ignore[method-assign]
        assert timer() > 0
        ((a, result),) = results
        rng = np.random.default_rng(0)
        np.testing.assert_array_equal(a, rng.standard_normal((20, 40), np.float32))
        np.testing.assert_allclose(result, a @ rng.standard_normal((40, 70), np.float32), rtol=1e-4, atol=1e-4)


def test_every_number_that_is_tried_exists() -> None:
    names = {field.name for field in fields(Tuning)}
    for name, values, products in fitting._TRIED:
        assert name in names
        assert getattr(Tuning(), name) in values
        assert products


def test_rates_of_this_machine_are_numbers_in_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_ROUNDS", 1)
    for threads in (1, 2):
        found, gains = fitting.fit_rows(threads)
        assert found.bytes_per_ns > 0
        assert found.operations_per_ns > 0
        assert fitting._LEAST_SMALL_NS <= found.small_step_ns <= fitting._MOST_SMALL_NS
        assert set(gains) == ({"chunk_ns"} if threads > 1 else set())


FOUND = stored.Found(CEILINGS, Fit(Tuning(group_columns=128), Rates(chunk_ns=99.0), {"group_columns": 1.5}))


def test_what_is_found_is_kept_and_forgotten(tmp_path: Path) -> None:
    path = stored.keep(FOUND, tmp_path)
    assert path is not None
    sections = read_sections(machine_key(host_target().key), tmp_path)
    assert with_stored(Tuning(), sections[SECTION]["gemm"]) == FOUND.fit.gemm
    assert with_stored(Rates(), sections[SECTION]["rows"]) == FOUND.fit.rows
    assert Ceilings.from_json(sections["ceilings"]) == CEILINGS
    assert stored.forget(tmp_path) == path
    assert not os.path.exists(path)
    assert stored.forget(tmp_path) is None


def test_measuring_tells_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(stored.ceilings_of, "measure", lambda threads: asked.append(threads) or CEILINGS)
    monkeypatch.setattr(stored, "fit", lambda ceilings, threads, progress: asked.append(threads) or FOUND.fit)
    told: list[str] = []
    assert stored.measure(3, told.append) == FOUND
    assert asked == [[1, 3], 3]
    assert told == ["ceilings"]
    assert json.loads(json.dumps(FOUND.as_dict()))["tuning"]["gemm"]["group_columns"] == 128
    assert asdict(FOUND.fit.gemm)["group_columns"] == 128
