"""`sardonyx explain --why`: knobs and troubles as a user reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx.api.explaining import troubles
from sardonyx.cli import explain as module
from sardonyx.tuning import ceilings
from sardonyx.tuning.ceilings import Ceilings
from tests.cli.conftest import Command

RATES = Ceilings(
    {1: {"f32": 100.0, "f64": 50.0}, 2: {"f32": 200.0, "f64": 100.0}},
    {1: {"L2": 100.0, "L3": 50.0, "DRAM": 10.0}, 2: {"L2": 200.0, "L3": 60.0, "DRAM": 12.0}},
    l2=1 << 20,
    l3=1 << 25,
)


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ceilings of a machine that nobody has to measure, on which nobody else computes."""
    monkeypatch.setattr(ceilings, "stored_ceilings", lambda threads: RATES)
    monkeypatch.setattr(troubles, "other_load", lambda: 0.0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """relu(data @ weight) with a weight that callers may override, and random numbers, which have no kernel."""
    weight = numpy_helper.from_array(np.ones((8, 32), np.float32), "weight")
    values = [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["rows", 8])]
    values.append(helper.make_tensor_value_info("weight", TensorProto.FLOAT, [8, 32]))
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["data", "weight"], ["product"], name="product"),
            helper.make_node("Relu", ["product"], ["positive"], name="positive"),
            helper.make_node("RandomNormalLike", ["positive"], ["result"], name="noise"),
        ],
        "model",
        values,
        [
            helper.make_tensor_value_info("result", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("positive", TensorProto.FLOAT, None),
        ],
        [weight],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def test_the_text_has_every_knob_and_every_trouble(command: Command, model: Path) -> None:
    outcome = command("explain", model, "--dim", "rows=6", "--threads", 1, "--why")
    assert (outcome.code, outcome.err) == (0, "")
    assert "graph_optimization_level = ORT_ENABLE_ALL" in outcome.out
    assert "without KernelFusion" in outcome.out
    lines = outcome.out.splitlines()
    (fallback,) = [line for line in lines if line.startswith("TROUBLE  fallback")]
    assert "RandomNormalLike" in fallback
    assert "[noise]" in fallback
    assert "What helps: " in fallback
    (contention,) = [line for line in lines if "thread contention" in line]
    assert contention.startswith("ok ")
    (overridable,) = [line for line in lines if line.startswith("overridable")]
    assert "weight (1) can be fed, read by product" in overridable
    assert "packed" in overridable


def test_without_why_only_what_is_overridable_is_told(command: Command, model: Path) -> None:
    out = command("explain", model, "--dim", "rows=6").out
    assert "overridable  weight (1) can be fed" in out
    assert "TROUBLE" not in out
    assert "graph_optimization_level" not in out


def test_the_same_is_there_as_json(command: Command, model: Path) -> None:
    outcome = command("explain", model, "--dim", "rows=6", "--why", "--json")
    report: dict[str, Any] = json.loads(outcome.out)
    found = {one["name"]: one["found"] for one in report["why"]["diagnoses"]}
    assert found["fallback"]
    assert found["initializers in inputs"]
    assert len(found) == 7
    assert {one["name"] for one in report["why"]["knobs"]} >= {"graph_optimization_level", "intra_op_num_threads"}


def test_runs_are_measured_for_every_value(command: Command, model: Path) -> None:
    outcome = command("explain", model, "--dim", "rows=6", "--why", "--run", "--repeat", 3, "--json")
    (level,) = [one for one in json.loads(outcome.out)["why"]["knobs"] if one["name"] == "graph_optimization_level"]
    assert all(one["measured_us"] > 0 for one in level["turned"])


def test_the_options_of_the_session_are_those_that_are_asked_for(command: Command, model: Path) -> None:
    def report(*options: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            command("explain", model, "--dim", "rows=6", "--why", "--json", *options).out
        )
        return found

    usual, basic = report(), report("--level", "basic")
    left_out = report("--option", "optimization.disable_specified_optimizers=KernelFusion")
    assert [len(one["rows"]) for one in (usual, basic, left_out)] == [2, 3, 3]
    for one in (basic, left_out):
        (missing,) = [found for found in one["why"]["diagnoses"] if found["name"] == "missing fusions"]
        assert missing["found"]
    outcome = command("explain", model, "--level", "most")
    assert outcome.code == 2
    assert "--level most: expected one of disable, basic, extended, layout, all" in outcome.err


@pytest.mark.parametrize("width", [60, 100, 150])
def test_the_table_fits_any_terminal(
    width: int, command: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    def terminal() -> Console:
        import sys

        return Console(width=width, highlight=False, markup=False, file=sys.stdout)

    monkeypatch.setattr(module, "console", terminal)
    outcome = command("explain", model, "--why", "--run", "--repeat", 3)
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    (start,) = [place for place, line in enumerate(lines) if line.startswith("knob ")]
    table = lines[start : lines.index("", start)]
    assert all(len(line) <= width for line in table)
    assert "change" in table[0]
