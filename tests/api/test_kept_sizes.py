"""Kept engines get plans for sizes near to those that were run, in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest

from sardonyx.api.building.signature import Declared, Dim, ValueKind
from sardonyx.api.engines import engine_keeper, kept_engine, kept_sizes
from sardonyx.api.engines.engine_sizes import StoppedError
from sardonyx.api.engines.engine_store import wants_sizes
from sardonyx.api.engines.kept_sizes import profile_around
from sardonyx.api.explaining.explanation import explain
from sardonyx.runtime.files.engine_file import read_content
from tests.api.engine_models import engines_in, is_stored, keeps_every_engine, wait
from tests.api.size_models import check_alike, feeds, session, write_transformer

pytestmark = pytest.mark.machine_neutral

NO_ENGINE = {"sardonyx.engine_cache": "0"}
OFF = {"sardonyx.engine_new_sizes": "0"}
TENSOR = ValueKind("tensor", "tensor(float)", None)


@pytest.fixture(autouse=True)
def _background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model has an engine, in a folder of the test, and work in the background begins at once, without rests."""
    keeps_every_engine(tmp_path / "cache", monkeypatch)
    for module in (engine_keeper, kept_engine):
        monkeypatch.setattr(module, "wants_sizes", wants_sizes)
        monkeypatch.setattr(module, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(kept_sizes, "BUSY_REST", 0.0)
    monkeypatch.setattr(kept_sizes, "_LENGTHS", 60)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_transformer(tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def coverage_of(path: Path) -> list[tuple[int, int]]:
    made = session(path)
    assert is_stored(made)
    told = explain(made, feeds(1, 5)).new_sizes
    assert told is not None
    return [(one.sizes, one.covered) for one in told.coverage]


def loads_nothing(path: Path, *sizes: tuple[int, int]) -> None:
    """See that a session of the model has its engine, and gives the bits of the model without it."""
    made, wanted = session(path), session(path, NO_ENGINE)
    assert is_stored(made)
    for batch, length in sizes:
        check_alike(made, wanted, batch, length)
    assert sum(one.count for one in made._session().waits) == 0


def test_other_sizes_of_the_next_session_need_no_compiler(model: Path) -> None:
    first = session(model)
    first.run(None, feeds(2, 7))
    wait()
    (found,) = coverage_of(model)
    # Batches of up to 8 at the length 7, lengths of up to 60 in batches of 2.
    assert found == (480, 67)
    loads_nothing(model, (2, 7), (1, 7), (8, 7), (2, 1), (2, 33), (2, 60))


def test_sizes_far_from_those_come_from_the_model(model: Path) -> None:
    session(model).run(None, feeds(1, 7))
    wait()
    made, wanted = session(model), session(model, NO_ENGINE)
    check_alike(made, wanted, 3, 21)
    wait()
    (waits,) = [one for one in made._session().waits if one.count]
    assert waits.count == 1
    assert waits.latest[0].loads_model
    # The engine that is written then has sizes near to both.
    loads_nothing(model, (1, 7), (1, 50), (8, 7), (3, 21), (3, 60), (8, 21))


def test_plans_stay_where_a_process_ends_before_it_has_more(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session(model).run(None, feeds(1, 7))
    wait()
    with monkeypatch.context() as patch:
        patch.setattr(kept_sizes, "planned", lambda *given: (_ for _ in ()).throw(StoppedError))
        session(model).run(None, feeds(3, 21))
        wait()
    loads_nothing(model, (1, 7), (1, 50), (8, 7))


@pytest.mark.parametrize(("share", "rest"), [(0.0, 18.0), (0.05, 18.0), (0.5, 198.0), (2.0, 198.0)])
def test_rests_are_long_while_the_process_computes(share: float, rest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of rest after two seconds of work, where the rest of the process takes this share of a processor."""
    now = {"thread": 0.0, "process": 0.0, "rested": 0.0}

    class Ends:
        def wait(self, seconds: float) -> bool:
            now["process"] += share * seconds
            now["rested"] += seconds
            return False

        def is_set(self) -> bool:
            return False

    monkeypatch.setattr(kept_sizes, "BUSY_REST", 99.0)
    monkeypatch.setattr(kept_sizes.time, "thread_time", lambda: now["thread"])
    monkeypatch.setattr(kept_sizes.time, "process_time", lambda: now["process"])
    pace = kept_sizes.Pace(Ends())
    now["thread"] += 2.0
    assert pace(1, 2)
    assert now["rested"] == pytest.approx(rest, abs=0.11)
    assert pace(2, 2)  # no work meanwhile, no rest
    assert now["rested"] == pytest.approx(rest, abs=0.11)


def test_fixed_sizes_have_none(model: Path, tmp_path: Path) -> None:
    fixed = onnx.load(model)
    for value in fixed.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, (1, 9), strict=True):
            dim.dim_value = size
    onnx.save(fixed, tmp_path / "fixed.onnx")
    session(tmp_path / "fixed.onnx").run(None, feeds(1, 9))
    wait()
    (found,) = (read_content(path) for path in engines_in(tmp_path / "cache").glob("*.engine"))
    assert found is not None
    assert found["coverage"] == []


def test_it_can_be_switched_off(model: Path) -> None:
    session(model, OFF).run(None, feeds(1, 7))
    wait()
    made = session(model, OFF)
    assert is_stored(made)
    made.run(None, feeds(1, 8))
    assert [one.latest[0].loads_model for one in made._session().waits if one.count] == [True]


def test_limited_memory_has_none(model: Path) -> None:
    limited = {"sardonyx.memory_limit": str(1 << 30)}
    session(model, limited).run(None, feeds(1, 7))
    wait()
    made = session(model, limited)
    assert is_stored(made)
    assert list(made._session().coverage) == []


def test_a_session_goes_on_where_the_process_before_it_ended(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(kept_sizes, "planned", lambda *given: (_ for _ in ()).throw(StoppedError))
        session(model).run(None, feeds(1, 7))
        wait()
    made, wanted = session(model), session(model, NO_ENGINE)
    assert is_stored(made)
    assert list(made._session().coverage) == []
    check_alike(made, wanted, 1, 7)
    wait()
    for length in (1, 8, 30, 60):
        check_alike(made, wanted, 1, length)
    assert sum(one.count for one in made._session().waits) == 0
    loads_nothing(model, (1, 12))


def test_the_end_of_a_process_does_not_wait_for_them(model: Path, tmp_path: Path) -> None:
    """Work that would take an hour, as it rests so long, ends with the process; the engine without it is there."""
    program = (
        "import sys, time, numpy as np, sardonyx as ort\n"
        "from sardonyx.api.engines import engine_keeper, engine_store, kept_engine, kept_sizes\n"
        "from sardonyx.runtime import file_state\n"
        "engine_store.LEAST_SECONDS = 0.0\n"
        "file_state.SETTLED_SECONDS = -3600.0\n"
        "kept_engine.DELAY_SECONDS = engine_keeper.DELAY_SECONDS = 0.0\n"
        "kept_sizes.REST = kept_sizes.BUSY_REST = 1e5\n"
        "made = ort.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n"
        "made.run(None, {name: np.ones((1, 7), np.int64) for name in ('ids', 'mask')})\n"
        "time.sleep(1)\n"
        "print(made._session()._is_stored, time.monotonic())\n"
    )
    environment = {**os.environ, "SARDONYX_CACHE": str(tmp_path / "cache")}
    found = []
    for _ in range(2):
        run = [sys.executable, "-c", program, str(model)]
        done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=100, env=environment)
        was_stored, at = done.stdout.split()
        assert time.monotonic() - float(at) < 30
        found.append(was_stored)
    assert found == ["False", "True"]


def declared(**dims: tuple[Dim, ...] | None) -> list[Declared]:
    return [Declared(name, TENSOR, found) for name, found in dims.items()]


def test_which_sizes_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_sizes, "_LENGTHS", 512)
    inputs = declared(ids=("b", "s"), past=("b", 12, "p", 64), scale=())
    found = profile_around(inputs, {"ids": (1, 1), "past": (1, 12, 0, 64), "scale": ()})
    assert found is not None
    assert found.shapes == {
        "ids": ((1, 1), (1, 1), (8, 512)),
        "past": ((1, 12, 0, 64), (1, 12, 0, 64), (8, 12, 512, 64)),
        "scale": ((), (), ()),
    }
    found = profile_around(declared(x=("n",)), {"x": (400,)})
    assert found is not None
    assert found.shapes == {"x": ((1,), (400,), (800,))}
    assert profile_around(declared(x=(3, 4)), {"x": (3, 4)}) is None
    assert profile_around(declared(x=None), {"x": (3, 4)}) is None
    assert profile_around(declared(x=("n",), y=("n",)), {"x": (3,)}) is None
