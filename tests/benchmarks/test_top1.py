"""The comparison of decisions: what is equal, a tie or beyond rounding, and the command on a tiny network."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks import isolated, top1
from benchmarks.top1 import Agreement, Scores
from benchmarks.zoo import registry
from benchmarks.zoo.registry import Model, Tensor


def agreement() -> Agreement:
    return Agreement("m", "onnxruntime", "sardonyx", 1)


def test_scores_lie_where_the_model_has_them() -> None:
    output = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    np.testing.assert_array_equal(Scores(first=1).of(output)[0], [1, 2, 3])
    assert Scores(first=1).of(output).shape == (6, 3)
    np.testing.assert_array_equal(Scores(axis=1).of(output)[0], [0, 4, 8])
    assert Scores(axis=1).of(output).shape == (8, 3)


def test_ties_are_told_from_other_classes() -> None:
    wanted = np.array([[1.0, 0.0, 0.5], [0.0, 10.0, 10.0 - 1e-5], [3.0, 4.0, 2.0]])
    found = np.array([[0.9, 0.0, 0.5], [0.0, 10.0, 10.0 + 1e-5], [4.5, 4.0, 2.0]])
    row = agreement()
    assert top1.add(row, found, wanted) == [0, 1]
    assert (row.decisions, row.equal, row.ties, row.beyond) == (3, 1, 1, 1)
    assert row.closest == pytest.approx(1e-6)
    assert row.details == [
        "input 0, decision 1: class 2 in place of 1, gap 1.0e-06, a tie within rounding",
        "input 0, decision 2: class 0 in place of 1, gap 1.0e-01, beyond rounding",
    ]


def test_a_far_class_is_no_tie_because_two_others_are_close() -> None:
    row = agreement()
    top1.add(row, np.array([[9.0, 8.0, 8.0]]), np.array([[0.0, 8.0, 8.0]]))
    assert (row.equal, row.ties, row.beyond) == (0, 0, 1)


def test_what_is_no_number_is_no_tie() -> None:
    row = agreement()
    top1.add(row, np.array([[1.0, 2.0]]), np.array([[np.nan, 2.0]]))
    assert (row.equal, row.ties, row.beyond) == (0, 0, 1)


def test_scores_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scores \(1, 2\) of sardonyx cannot be compared with \(1, 3\)"):
        top1.add(agreement(), np.zeros((1, 2)), np.zeros((1, 3)))


TINY = Model("tiny", "onnx.helper", 17, (Tensor("x", (1, 16, 12, 12)),), (Tensor("scores", (1, 5)),))


def write_tiny(folder: Path) -> None:
    """A convolution 3x3, its means and a product: a network that decides between five classes."""
    rng = np.random.default_rng(3)
    weights = {
        "filters": rng.standard_normal((16, 16, 3, 3), dtype=np.float32),
        "columns": rng.standard_normal((16, 5), dtype=np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "filters"], ["map"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["map"], ["kept"]),
        helper.make_node("GlobalAveragePool", ["kept"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["row"]),
        helper.make_node("MatMul", ["row", "columns"], ["scores"]),
    ]
    inputs = [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.shape) for t in TINY.inputs]
    outputs = [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.shape) for t in TINY.outputs]
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, TINY.name, inputs, outputs, constants)
    folder.mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", TINY.opset)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    (folder / "info.json").write_text("{}")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    write_tiny(tmp_path / TINY.name)
    monkeypatch.setattr(registry, "MODELS", {TINY.name: TINY})
    monkeypatch.setattr(top1, "MODELS", {TINY.name: Scores()})
    monkeypatch.setattr(isolated, "call", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(sys, "argv", ["top1", "--zoo", str(tmp_path), "--count", "2", "--threads", "1"])
    top1.main()
    *_, line = capsys.readouterr().out.splitlines()
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:6] == ["tiny", "onnxruntime", "sardonyx", "1", "2", "2"]
    assert cells[7:10] == ["2", "0", "0"]
    assert float(cells[-1] or 0) < 1e-5


def test_a_model_without_classes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["top1", "--zoo", str(tmp_path), "--models", "bert-base"])
    with pytest.raises(SystemExit):
        top1.main()
    assert "bert-base is not known to decide between classes" in capsys.readouterr().err


def test_an_engine_that_fails_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MODELS", {TINY.name: TINY})
    monkeypatch.setattr(top1, "MODELS", {TINY.name: Scores()})
    row = top1.measure(TINY.name, "sardonyx", "sardonyx", 1, tmp_path, 1)
    assert "model.onnx" in row.error
    assert row.decisions == 0
