"""Sizes of intermediate results are taken from the inputs of the model."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.passes.models import assert_same_meaning, make_model, operators, rewritten

X = np.random.default_rng(5).standard_normal((2, 3, 4, 5)).astype(np.float32)


@pytest.mark.parametrize(
    ("attributes", "opset"), [({}, 13), ({}, 17), ({"start": 1}, 17), ({"start": -2, "end": 4}, 17), ({"end": 1}, 17)]
)
def test_the_shape_of_a_result_is_that_of_the_inputs(attributes: dict[str, int], opset: int) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "y"], ["product"]),
        helper.make_node("Shape", ["product"], ["shape"], **attributes),
        helper.make_node("Cast", ["shape"], ["z"], to=TensorProto.FLOAT),
    ]
    inputs = {"x": ["b", 3, "s", 5], "y": ["b", 3, 5, "t"]}
    model = make_model(nodes, inputs, ["z"], opset=opset)
    after, reports = rewritten(model)
    assert reports["ShapeFromInputs"].changes == 1
    assert "MatMul" not in operators(after)
    assert_same_meaning(model, after, {"x": X, "y": np.zeros((2, 3, 5, 7), np.float32)})


def test_a_size_that_no_input_has_keeps_its_shape() -> None:
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["twice"], axis=2),
        helper.make_node("Shape", ["twice"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["z"], to=TensorProto.FLOAT),
    ]
    model = make_model(nodes, {"x": ["b", 3, "s", 5]}, ["z"])
    after, reports = rewritten(model)
    assert operators(after) == ["Concat", "Shape", "Cast"]
    assert any("no input of the model" in reason for reason in reports["ShapeFromInputs"].declined)


def test_the_shape_of_an_input_stays() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["z"], to=TensorProto.FLOAT),
    ]
    after, reports = rewritten(make_model(nodes, {"x": ["b", 3, "s", 5]}, ["z"]))
    assert operators(after) == ["Shape", "Cast"]
    assert reports["ShapeFromInputs"].declined == ()
