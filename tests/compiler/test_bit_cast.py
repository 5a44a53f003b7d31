"""BitCast in a session, alone and between kernels."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import NodeProto, helper

import sardonyx


def _session(nodes: list[NodeProto], element: int, result: int, columns: int = 3) -> sardonyx.InferenceSession:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", element, ["n", columns])],
        [helper.make_tensor_value_info("y", result, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)], ir_version=13)
    return sardonyx.InferenceSession(model.SerializeToString())


def test_bits_are_read_as_another_type() -> None:
    x = np.array([[1.5, -0.0, np.nan], [np.inf, 3e-45, -7.25]], np.float32)
    alone = _session([helper.make_node("BitCast", ["x"], ["y"], to=6)], 1, 6)
    np.testing.assert_array_equal(alone.run(None, {"x": x})[0], x.view(np.int32))
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"]),
        helper.make_node("BitCast", ["b"], ["c"], to=6),
        helper.make_node("Abs", ["c"], ["y"]),
    ]
    between = _session(nodes, 1, 6)
    np.testing.assert_array_equal(between.run(None, {"x": x})[0], np.abs((-x).view(np.int32)).T)
    kinds = [step.kind for step in between._sess._plan.steps]
    assert kinds == ["segment"]


def test_types_of_another_width_are_refused() -> None:
    with pytest.raises(sardonyx.capi.onnxruntime_pybind11_state.Fail, match="wide"):
        _session([helper.make_node("BitCast", ["x"], ["y"], to=7)], 1, 7)


def test_elements_of_less_than_a_byte() -> None:
    x = np.arange(-8, 8).astype(ml_dtypes.int4).reshape(-1, 2)
    there = _session([helper.make_node("BitCast", ["x"], ["y"], to=21)], 22, 21, 2)
    words = there.run(None, {"x": x})[0]
    np.testing.assert_array_equal(words.astype(np.int32), np.arange(-8, 8).reshape(-1, 2) & 15)
    back = _session([helper.make_node("BitCast", ["x"], ["y"], to=22)], 21, 22, 2)
    np.testing.assert_array_equal(back.run(None, {"x": words})[0].astype(np.int32), x.astype(np.int32))
