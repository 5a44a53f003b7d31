"""Segments that read the contents of small inputs: axes, pads, shapes that come as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx as ort
from sardonyx import errors
from sardonyx.runtime.native.native_segment import MOST_STEERED_PLANS

Array = np.ndarray[Any, Any]

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def _session(nodes: Sequence[onnx.NodeProto], inputs: dict[str, tuple[int, Sequence[Any]]]) -> ort.InferenceSession:
    graph = helper.make_graph(
        nodes,
        "steered",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info("y", FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def _steps(session: ort.InferenceSession) -> list[str]:
    return [step.kind for step in session._session().plan.steps]


def test_axes_that_come_as_data_are_read_in_every_run() -> None:
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["s"]), helper.make_node("Sqrt", ["s"], ["y"])]
    session = _session(nodes, {"x": (FLOAT, ["a", "b"]), "axes": (INT64, [1])})
    assert _steps(session) == ["segment"]
    x = np.random.default_rng(1).random((3, 5), np.float32)
    for axis in (0, 1, 0, -1, 1, 0):
        (y,) = session.run(None, {"x": x, "axes": np.array([axis])})
        np.testing.assert_allclose(y, np.sqrt(x.sum(axis, keepdims=True)), rtol=1e-6)


def test_shape_arithmetic_of_an_input_is_followed_to_the_input() -> None:
    nodes = [
        helper.make_node("Mul", ["n", "n"], ["square"]),
        helper.make_node("Concat", ["square", "n"], ["shape"], axis=0),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["t"]),
        helper.make_node("Transpose", ["t"], ["y"]),
    ]
    session = _session(nodes, {"x": (FLOAT, ["a"]), "n": (INT64, [1])})
    assert _steps(session) == ["segment"]
    for n in (2, 3, 2):
        x = np.arange(n**3, dtype=np.float32)
        (y,) = session.run(None, {"x": x, "n": np.array([n])})
        np.testing.assert_array_equal(y, x.reshape(n * n, n).T)


def test_a_value_that_native_code_computes_steers_the_next_segment() -> None:
    nodes = [
        helper.make_node("Constant", [], ["zero"], value_ints=[0]),
        helper.make_node("Constant", [], ["minus"], value_ints=[-1]),
        helper.make_node("ReduceMax", ["lengths"], ["longest"], keepdims=0),
        helper.make_node("Unsqueeze", ["longest", "zero"], ["size"]),
        helper.make_node("Concat", ["size", "minus"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Exp", ["r"], ["y"]),
    ]
    session = _session(nodes, {"x": (FLOAT, ["a"]), "lengths": (INT64, ["n"])})
    assert _steps(session) == ["segment", "segment"]
    x = np.random.default_rng(2).random(24, np.float32)
    for longest in (4, 6, 4):
        lengths = np.arange(300) % (longest + 1)
        (y,) = session.run(None, {"x": x, "lengths": lengths})
        np.testing.assert_allclose(y, np.exp(x).reshape(longest, -1), rtol=1e-6)


def test_contents_that_do_not_fit_are_the_error_of_their_node() -> None:
    session = _session(
        [helper.make_node("ReduceSum", ["x", "axes"], ["y"], "sum")], {"x": (FLOAT, [2]), "axes": (INT64, [1])}
    )
    with pytest.raises(errors.OnnxRuntimeError, match=r"sum.*7"):
        session.run(None, {"x": np.ones(2, np.float32), "axes": np.array([7])})
    (y,) = session.run(None, {"x": np.ones(2, np.float32), "axes": np.array([0])})
    np.testing.assert_array_equal(y, [2])


def test_few_plans_are_kept_and_results_are_the_callers_own() -> None:
    nodes = [helper.make_node("Range", ["zero", "n", "one"], ["r"]), helper.make_node("Add", ["r", "x"], ["y"])]
    session = _session(nodes, {"n": (FLOAT, []), "zero": (FLOAT, []), "one": (FLOAT, []), "x": (FLOAT, ["a"])})
    assert _steps(session) == ["segment"]
    for n in range(3 * MOST_STEERED_PLANS):
        feeds = {"zero": np.float32(0), "one": np.float32(1), "n": np.float32(n), "x": np.ones(1, np.float32)}
        for _ in range(2):
            (y,) = session.run(None, {name: np.asarray(value) for name, value in feeds.items()})
            np.testing.assert_array_equal(y, np.arange(n, dtype=np.float32) + 1)
            y[:] = -1


def test_what_is_known_beside_native_code_belongs_to_the_caller() -> None:
    nodes = [helper.make_node("ConstantOfShape", ["shape"], ["c"]), helper.make_node("Add", ["c", "x"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "known",
        [helper.make_tensor_value_info("shape", INT64, [2]), helper.make_tensor_value_info("x", FLOAT, [1])],
        [helper.make_tensor_value_info("c", FLOAT, None), helper.make_tensor_value_info("y", FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert _steps(session) == ["segment"]
    for _ in range(3):
        c, y = session.run(None, {"shape": np.array([2, 3]), "x": np.ones(1, np.float32)})
        np.testing.assert_array_equal(c, np.zeros((2, 3), np.float32))
        np.testing.assert_array_equal(y, np.ones((2, 3), np.float32))
        c[:] = 5
