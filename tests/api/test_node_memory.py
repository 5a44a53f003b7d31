"""The table of what nodes read and write, as `session.collect_node_memory_stats_to_file` asks for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort
from sardonyx import errors

KEY = "session.collect_node_memory_stats_to_file"


def model() -> onnx.ModelProto:
    """y = relu(x @ w) sorted along the last axis, where x has 8 columns and w 16."""
    info = helper.make_tensor_value_info
    weights = numpy_helper.from_array(np.ones((8, 16), np.float32), "w")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
            helper.make_node("Relu", ["h"], ["r"], name="relu"),
            helper.make_node("CumSum", ["r", "axis"], ["y"], name="sum"),
        ],
        "graph",
        [info("x", TensorProto.FLOAT, ["n", 8])],
        [info("y", TensorProto.FLOAT, ["n", 16])],
        [weights, numpy_helper.from_array(np.array(1), "axis")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def session(source: str | bytes, name: str, *, level: str = "ORT_ENABLE_ALL") -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.add_session_config_entry(KEY, name)
    return ort.InferenceSession(source, options)


def rows(path: Path) -> dict[str, list[int]]:
    head, *lines = path.read_text().splitlines()
    assert head == "#name,input_sizes,initializers_sizes,total_dynamic_sizes,total_temp_allocations"
    cells = [line.split(",") for line in lines]
    return {name.rpartition("_")[0]: list(map(int, numbers)) for name, *numbers in cells}


def run(made: ort.InferenceSession, count: int) -> None:
    x = np.ones((count, 8), np.float32)
    np.testing.assert_array_equal(made.run(None, {"x": x})[0][:, -1], np.full(count, 128.0))


def test_the_file_lies_beside_the_model_and_has_the_largest_run(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "model.onnx")
    made = session(str(tmp_path / "model.onnx"), "memory.csv")
    for count, most in ((5, 5), (3, 5), (9, 9)):
        run(made, count)
        found = rows(tmp_path / "memory.csv")
        assert found["product"] == [most * 8 * 4, 8 * 16 * 4, most * 16 * 4, 0]
        assert found["sum"][0] == most * 16 * 4
        assert found["relu"] == [0, 0, 0, 0]  # a part of the product's kernel


def test_nodes_with_kernels_of_their_own_have_lines_of_their_own(tmp_path: Path) -> None:
    made = session(model().SerializeToString(), str(tmp_path / "memory.csv"), level="ORT_DISABLE_ALL")
    run(made, 4)
    found = rows(tmp_path / "memory.csv")
    assert set(found) >= {"product", "relu", "sum"}
    assert found["product"][:2] == [4 * 8 * 4, 8 * 16 * 4]


def test_a_profile_is_written_as_well(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry(KEY, str(tmp_path / "memory.csv"))
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    made = ort.InferenceSession(model().SerializeToString(), options)
    run(made, 4)
    assert "product_kernel_time" in Path(made.end_profiling()).read_text()
    (tmp_path / "memory.csv").unlink()
    run(made, 6)
    assert rows(tmp_path / "memory.csv")["product"][0] == 6 * 8 * 4


def test_a_folder_that_is_not_there_is_an_error() -> None:
    with pytest.raises(errors.Fail, match=KEY):
        session(model().SerializeToString(), "/no/such/folder/memory.csv")
