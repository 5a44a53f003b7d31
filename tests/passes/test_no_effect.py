"""Slice, Expand and Concat that change nothing; and that what inference knows stays true while a model is rewritten."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.inference import infer_model
from sardonyx.passes import pipeline
from sardonyx.passes.base import Context, Level
from sardonyx.passes.node_index import NodeIndex
from tests.passes.agreement import assert_agrees
from tests.passes.models import make_model, operators, rewritten

RNG = np.random.default_rng(16)
N = helper.make_node
X = {"x": RNG.standard_normal((2, 5)).astype(np.float32)}
SHAPE: dict[str, list[int | str]] = {"x": ["n", "m"]}
SIZES = [
    N("Shape", ["x"], ["s"]),
    N("Gather", ["s", "one"], ["width"], axis=0),
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


def shown(fact: Fact | None) -> tuple[Any, ...]:
    assert fact is not None
    return (
        str(fact.type),
        None if fact.shape is None else tuple(map(str, fact.shape)),
        None if fact.elements is None else tuple(map(str, fact.elements)),
    )


def _sizes_by_floats() -> onnx.ModelProto:
    """A shape whose sizes come from arithmetic of floats, which only folding works out."""
    nodes = [
        N("Cast", ["root"], ["real"], to=TensorProto.FLOAT),
        N("Sqrt", ["real"], ["half"]),
        N("Cast", ["half"], ["whole"], to=TensorProto.INT64),
        N("Concat", ["minus", "whole"], ["target"], axis=0),
        N("Reshape", ["x", "target"], ["r"]),
        N("Shape", ["r"], ["t"]),
        N("Gather", ["t", "one"], ["last"], axis=0),
        N("ConstantOfShape", ["last"], ["zeros"]),
        N("Add", ["r", "zeros"], ["y"]),
    ]
    constants = {"root": np.array([16]), "minus": np.array([-1]), "one": np.array([1])}
    return make_model(nodes, {"x": ["n", 8]}, ["y"], constants)


def test_what_folding_learns_is_known_behind_it_at_once() -> None:
    model = _sizes_by_floats()
    after, _ = rewritten(model)
    assert operators(after) == ["Reshape", "Add"]
    assert_agrees(model, after, {"x": RNG.standard_normal((2, 8)).astype(np.float32)})


@pytest.mark.parametrize("make", [_sizes_by_floats])
def test_facts_after_the_rewrites_are_those_of_a_new_inference(make: Any) -> None:
    model = ir.from_proto(make())
    inference = infer_model(model)
    pipeline.apply(model, Level.ALL, (), inference)
    fresh = infer_model(model)
    values = [value for node in model.graph for value in node.outputs]
    assert values
    for value in values:
        assert shown(inference.facts.get(value)) == shown(fresh.facts.get(value))


def test_the_index_knows_added_nodes_and_forgets_removed_ones() -> None:
    model = ir.from_proto(make_model([N("Relu", ["x"], ["a"]), N("Neg", ["a"], ["y"])], SHAPE, ["y"]))
    context = Context(model, infer_model(model))
    relu, neg = model.graph
    assert context.index.find([("", "Neg"), ("", "Relu")]) == [neg, relu]
    again = ir.node("Relu", [relu.outputs[0]], version=17)
    model.graph.insert_before(neg, again)
    context.added(again)
    assert context.index.find([("", "Relu")]) == [relu, again]
    assert shown(context.inference.facts[again.outputs[0]]) == (str(ir.TensorType(ir.DataType.FLOAT)), ("n", "m"), None)
    model.graph.remove(again, safe=True)
    assert context.index.find([("", "Relu")]) == [relu]
    assert NodeIndex(model.graph).find([("", "Exp")]) == []
