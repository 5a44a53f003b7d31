"""`sardonyx info`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.conftest import Command


def test_json_describes_the_model(command: Command, embedding: Path) -> None:
    report = json.loads(command("info", embedding, "--dim", "batch=2", "--dim", "length=3", "--json").out)
    assert report["ir_version"] == 8
    assert report["opsets"] == {"ai.onnx": 17}
    assert report["producer"] == {"name": "maker", "version": "2"}
    assert report["inputs"] == [
        {"name": "ids", "type": "tensor(int64)", "shape": ["batch", "length"]},
        {"name": "shift", "type": "tensor(float)", "shape": []},
    ]
    assert report["outputs"] == [{"name": "result", "type": "tensor(float)", "shape": ["batch", "length", 3]}]
    assert report["operators"] == {"Gather": 1, "MatMul": 1, "Add": 1}
    assert report["parameters"] == {"count": 32, "bytes": 128}


def test_a_multiply_add_counts_two(command: Command, embedding: Path) -> None:
    report = json.loads(command("info", embedding, "--dim", "batch=2", "--dim", "length=3", "--json").out)
    by_operator = report["cost"]["by_operator"]
    assert by_operator["MatMul"] == 2 * (2 * 3) * 4 * 3
    assert by_operator["Add"] == 2 * 3 * 3
    assert report["cost"]["flops"] == sum(by_operator.values())
    assert report["cost"]["unknown"] == {}


@pytest.fixture
def square(tmp_path: Path) -> Path:
    """An image of `height` by `width`, which must have 9 elements, in a line."""
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["image", "nine"], ["line"], name="join")],
        "square",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["height", "width"])],
        [helper.make_tensor_value_info("line", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.array([9]), "nine")],
    )
    path = tmp_path / "square.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_sizes_that_the_model_does_not_take_leave_the_rest_of_the_report(command: Command, square: Path) -> None:
    outcome = command("info", square)
    assert (outcome.code, outcome.err) == (0, "")
    assert "cost        unknown, the model does not take these sizes: Node (join)" in outcome.out
    assert "sizes       height = 1, width = 1: not given; --dim width=128 sets one" in outcome.out
    assert "operators   1: Reshape 1" in outcome.out
    report = json.loads(command("info", square, "--json").out)
    assert "(join)" in report["cost"]["problem"]
    fitting = json.loads(command("info", square, "--dim", "height=3", "--dim", "width=3", "--json").out)
    assert fitting["cost"]["problem"] is None


def test_errors_of_a_run_name_the_sizes_that_nobody_chose(command: Command, square: Path) -> None:
    for name, *options in (("run",), ("explain", "--run")):
        outcome = command(name, square, "--dim", "height=3", *options)
        assert outcome.code == 1
        assert "(width of image is 1, as no size was given, which does not fit: --dim width=3 does)" in outcome.err
    assert command("run", square, "--dim", "height=3", "--dim", "width=3", "--repeat", 0).code == 0


def test_placement_names_providers_and_reasons(command: Command, embedding: Path) -> None:
    """The addition belongs to the kernel of the product."""
    placement = json.loads(command("info", embedding, "--json").out)["placement"]
    assert placement["providers"] == {"CPUExecutionProvider": {"Gather": 1, "MatMul": 1, "Add": 1}}
    assert placement["steps"] == {"native": 2}
    assert placement["host"] == []


def test_placement_of_what_has_no_kernel(command: Command, embedding: Path, tmp_path: Path) -> None:
    """Views and known values are counted beside kernels, host steps come with their reason."""
    path = tmp_path / "mixed.onnx"
    nodes = [
        helper.make_node("RandomNormalLike", ["data"], ["noise"], name="only"),
        helper.make_node("Shape", ["data"], ["shape"], name="sizes"),
        helper.make_node("Neg", ["data"], ["less"], name="negate"),
        helper.make_node("Transpose", ["less"], ["turned"], name="turn"),
        helper.make_node("Reshape", ["turned", "shape"], ["result"], name="back"),
    ]
    values = [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["rows", "columns"])]
    results = [
        helper.make_tensor_value_info("noise", TensorProto.FLOAT, ["rows", "columns"]),
        helper.make_tensor_value_info("result", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(nodes, "mixed", values, results)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    arguments = ["info", path, "--dim", "rows=2", "--dim", "columns=3", "--json"]
    placement = json.loads(command(*arguments).out)["placement"]
    assert placement["steps"]["host"] == 1
    assert placement["steps"]["view"] == 2
    assert placement["steps"]["known"] == 1
    assert placement["steps"]["native"] >= 1
    (entry,) = placement["host"]
    assert (entry["operator"], entry["count"]) == ("RandomNormalLike", 1)
    assert entry["reason"]


def test_the_text_says_it_in_lines(command: Command, embedding: Path) -> None:
    outcome = command("info", embedding)
    assert (outcome.code, outcome.err) == (0, "")
    assert "opset ai.onnx 17, producer maker 2" in outcome.out
    assert "batch x length x 3" in outcome.out
    assert "parameters  32" in outcome.out
    assert "Gather 1, MatMul 1, Add 1" in outcome.out


def test_errors_are_one_line(command: Command, embedding: Path, tmp_path: Path) -> None:
    for code, *arguments in ((1, tmp_path / "absent.onnx"), (2, embedding, "--dim", "batch=x")):
        outcome = command("info", *arguments)
        assert outcome.code == code
        assert len(outcome.err.splitlines()) == 1


def test_memory_of_intermediate_values(command: Command, embedding: Path) -> None:
    """The looked-up rows (6 x 4 floats) from a multiple of 64 on; their product goes to the caller's memory."""
    report = json.loads(command("info", embedding, "--dim", "batch=2", "--dim", "length=3", "--json").out)
    assert report["memory"] == {
        "arena_bytes": 128,
        "without_reuse_bytes": 96,
        "values_of_unknown_size": 0,
        "segments_of_unknown_size": 0,
    }
