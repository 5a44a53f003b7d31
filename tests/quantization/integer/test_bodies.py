"""Bodies of If, Loop and Scan in dynamic quantization."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx.quantization.refusal import InvalidQuantization
from tests.quantization.quantizing import model, node, quantized, run, run_peer


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _branch(name: str, weight: str, constant: np.ndarray | None = None) -> onnx.GraphProto:
    """A branch that multiplies `x` of the graph around it by a weight of its own or of that graph."""
    return helper.make_graph(
        [node("MatMul", ["x", weight], [name])],
        name,
        [],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        [] if constant is None else [numpy_helper.from_array(constant, weight)],
    )


def _conditional(*, before: bool = False) -> onnx.ModelProto:
    nodes = [
        node("If", ["flag"], ["y"], then_branch=_branch("a", "w"), else_branch=_branch("b", "v", _floats(8, 4) * 2))
    ]
    nodes = [node("MatMul", ["x", "w"], ["z"]), *nodes] if before else [*nodes, node("MatMul", ["x", "w"], ["z"])]
    return model(
        nodes,
        {"x": [3, 8], "flag": []},
        ["y", "z"],
        {"w": _floats(8, 4)},
        kinds={"flag": TensorProto.BOOL},
    )


def _inner(proto: onnx.ModelProto) -> list[list[str]]:
    return [
        [one.op_type for one in attribute.g.node]
        for outer in proto.graph.node
        for attribute in outer.attribute
        if attribute.type == onnx.AttributeProto.GRAPH
    ]


@pytest.mark.parametrize("before", [False, True])
def test_bodies_stay_exact_by_default(before: bool) -> None:
    proto = _conditional(before=before)
    made = quantized(proto)
    assert _inner(made) == [["MatMul"], ["MatMul"]]
    for flag in (True, False):
        feeds = {"x": _floats(3, 8), "flag": np.array(flag)}
        for engine in (run, run_peer):
            exact, outputs = engine(proto, feeds), engine(made, feeds)
            np.testing.assert_array_equal(outputs[0], exact[0])
            np.testing.assert_allclose(outputs[1], exact[1], atol=0.1)


@pytest.mark.parametrize("before", [False, True])
def test_bodies_are_quantised_where_asked(before: bool) -> None:
    proto = _conditional(before=before)
    made = quantized(proto, EnableSubgraph=True)
    assert all("MatMulInteger" in one for one in _inner(made))
    assert [one.op_type for one in made.graph.node].count("DynamicQuantizeLinear") == 1
    for flag in (True, False):
        feeds = {"x": _floats(3, 8), "flag": np.array(flag)}
        for engine in (run, run_peer):
            exact, outputs = engine(proto, feeds), engine(made, feeds)
            for one, other in zip(outputs, exact, strict=True):
                np.testing.assert_allclose(one, other, atol=0.2)


def test_body_that_reads_rows_of_a_stored_table() -> None:
    branch = helper.make_graph(
        [node("Exp", ["rows"], ["a"])], "a", [], [helper.make_tensor_value_info("a", TensorProto.FLOAT, None)]
    )
    other = helper.make_graph(
        [node("Neg", ["rows"], ["b"])], "b", [], [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)]
    )
    proto = model(
        [
            node("Gather", ["t", "i"], ["rows"]),
            node("If", ["flag"], ["y"], then_branch=branch, else_branch=other),
            node("Neg", ["rows"], ["z"]),
        ],
        {"i": [2], "flag": []},
        ["y", "z"],
        {"t": _floats(5, 4)},
        kinds={"i": TensorProto.INT64, "flag": TensorProto.BOOL},
    )
    made = quantized(proto)
    for flag in (True, False):
        feeds = {"i": np.array([3, 1]), "flag": np.array(flag)}
        exact = run(proto, feeds)
        for outputs in (run(made, feeds), run_peer(made, feeds)):
            for one, other_one in zip(outputs, exact, strict=True):
                np.testing.assert_allclose(one, other_one, atol=0.1)


def _loop() -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("MatMul", ["state", "w"], ["raw"]), node("Tanh", ["raw"], ["next"]), node("Identity", ["go"], ["still"])],
        "body",
        [info("step", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("state", TensorProto.FLOAT, None)],
        [info("still", TensorProto.BOOL, []), info("next", TensorProto.FLOAT, None)],
    )
    return model(
        [node("Loop", ["count", "", "x"], ["y"], body=body)],
        {"x": [2, 6]},
        ["y"],
        {"w": _floats(6, 6), "count": np.array(3)},
    )


def test_loop() -> None:
    proto = _loop()
    with pytest.raises(InvalidQuantization, match="EnableSubgraph"):
        quantized(proto)
    made = quantized(proto, EnableSubgraph=True)
    assert "MatMulInteger" in _inner(made)[0]
    feeds = {"x": _floats(2, 6)}
    for engine in (run, run_peer):
        np.testing.assert_allclose(engine(made, feeds)[0], engine(proto, feeds)[0], atol=0.1)


def test_node_in_a_body_is_excluded_by_its_name() -> None:
    made = quantized(_conditional(), EnableSubgraph=True, exclude=["MatMul_a"])
    assert ["MatMul"] in _inner(made)
    assert sum("MatMulInteger" in one for one in _inner(made)) == 1
