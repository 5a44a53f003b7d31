"""Graphs of small modules: names, dimensions, weights stored once, and what a comparison with PyTorch finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="the extra `models` is not installed")
pytest.importorskip("onnxscript", reason="the extra `models` is not installed")
pytest.importorskip("transformers", reason="the extra `models` is not installed")

import torch

import sardonyx as ort
from sardonyx import errors
from sardonyx.models.export import checking, dynamo, weights
from sardonyx.models.export.graphs import Graph, Input, left_padded, positions, right_padded

SIZES = ({"rows": 2, "old": 3, "new": 4}, {"rows": 5, "old": 0, "new": 1})
INPUTS = (Input("x", ("rows", "new", 6)), Input("y", ("rows", "old", 6)), Input("z", ("rows", "old + new", 6)))


class Product(torch.nn.Module):  # type: ignore[misc]
    """Two products with one matrix, of which the second reads it transposed."""

    dtype = torch.float32

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(64, 6))
        self.again = torch.nn.Parameter(self.table.detach().clone())

    def forward(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        joined = torch.cat([tensors["y"], tensors["x"]], dim=1) + tensors["z"]
        return {"joined": joined, "scores": joined @ self.table.T + joined @ self.again.T, "same": tensors["x"]}


def _graph(call: Callable[[Any], Callable[..., Any]] = lambda model: model, file: str = "model.onnx") -> Graph:
    def values(sizes: Mapping[str, int], random: np.random.Generator) -> dict[str, np.ndarray]:
        return {one.name: random.standard_normal(one.shape(sizes), np.float32) for one in INPUTS}

    model = Product().eval()
    return Graph(file, model, call(model), INPUTS, values, SIZES)


def test_equal_dimensions_have_one_name_and_sums_are_written_out(tmp_path: Path) -> None:
    graph = _graph()
    weights.write({graph.file: dynamo.to_onnx(graph, 23)}, tmp_path)
    session = ort.InferenceSession(tmp_path / graph.file)
    assert {value.name: value.shape for value in session.get_inputs()} == {
        "x": ["rows", "new", 6],
        "y": ["rows", "old", 6],
        "z": ["rows", "old + new", 6],
    }
    assert {value.name: value.shape for value in session.get_outputs()} == {
        "joined": ["rows", "old + new", 6],
        "scores": ["rows", "old + new", 64],
        "same": ["rows", "new", 6],
    }
    assert checking.check(tmp_path / graph.file, graph) < 1e-6


def test_nothing_of_this_machine_is_in_a_file(tmp_path: Path) -> None:
    graph = _graph()
    weights.write({graph.file: dynamo.to_onnx(graph, 23)}, tmp_path)
    assert str(Path(__file__).parent).encode() not in (tmp_path / graph.file).read_bytes()
    assert all(not node.metadata_props for node in onnx.load(tmp_path / graph.file).graph.node)


def test_graphs_share_their_weights(tmp_path: Path) -> None:
    graphs = [_graph(file=name) for name in ("a.onnx", "b.onnx")]
    written = weights.write({one.file: dynamo.to_onnx(one, 23) for one in graphs}, tmp_path)
    assert sorted(path.name for path in written) == ["a.onnx", "b.onnx", "model.onnx_data"]
    assert (tmp_path / "model.onnx_data").stat().st_size == 64 * 6 * 4  # once for both graphs, and in both products
    for graph in graphs:
        assert checking.check(tmp_path / graph.file, graph) < 1e-6


def test_large_weights_of_one_graph_lie_beside_it(tmp_path: Path) -> None:
    graph = _graph()
    weights.write({graph.file: dynamo.to_onnx(graph, 23)}, tmp_path, external_from=64 * 6 * 4 - 1)
    assert (tmp_path / "model.onnx_data").stat().st_size == 64 * 6 * 4
    assert checking.check(tmp_path / graph.file, graph) < 1e-6


def test_a_graph_that_differs_is_told_with_the_numbers(tmp_path: Path) -> None:
    graph = _graph()
    weights.write({graph.file: dynamo.to_onnx(graph, 23)}, tmp_path)

    def other(model: Any) -> Callable[..., Any]:
        return lambda tensors: {**model(tensors), "joined": model(tensors)["joined"] + (tensors["x"].shape[0] == 5)}

    words = (
        r"differs from PyTorch: joined by 1 where its largest number is .*, for the sizes rows = 5, old = 0, new = 1"
    )
    with pytest.raises(errors.Fail, match=words):
        checking.check(tmp_path / graph.file, _graph(other))
    assert checking.check(tmp_path / graph.file, _graph(other), tolerance=2.0) > 0.1


def test_a_size_that_a_graph_does_not_take_is_told(tmp_path: Path) -> None:
    graph = _graph()
    weights.write({graph.file: dynamo.to_onnx(graph, 23)}, tmp_path)
    model = onnx.load(tmp_path / graph.file)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, tmp_path / graph.file)
    with pytest.raises(errors.Fail, match="does not take the sizes rows = 5, old = 0, new = 1, which the PyTorch"):
        checking.check(tmp_path / graph.file, graph)


def test_what_torch_cannot_export_is_told_with_its_reason() -> None:
    def by_value(model: Any) -> Callable[..., Any]:
        return lambda tensors: model(tensors) if tensors["x"].sum() > 0 else {"scores": tensors["x"]}

    with pytest.raises(errors.NotImplemented, match=r"model.onnx: torch .* cannot export Product: .*data-dependent"):
        dynamo.to_onnx(_graph(by_value), 23)


def test_a_dimension_that_the_model_fixes_is_told() -> None:
    def fixed(model: Any) -> Callable[..., Any]:
        return lambda tensors: model({**tensors, "x": tensors["x"] + torch.ones(2, 1, 1)})

    with pytest.raises(errors.NotImplemented, match=r"inferred a static shape of 2 for dimension .*'x'"):
        dynamo.to_onnx(_graph(fixed), 23)


def test_masks_keep_the_last_position() -> None:
    np.testing.assert_array_equal(left_padded(3, 4, 2), [[0, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]])
    np.testing.assert_array_equal(left_padded(2, 3, 9), [[0, 0, 1], [0, 0, 1]])
    np.testing.assert_array_equal(right_padded(2, 4, 2), [[1, 1, 0, 0], [1, 1, 1, 0]])
    np.testing.assert_array_equal(positions(left_padded(2, 5, 2), 3), [[0, 1, 2], [1, 2, 3]])
