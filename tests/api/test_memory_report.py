"""Where the bytes of sessions are, compared with bytes that are counted otherwise."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort
from sardonyx.api.running.memory_report import MemoryReport
from sardonyx.compiler.choice import gemm_choice
from sardonyx.compiler.choice.gemm_choice import packed_words
from sardonyx.compiler.llvm.target import host_target
from tests.api.session_models import branches

WIDTH, INNER, LAYERS = 128, 256, 3


def layers(seed: int = 0) -> onnx.ModelProto:
    """Layers of two products each, with GELU between and a sum around: values of many sizes and lifetimes."""
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    tensors: list[onnx.TensorProto] = []
    name = "x"
    for layer in range(LAYERS):
        for which, shape in (("a", (WIDTH, INNER)), ("b", (INNER, WIDTH))):
            weights = (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
            tensors.append(numpy_helper.from_array(weights, f"{which}{layer}"))
        nodes += [
            helper.make_node("MatMul", [name, f"a{layer}"], [f"h{layer}"]),
            helper.make_node("Softmax", [f"h{layer}"], [f"s{layer}"]),
            helper.make_node("MatMul", [f"s{layer}", f"b{layer}"], [f"p{layer}"]),
            helper.make_node("Add", [name, f"p{layer}"], [f"y{layer}"]),
        ]
        name = f"y{layer}"
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


WEIGHT_BYTES = 2 * LAYERS * WIDTH * INNER * 4


def packed_bytes() -> int:
    target = host_target("")
    return LAYERS * 4 * (packed_words(target, "f32", WIDTH, INNER) + packed_words(target, "f32", INNER, WIDTH))


def session(model: Any, entries: dict[str, str] | None = None, **properties: Any) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    for name, value in properties.items():
        setattr(options, name, value)
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(made: ort.InferenceSession, rows: int, options: ort.RunOptions | None = None) -> np.ndarray:
    x = np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)
    result: np.ndarray = made.run(None, {"x": x}, options)[0]
    return result


@pytest.mark.parametrize("tiles", ["0", "1"])
def test_weights_are_counted_once_each(monkeypatch: pytest.MonkeyPatch, tiles: str) -> None:
    """And packed once, for inputs of few rows and, where a machine has tiles for them, of many."""
    monkeypatch.setattr(gemm_choice, "_MADDS_OF_WORD", 0)
    monkeypatch.setattr(gemm_choice, "_MADDS_OF_RESULT", 0)
    made = session(layers().SerializeToString(), {"sardonyx.cpu.float32_tiles": tiles})
    weights = made.memory_report().weights
    assert (weights.mapped, weights.resident) == (0, 0)
    assert weights.held == WEIGHT_BYTES
    assert weights.packed == packed_bytes()
    assert weights.shared == 0
    for rows in (5, 70, 5, 70):
        run(made, rows)
        after = made.memory_report().weights
        assert (after.held, after.packed) == (weights.held, weights.packed)


def test_weights_in_files_are_mapped(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(layers(), path, save_as_external_data=True, location="weights", size_threshold=0)
    made = session(str(path))
    run(made, 3)
    weights = made.memory_report().weights
    assert (weights.mapped, weights.held) == (WEIGHT_BYTES, 0)
    assert weights.packed == packed_bytes()
    assert 0 <= weights.resident <= weights.mapped


def test_a_second_session_lets_go_what_it_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sardonyx.runtime.file_state.SETTLED_SECONDS", -3600.0)
    size, path = 1024, tmp_path / "model.onnx"
    weights = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", size])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save_model(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    made = [session(str(path), {"sardonyx.engine_cache": "0"}) for _ in range(2)]
    found = made[1].memory_report().weights
    assert found.shared == found.packed >= weights.nbytes
    assert found.resident <= weights.nbytes // 4  # pages around what was looked at last


def test_the_arena_is_that_of_the_largest_run() -> None:
    made = session(layers().SerializeToString())
    assert made.memory_report().execution_contexts == ()
    run(made, 8)
    small = made.memory_report()
    (plan,) = small.plans
    assert plan.shapes == ((8, WIDTH),)
    (execution_context,) = small.execution_contexts
    assert execution_context.arena == plan.arena > 0
    assert execution_context.address % 64 == 0
    run(made, 64)
    run(made, 8)
    large = made.memory_report()
    assert [one.shapes for one in large.plans] == [((8, WIDTH),), ((64, WIDTH),)]
    assert large.arena == max(one.arena for one in large.plans) > small.arena
    assert (
        large.scratch == sum(one.scratch for one in large.execution_contexts) >= max(one.scratch for one in large.plans)
    )
    assert large.tables > small.tables
    assert large.kernels > 0
    assert large.total == (
        large.weights.held + large.weights.packed + large.weights.computed
        + large.arena + large.scratch + large.tables + large.between + large.kernels
    )  # fmt: skip


def test_an_arena_holds_what_is_alive_at_once_and_less_than_all_values() -> None:
    made = session(layers().SerializeToString())
    run(made, 64)
    (plan,) = made.memory_report().plans
    assert 64 * INNER * 4 <= plan.alive <= plan.arena < plan.values


def test_shrinking_leaves_weights_and_plans() -> None:
    made = session(layers().SerializeToString())
    for _ in range(3):
        run(made, 64)
    before = made.memory_report()
    assert before.arena > 0
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    expected = run(made, 64)
    np.testing.assert_array_equal(run(made, 64, options), expected)
    gc.collect()
    after = made.memory_report()
    assert (after.execution_contexts, after.arena, after.scratch) == ((), 0, 0)
    assert after.weights.packed == before.weights.packed
    assert len(after.plans) == len(before.plans)
    np.testing.assert_array_equal(run(made, 64), expected)
    assert made.memory_report().arena == before.arena


def test_results_are_in_the_pool_of_the_process_while_somebody_holds_them() -> None:
    made = session(layers().SerializeToString())
    result = run(made, 2000)
    result = run(made, 2000)
    report = made.memory_report()
    if report.results.used == 0 and report.results.kept == 0:
        pytest.skip("there is no pool on this system")
    assert report.results.used >= result.nbytes
    nbytes, used = result.nbytes, report.results.used
    del result
    gc.collect()
    after = made.memory_report().results
    assert after.used <= used - nbytes
    assert after.kept >= nbytes


def test_a_report_is_readable_and_goes_into_json() -> None:
    made = session(layers().SerializeToString())
    run(made, 8)
    report = made.memory_report()
    assert isinstance(report, MemoryReport)
    text = str(report)
    for part in ("total", "weights", "packed for kernels", "execution contexts", f"8x{WIDTH}", "kernels", "results"):
        assert part in text
    content = json.loads(json.dumps(report.as_dict()))
    assert content["weights"]["packed"] == report.weights.packed
    assert content["total"] == report.total


def test_subgraphs_and_what_lies_between_steps_count() -> None:
    made = session(branches())
    x = np.ones((2, 4), np.float32)
    for condition in (True, False, True, False):
        (result,) = made.run(None, {"x": x, "c": np.array(condition)})
        np.testing.assert_array_equal(result, np.full((2, 3), 4.0 if condition else -4.0))
    report = made.memory_report()
    assert len(report.plans) == 3  # the product and a branch each
    assert report.between >= result.nbytes
    assert "between" in str(report)
    assert report.weights.held == 12 * 4


def test_models_on_the_host_have_a_report_as_well() -> None:
    made = session(layers().SerializeToString(), {"sardonyx.cpu.kernels": "numpy"})
    run(made, 8)
    report = made.memory_report()
    assert report.weights.held == WEIGHT_BYTES
    assert (report.execution_contexts, report.plans, report.weights.packed) == ((), (), 0)
