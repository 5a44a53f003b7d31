"""Slice, Expand and Concat that change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.passes.agreement import assert_agrees
from tests.passes.models import make_model, operators, rewritten

RNG = np.random.default_rng(16)
N = helper.make_node
X = {"x": RNG.standard_normal((2, 5)).astype(np.float32)}
SHAPE: dict[str, list[int | str]] = {"x": ["n", "m"]}
SIZES = [
    N("Shape", ["x"], ["s"]),
    N("Gather", ["s", "one"], ["width"], axis=0),
    N("Neg", ["width"], ["back"]),
]
NUMBERS = {
    "zero": np.array([0]),
    "one": np.array([1]),
    "minus": np.array([-1]),
    "three": np.array([3]),
    "most": np.array([np.iinfo(np.int64).max]),
    "least": np.array([np.iinfo(np.int64).min]),
    "ones": np.array([1, 1]),
}


@pytest.mark.parametrize(
    ("inputs", "goes"),
    [
        (["zero", "width", "one", "one"], True),
        (["zero", "width", "minus", "one"], True),
        (["zero", "most", "one"], True),
        (["zero", "most", "zero"], True),
        (["zero", "most"], True),
        (["back", "most", "one"], True),
        (["back", "width", "one", "one"], True),
        (["back", "most", "zero"], False),
        (["zero", "three", "one", "one"], False),
        (["one", "width", "one", "one"], False),
        (["zero", "width", "zero", "one"], False),
        (["minus", "most", "one", "one"], False),
        (["minus", "least", "one", "minus"], False),
    ],
)
def test_a_slice_that_takes_everything_goes(inputs: list[str], goes: bool) -> None:
    nodes = [*SIZES, N("Slice", ["x", *inputs], ["t"]), N("Relu", ["t"], ["y"])]
    model = make_model(nodes, SHAPE, ["y"], NUMBERS)
    after, reports = rewritten(model)
    assert ("Slice" in operators(after)) is not goes
    assert reports["EliminateSlice"].changes == int(goes)
    assert_agrees(model, after, X)


def test_a_slice_that_turns_an_axis_round_stays_and_says_why() -> None:
    nodes = [N("Slice", ["x", "minus", "least", "one", "minus"], ["t"]), N("Relu", ["t"], ["y"])]
    model = make_model(nodes, {"x": [2, 5]}, ["y"], NUMBERS)
    after, reports = rewritten(model)
    assert operators(after) == ["Slice", "Relu"]
    assert any("another order" in text for text in reports["EliminateSlice"].declined)
    assert_agrees(model, after, X)


def test_a_slice_by_bounds_that_are_inputs_stays() -> None:
    nodes = [N("Cast", ["x"], ["end"], to=TensorProto.INT64), N("Slice", ["v", "zero", "end"], ["y"])]
    model = make_model(nodes, {"x": [1], "v": [4]}, ["y"], {"zero": np.array([0])})
    after, _ = rewritten(model)
    assert operators(after) == ["Cast", "Slice"]
    assert_agrees(model, after, {"x": np.array([3], np.float32), "v": np.arange(4, dtype=np.float32)})


@pytest.mark.parametrize(("target", "goes"), [("s", True), ("ones", True), ("wider", False), ("other", False)])
def test_an_expand_to_the_shape_that_is_there_goes(target: str, goes: bool) -> None:
    nodes = [
        N("Shape", ["x"], ["s"]),
        N("Shape", ["z"], ["other"]),
        N("Concat", ["one", "s"], ["wider"], axis=0),
        N("Expand", ["x", target], ["t"]),
        N("Relu", ["t"], ["y"]),
    ]
    model = make_model(nodes, {**SHAPE, "z": ["k", "m"]}, ["y"], NUMBERS)
    after, _ = rewritten(model)
    assert ("Expand" in operators(after)) is not goes
    assert_agrees(model, after, {**X, "z": X["x"]})


def test_a_concat_of_one_goes_and_a_concat_of_two_stays() -> None:
    for operands, goes in ((["x"], True), (["x", "x"], False)):
        nodes = [N("Concat", operands, ["c"], axis=1), N("Relu", ["c"], ["y"])]
        model = make_model(nodes, SHAPE, ["y"])
        after, _ = rewritten(model)
        assert operators(after) == ([] if goes else ["Concat"]) + ["Relu"]
        assert_agrees(model, after, X)


def test_declared_shapes_inside_a_loop_prove_nothing() -> None:
    body = helper.make_graph(
        [
            N("Concat", ["state", "state"], ["twice"], axis=0),
            N("Identity", ["condition"], ["again"]),
            N("Expand", ["state", "two"], ["wide"]),
            N("ReduceSum", ["wide"], ["total"], keepdims=0),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("condition", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, ["rows"]),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("twice", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("total", TensorProto.FLOAT, []),
        ],
    )
    nodes = [N("Loop", ["turns", "", "x"], ["final", "totals"], body=body), N("Neg", ["totals"], ["y"])]
    constants = {"turns": np.array(3), "two": np.array([1])}
    model = make_model(nodes, {"x": [1]}, ["y"], constants)
    after, _ = rewritten(model)
    assert_agrees(model, after, {"x": np.ones(1, np.float32)})
