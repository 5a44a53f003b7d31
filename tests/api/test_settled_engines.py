"""Engines of models whose Ifs ask for sizes: later processes have the plans for sizes that came again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.running import settled_plans
from tests.api.engine_models import engines_in, is_stored, keeps_every_engine, wait
from tests.api.test_settled_plans import MODEL, check, model, session, settled

pytestmark = pytest.mark.machine_neutral


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model's file, of which every engine is kept."""
    keeps_every_engine(tmp_path / "cache", monkeypatch)
    (tmp_path / "model.onnx").write_bytes(model())
    return tmp_path / "model.onnx"


def settle(path: Path, *shapes: tuple[int, int]) -> ort.InferenceSession:
    """A session that leaves engines for all sizes and for these."""
    made = session(str(path))
    for shape in shapes:
        for _ in range(3):
            check(made, shape, False)
        wait()
    return made


def engines(path: Path) -> int:
    return len(list(engines_in(path.parent / "cache").glob("*.engine")))


def test_sizes_of_an_earlier_session_are_there_at_once(path: Path) -> None:
    assert not is_stored(settle(path, (6, 1), (3, 4)))
    assert engines(path) == 3
    again = session(str(path))
    assert is_stored(again)
    check(again, (6, 1), False)
    (plan,) = settled(again).plans
    assert [step.op_type for step in plan.steps].count("If") == 1
    assert settled(again)._builds == 0
    for _ in range(3):  # a branch that the engine has no plan for comes from the model, other sizes are compiled
        check(again, (6, 1), True)
        check(again, (3, 4), False)
        check(again, (8, 2), True)
    assert settled(again)._builds == 1


def test_another_process_imports_nothing_of_models(path: Path, tmp_path: Path) -> None:
    settle(path, (6, 1))
    program = (
        "import sys, numpy as np, sardonyx as ort\n"
        "from sardonyx.api.engines import engine_store\n"
        "from sardonyx.runtime import file_state\n"
        "engine_store.LEAST_SECONDS, file_state.SETTLED_SECONDS = 0.0, -3600.0\n"
        "options = ort.SessionOptions()\n"
        "options.log_severity_level = 4\n"
        "made = ort.InferenceSession(sys.argv[1], options, providers=['CPUExecutionProvider'])\n"
        "(y,) = made.run(None, {'x': np.zeros((6, 1), np.float32), 'c': np.array(False)})\n"
        "print([name for name in ('onnx', 'onnx_ir', 'sympy', 'google', 'llvmlite') if name in sys.modules])\n"
        "print(made._sess._is_stored, y.tolist())\n"
    )
    environment = {**os.environ, "SARDONYX_CACHE": str(tmp_path / "cache")}
    run = [sys.executable, "-c", program, str(path)]
    found = subprocess.run(run, capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.splitlines() == ["[]", f"True {[[-1.0] * 6]}"]


def test_a_branch_that_sizes_break_is_the_same_error(path: Path) -> None:
    settle(path, (5, 1))
    again = session(str(path))
    check(again, (5, 1), False)
    for _ in range(2):
        with pytest.raises(errors.OnnxRuntimeError, match=r"Reshape.*cannot be reshaped") as found:
            again.run(None, {"x": np.ones((5, 1), np.float32), "c": np.array(True)})
        assert "Refusal" not in str(found.value)
    check(again, (5, 1), False)


def test_engines_of_a_file_that_changed_are_for_neither(path: Path) -> None:
    first = session(str(path))
    check(first, (6, 1), False)
    wait()
    other = parser.parse_model(MODEL.replace("Exp (flat)", "Abs (flat)"))
    onnx.save(other, path.with_name("other.onnx"))
    path.with_name("other.onnx").replace(path)
    second = session(str(path))
    for _ in range(3):
        (y,) = second.run(None, {"x": np.full((4, 1), 2, np.float32), "c": np.array(False)})
        assert y.tolist() == [[-2.0] * 4]
    wait()
    for _ in range(3):  # the session of the file that was there before
        check(first, (4, 1), False)
    assert settled(first).plans == []


def test_a_stored_session_keeps_further_sizes(path: Path) -> None:
    settle(path, (6, 1))
    count = engines(path)
    assert is_stored(settle(path, (3, 4)))
    assert engines(path) == count + 1
    third = session(str(path))
    check(third, (3, 4), False)
    assert len(settled(third).plans) == 1


def test_few_engines_are_kept_of_a_session(path: Path) -> None:
    settle(path, *((count, 1) for count in range(2, 2 + settled_plans.MOST_SIZES + 2)))
    assert engines(path) <= 1 + settled_plans.MOST_SIZES


def test_with_a_memory_limit_the_model_is_compiled(path: Path) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("sardonyx.memory_limit", str(1 << 28))
    for _ in range(2):
        made = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for _ in range(3):
            check(made, (6, 1), False)
        wait()
        assert settled(made)._builds == 1
