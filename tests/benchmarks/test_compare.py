"""The mathematics of the models' table."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from benchmarks import compare, isolated, turns, work
from benchmarks.compare import Timing
from benchmarks.floors import Floors
from benchmarks.work import Work


def rows(samples: dict[str, list[float]], model: str = "m", threads: int = 1) -> dict[str, Timing]:
    found = [Timing(model, engine, threads) for engine in (*samples, "absent")]
    compare.fill(found, samples)
    return {row.engine: row for row in found}


def test_ratios_are_of_medians() -> None:
    found = rows({"onnxruntime": [0.004, 0.002, 0.003], "openvino": [0.0015] * 3, "sardonyx": [0.001, 0.001, 9.0]})
    assert found["sardonyx"].median_ms == pytest.approx(1.0)
    assert found["sardonyx"].min_ms == pytest.approx(1.0)
    assert found["sardonyx"].ratio == pytest.approx(3.0)
    assert found["sardonyx"].best_ratio == pytest.approx(1.5)
    assert found["onnxruntime"].ratio == pytest.approx(1.0)
    assert found["onnxruntime"].best_ratio == pytest.approx(0.5)
    assert found["absent"].runs == 0


def test_best_of_both_needs_both() -> None:
    assert rows({"onnxruntime": [2.0], "sardonyx": [1.0]})["sardonyx"].best_ratio == 0.0
    alone = rows({"openvino": [2.0], "sardonyx": [1.0]})["sardonyx"]
    assert (alone.ratio, alone.best_ratio) == (0.0, 0.0)


def test_shares_of_the_ceilings() -> None:
    ceilings = Floors({2: {"f32": 100.0}}, {2: {"L3": 50.0, "DRAM": 10.0}}, l3=1000)
    row = Timing("m", "sardonyx", 2, median_ms=100.0)
    compare.rate(row, Work(flops=8e9, weight_bytes=400_000_000, io_bytes=100_000_000), ceilings)
    assert row.gflops == pytest.approx(80.0)
    assert row.fma_share == pytest.approx(0.8)
    assert row.gbytes == pytest.approx(5.0)
    assert row.read_share == pytest.approx(0.5)


def test_means_leave_out_models_without_products() -> None:
    found = [
        Timing("a", "sardonyx", 1, ratio=2.0, best_ratio=1.0, gflops=1.0),
        Timing("b", "sardonyx", 1, ratio=8.0, best_ratio=4.0, gflops=1.0),
        Timing("one-add", "sardonyx", 1, ratio=100.0, best_ratio=100.0),
        Timing("a", "sardonyx", 2, ratio=3.0, best_ratio=3.0, gflops=1.0),
    ]
    text = compare.means(map(asdict, found)).splitlines()
    (one,) = (line for line in text if "|   1 |" in line)
    assert [cell.strip() for cell in one.split("|")[1:-1]] == ["sardonyx", "1", "2", "4.00", "2.00"]
    (two,) = (line for line in text if "|   2 |" in line)
    assert [cell.strip() for cell in two.split("|")[1:-1]] == ["sardonyx", "2", "1", "3.00", "3.00"]


def test_everybody_gets_a_turn() -> None:
    order: list[str] = []
    budget = turns.Budget(runs=2, turn_seconds=0.0, pause_seconds=0.0)
    taken = turns.take_turns({name: lambda name=name: order.append(name) for name in ("a", "b")}, budget)
    assert {name: len(found) for name, found in taken.items()} == {"a": 2, "b": 2}
    assert order == ["a", "a", "b", "b"] * 2  # a run that does not count before each one that does


def test_a_loop_makes_its_calls() -> None:
    calls: list[int] = []
    turns.looped(lambda: calls.append(1), 7)()
    assert len(calls) == 7


def test_difference_of_outputs() -> None:
    reference = [np.array([1.0, -4.0])]
    assert turns.difference([np.array([1.0, -3.0])], reference) == (1.0, 0.25)
    assert turns.difference([np.array([np.nan, -4.0])], reference)[0] == float("inf")
    assert turns.difference([np.array([1.0])], reference) == (float("inf"), float("inf"))
    assert turns.difference([np.zeros((0, 2))], [np.zeros((0, 2))]) == (0.0, 0.0)


MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
m (int64[n] ids, float[n, 4] x) => (float[n, 4] y, float[n, 5] z) {
    rows = Gather(table, ids)
    same = Identity(shared)
    turned = Transpose(weight)
    z = MatMul(x, turned)
    a = Add(rows, x)
    y = Mul(a, same)
}
"""


def test_weights_that_a_run_reads(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(MODEL)
    for name, shape in (("table", (100, 4)), ("shared", (4,)), ("weight", (5, 4)), ("unused", (9,))):
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, np.float32), name))
    assert work.weight_bytes(model) == 4 * (4 + 20)
    (tmp_path / "info.json").write_text('{"macs": 20}')
    onnx.save(model, tmp_path / "model.onnx")
    inputs = {"ids": np.zeros(2, np.int64), "x": np.zeros((2, 4), np.float32)}
    outputs = {"y": np.zeros((2, 4), np.float32), "z": np.zeros((2, 5), np.float32)}
    assert work.of_model(tmp_path, inputs, outputs) == Work(40.0, 96, 16 + 32 + 32 + 40)


def test_an_engine_that_dies_does_not_take_the_others_along(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def call(function: object, name: str, threads: int, settings: compare.Settings) -> tuple[list[Timing], Work]:
        asked.append(settings.engines)
        if "deadly" in settings.engines:
            raise isolated.DiedError("the process died of SIGSEGV")
        return [Timing(name, engine, threads, median_ms=1.0) for engine in settings.engines], Work(1.0, 1, 1)

    monkeypatch.setattr(isolated, "call", call)
    settings = compare.Settings(Path(), ("a", "deadly", "b"), turns.Budget())
    found, todo = compare.measure_apart("m", 1, settings)
    assert [(row.engine, row.error) for row in found] == [
        ("a", ""),
        ("b", ""),
        ("deadly", "the process died of SIGSEGV"),
    ]
    assert todo is not None
    assert asked == [("a", "deadly", "b"), ("a",), ("deadly",), ("b",), ("a", "b")]
