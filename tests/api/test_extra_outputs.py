"""Values inside of a model as outputs: the keyword `extra_outputs` of sessions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import sardonyx as ort
from sardonyx import errors

WEIGHT = np.random.default_rng(0).standard_normal((8, 8))


def block() -> onnx.ModelProto:
    """GELU(data @ weight + 1), in operators that are one kernel where nobody asks for what is between them."""
    text = """<ir_version: 9, opset_import: ["" : 18]>
    block (float[rows, 8] data) => (float[rows, 8] result) {
        product = MatMul (data, weight)
        sum = Add (product, one)
        scaled = Div (sum, root)
        erf = Erf (scaled)
        more = Add (erf, one)
        twice = Mul (sum, more)
        result = Mul (twice, half)
    }"""
    model = parser.parse_model(text)
    for name, value in (("weight", WEIGHT), ("one", 1.0), ("root", np.sqrt(2)), ("half", 0.5)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
    model.graph.node[0].name = "multiply"
    return model


def _expected(data: np.ndarray) -> dict[str, np.ndarray]:
    from math import erf

    values = {"product": data.astype(np.float64) @ WEIGHT.astype(np.float32).astype(np.float64)}
    values["sum"] = values["product"] + 1
    values["erf"] = np.vectorize(erf)(values["sum"] / np.float64(np.float32(np.sqrt(2))))
    values["twice"] = values["sum"] * (values["erf"] + 1)
    values["result"] = values["twice"] / 2
    return values


@pytest.mark.parametrize("level", list(ort.GraphOptimizationLevel))
def test_every_value_can_be_seen(level: ort.GraphOptimizationLevel) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    names = ["erf", "product", "twice", "sum"]
    session = ort.InferenceSession(block().SerializeToString(), options, extra_outputs=names)
    assert [output.name for output in session.get_outputs()] == ["result", *names]
    assert session.get_outputs()[1].shape == ["rows", 8]
    data = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)
    expected = _expected(data)
    for name, value in zip(["result", *names], session.run(None, {"data": data}), strict=True):
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5)
    (alone,) = session.run(["erf"], {"data": data})
    np.testing.assert_allclose(alone, expected["erf"], rtol=1e-5, atol=1e-5)


def test_weights_inputs_and_outputs_are_values_too() -> None:
    names = ["weight", "data", "result", "weight"]
    session = ort.InferenceSession(block().SerializeToString(), extra_outputs=names)
    assert [output.name for output in session.get_outputs()] == ["result", "weight", "data"]
    data = np.ones((2, 8), np.float32)
    _, weight, given = session.run(None, {"data": data})
    np.testing.assert_array_equal(weight, WEIGHT.astype(np.float32))
    np.testing.assert_array_equal(given, data)


def test_other_sessions_of_the_model_have_its_own_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that are kept of a model, and plans that sessions share, are those of the same outputs."""
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sardonyx.runtime.file_state.SETTLED_SECONDS", -3600.0)
    monkeypatch.setattr("sardonyx.api.engines.engine_store.LEAST_SECONDS", 0.0)
    path = tmp_path / "block.onnx"
    onnx.save(block(), path)
    feed = {"data": np.ones((2, 8), np.float32)}
    for extra in ([], ["sum"], [], ["erf", "sum"], ["sum"]):
        session = ort.InferenceSession(path, extra_outputs=extra)
        results = session.run(None, feed)
        expected = _expected(feed["data"])
        for name, value in zip(["result", *extra], results, strict=True):
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5)
        del session


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("prodct", "the model has no value prodct: did you mean product?"),
        ("multiply", "multiply is a node, not a value; it makes product"),
        ("x", "the model has no value x"),
        ("", "the model has no value ''"),  # which nodes without a name have
    ],
)
def test_a_name_that_no_value_has_is_refused(name: str, said: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="extra_outputs: ") as raised:
        ort.InferenceSession(block().SerializeToString(), extra_outputs=[name])
    assert said in raised.value.message


def test_a_value_of_a_branch_is_refused() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]>
    chosen (bool flag, float[2] data) => (float[2] result) {
        result = If (flag) <
            then_branch = yes () => (float[2] a) { inner = Neg (data) a = Abs (inner) },
            else_branch = no () => (float[2] b) { b = Identity (data) }>
    }"""
    with pytest.raises(errors.InvalidArgument, match="inner lies in the graph 'yes' of a control flow node"):
        ort.InferenceSession(parser.parse_model(text).SerializeToString(), extra_outputs=["inner"])


def test_what_is_no_list_of_names_is_refused() -> None:
    for given in ("sum", 3, [1]):
        with pytest.raises(TypeError, match="extra_outputs"):
            ort.InferenceSession(block().SerializeToString(), extra_outputs=given)


def test_an_engine_takes_none(tmp_path: Path) -> None:
    onnx.save(block(), tmp_path / "block.onnx")
    options = ort.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    with pytest.raises(errors.InvalidArgument, match="outputs that it was compiled for"):
        ort.InferenceSession(tmp_path / "block.onnx", options, extra_outputs=["sum"])


def test_values_of_models_with_sequences_keep_their_kind() -> None:
    """A sequence inside of a model is a list for the caller."""
    nodes = [
        helper.make_node("SequenceConstruct", ["data", "data"], ["both"]),
        helper.make_node("SequenceLength", ["both"], ["count"]),
    ]
    graph = helper.make_graph(
        nodes,
        "sequence",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("count", TensorProto.INT64, [])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), extra_outputs=["both"])
    count, both = session.run(None, {"data": np.array([1, 2], np.float32)})
    assert count == 2
    assert [part.tolist() for part in both] == [[1, 2], [1, 2]]
