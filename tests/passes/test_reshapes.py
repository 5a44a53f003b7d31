"""Views: constant shapes, chains, and those without effect."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.passes.rule import RULE_KEY
from tests.passes.agreement import assert_agrees
from tests.passes.models import make_model, operators, rewritten

RNG = np.random.default_rng(11)
N = helper.make_node


def _heads(rest: list[str], allowzero: int = 0) -> list[onnx.NodeProto]:
    """Reshape of (batch, length, 12) to what `rest` names, the sizes taken from the shape of x."""
    nodes = [N("Shape", ["x"], ["shape"])]
    for index, name in enumerate(("batch", "length", "width")):
        nodes.append(N("Gather", ["shape", f"at{index}"], [name], axis=0))
    extra = {"allowzero": allowzero} if allowzero else {}
    return [*nodes, N("Concat", rest, ["target"], axis=0), N("Reshape", ["x", "target"], ["y"], **extra)]


HEADS = {f"at{index}": np.array([index]) for index in range(3)} | {
    "minus": np.array([-1]),
    "three": np.array([3]),
    "four": np.array([4]),
    "one": np.array([1]),
}


@pytest.mark.parametrize(
    ("rest", "target"),
    [
        (["batch", "length", "three", "four"], [0, 0, 3, 4]),
        (["batch", "minus", "three", "four"], [0, 0, 3, 4]),
        (["batch", "length", "minus", "four"], [0, 0, 3, 4]),
        (["minus", "length"], [-1, 0]),
        (["batch", "length", "one", "width"], [0, 0, 1, 12]),
    ],
)
@pytest.mark.parametrize("allowzero", [0, 1])
def test_sizes_that_are_copied_need_no_arithmetic(rest: list[str], target: list[int], allowzero: int) -> None:
    model = make_model(_heads(rest, allowzero), {"x": ["batch", "length", 12]}, ["y"], HEADS)
    after, reports = rewritten(model)
    assert operators(after) == ["Reshape"]
    assert reports["ReshapeFusion"].changes == 1
    (constant,) = after.graph.initializer
    assert list(np.frombuffer(constant.raw_data, np.int64)) == target
    assert {entry.key: entry.value for entry in after.graph.node[0].metadata_props}[RULE_KEY] == "ReshapeFusion"
    # With nothing in the batch, the -1 of the model itself means nothing, and onnxruntime refuses it.
    for batch in (1, 2) if "minus" in rest else (0, 1, 2):
        assert_agrees(model, after, {"x": RNG.standard_normal((batch, 5, 12)).astype(np.float32)})


@pytest.mark.parametrize(
    ("rest", "inputs", "reason"),
    [
        (["length", "batch", "width"], {"x": ["batch", "length", 12]}, "more than one size"),
        (["batch", "four", "length", "three"], {"x": ["batch", "length", 12]}, "what is left over is not defined"),
    ],
)
def test_sizes_that_cannot_be_copied_stay_computed(rest: list[str], inputs: dict[str, Any], reason: str) -> None:
    model = make_model(_heads(rest), inputs, ["y"], HEADS)
    after, reports = rewritten(model)
    assert "Shape" in operators(after)
    assert any(reason in text for text in reports["ReshapeFusion"].declined)
    assert_agrees(model, after, {"x": RNG.standard_normal((2, 5, 12)).astype(np.float32)})


def test_the_declared_shape_of_an_output_fixes_no_sizes() -> None:
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, ["n", 3]), value("target", TensorProto.INT64, [2])]
    outputs = [value("y", TensorProto.FLOAT, [1, 3])]
    graph = helper.make_graph([N("Reshape", ["x", "target"], ["y"])], "graph", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = sardonyx.SessionOptions()
    options.log_severity_level = 4
    session = sardonyx.InferenceSession(model.SerializeToString(), options)
    feeds = {"x": np.ones((2, 3), np.float32), "target": np.array([3, 2])}
    assert session.run(None, feeds)[0].shape == (3, 2)


@pytest.mark.parametrize("source", ["target", "other"])
def test_sizes_of_the_run_that_do_not_fit_are_refused(source: str) -> None:
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, ["n", "m"]), value("other", TensorProto.FLOAT, ["k"])]
    inputs.append(value("target", TensorProto.INT64, [1]))
    nodes = [N("Shape", ["other"], ["size"]), N("Reshape", ["x", "target" if source == "target" else "size"], ["r"])]
    graph = helper.make_graph([*nodes, N("Relu", ["r"], ["y"])], "graph", inputs, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = sardonyx.SessionOptions()
    options.log_severity_level = 4
    session = sardonyx.InferenceSession(model.SerializeToString(), options)
    for size in (6, 5, 6):
        feeds = {"x": np.ones((2, 3), np.float32), "target": np.array([size]), "other": np.ones(size, np.float32)}
        if size == 6:
            assert session.run(None, feeds)[0].shape == (6,)
        else:
            with pytest.raises(sardonyx.errors.Fail, match=r"Input shape:\{2,3\}, requested shape:\{5\}"):
                session.run(None, feeds)


def test_a_reshape_to_the_shape_that_is_there_goes() -> None:
    nodes = [*_heads(["batch", "length", "width"]), N("Relu", ["y"], ["z"])]
    model = make_model(nodes, {"x": ["batch", "length", 12]}, ["z"], HEADS)
    after, reports = rewritten(model)
    assert operators(after) == ["Relu"]
    assert reports["ReshapeElimination"].changes == 1
    assert_agrees(model, after, {"x": RNG.standard_normal((2, 5, 12)).astype(np.float32)})


def test_a_view_without_effect_that_is_an_output_stays() -> None:
    model = make_model(_heads(["batch", "length", "width"]), {"x": ["batch", "length", 12]}, ["y"], HEADS)
    after, reports = rewritten(model)
    assert operators(after) == ["Reshape"]
    assert any("keeps its name" in reason for reason in reports["ReshapeElimination"].declined)


def test_a_chain_that_ends_as_it_began_with_no_elements_stays() -> None:
    model = make_model([N("Squeeze", ["x"], ["u"]), N("Squeeze", ["u"], ["y"])], {"x": [0]}, ["y"])
    after, _ = rewritten(model)
    assert operators(after)[-1] == "Squeeze"
    assert_agrees(model, after, {"x": np.zeros(0, np.float32)})


def test_unsqueezes_insert_all_axes_at_once() -> None:
    nodes = [N("Unsqueeze", ["x", "first"], ["a"]), N("Unsqueeze", ["a", "second"], ["y"])]
    for first, second in (([1], [2]), ([0], [0]), ([-1], [0, 2]), ([0, 2], [1]), ([1], [-1])):
        constants = {"first": np.array(first), "second": np.array(second)}
        model = make_model(nodes, {"x": ["n", 3]}, ["y"], constants)
        after, reports = rewritten(model)
        assert operators(after) == ["Unsqueeze"]
        assert reports["UnsqueezeElimination"].changes == 1
        assert_agrees(model, after, {"x": RNG.standard_normal((2, 3)).astype(np.float32)})


def test_unsqueezes_by_axes_that_are_inputs_stay() -> None:
    nodes = [N("Cast", ["x"], ["axes"], to=TensorProto.INT64), N("Unsqueeze", ["v", "axes"], ["a"])]
    nodes.append(N("Unsqueeze", ["a", "second"], ["y"]))
    model = make_model(nodes, {"x": [1], "v": [3]}, ["y"], {"second": np.array([0])})
    after, _ = rewritten(model)
    assert operators(after) == ["Cast", "Unsqueeze", "Unsqueeze"]
    assert_agrees(model, after, {"x": np.array([1], np.float32), "v": np.arange(3, dtype=np.float32)})


@pytest.mark.parametrize(
    ("views", "left"),
    [
        ([("Reshape", [0, 0, 3, 4]), ("Reshape", [0, 0, 12])], []),
        ([("Unsqueeze", [1]), ("Squeeze", [1])], []),
        ([("Reshape", [0, 0, 3, 4]), ("Reshape", [0, 0, 4, 3])], ["Reshape"]),
        ([("Unsqueeze", [1]), ("Reshape", [-1, 12])], ["Reshape"]),
        ([("Reshape", [-1, 12]), ("Unsqueeze", [0])], ["Reshape"]),
    ],
)
def test_a_view_of_a_view_is_one_or_none(views: list[tuple[str, list[int]]], left: list[str]) -> None:
    nodes, constants = [], {}
    value = "x"
    for index, (kind, numbers) in enumerate(views):
        constants[f"c{index}"] = np.array(numbers)
        nodes.append(N(kind, [value, f"c{index}"], [f"v{index}"]))
        value = f"v{index}"
    model = make_model([*nodes, N("Relu", [value], ["y"])], {"x": ["batch", "length", 12]}, ["y"], constants)
    after, _ = rewritten(model)
    assert operators(after) == [*left, "Relu"]
    assert_agrees(model, after, {"x": RNG.standard_normal((2, 5, 12)).astype(np.float32)})


def test_a_chain_that_would_leave_two_sizes_open_stays() -> None:
    nodes = [N("Reshape", ["x", "flat"], ["a"]), N("Reshape", ["a", "back"], ["b"]), N("Relu", ["b"], ["y"])]
    constants = {"flat": np.array([0, 3, 4]), "back": np.array([0, -1, 2])}
    model = make_model(nodes, {"x": ["rows", "columns"]}, ["y"], constants)
    after, _ = rewritten(model)
    assert_agrees(model, after, {"x": RNG.standard_normal((2, 12)).astype(np.float32)})
    odd = [N("Reshape", ["x", "flat"], ["a"]), N("Transpose", ["a"], ["t"]), N("Reshape", ["t", "back"], ["y"])]
    odd_model = make_model(odd, {"x": ["rows", 12]}, ["y"], {"flat": np.array([0, 3, 4]), "back": np.array([-1, 12])})
    kept, _ = rewritten(odd_model)
    assert operators(kept) == ["Reshape", "Transpose", "Reshape"]
    assert_agrees(odd_model, kept, {"x": RNG.standard_normal((2, 12)).astype(np.float32)})


def test_equal_sizes_are_computed_once() -> None:
    nodes = [
        N("Shape", ["x"], ["s"]),
        N("Gather", ["s", "zero"], ["rows"], axis=0),
        N("Relu", ["x"], ["r"]),
        N("Shape", ["r"], ["t"]),
        N("Gather", ["t", "zero"], ["again"], axis=0),
        N("Mul", ["rows", "again"], ["y"]),
    ]
    model = make_model(nodes, {"x": ["rows", 3]}, ["y"], {"zero": np.array([0])}, output_dtype=TensorProto.INT64)
    after, reports = rewritten(model)
    assert operators(after) == ["Shape", "Gather", "Mul"]
    assert reports["ShapeSharing"].changes == 2
    assert_agrees(model, after, {"x": RNG.standard_normal((4, 3)).astype(np.float32)})
