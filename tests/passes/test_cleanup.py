"""Identity elimination, unused nodes, shared constants and common subexpressions."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from sardonyx.passes.base import Level
from tests.passes.models import assert_same_meaning, make_model, operators, rewritten

X = np.random.default_rng(2).standard_normal((2, 3)).astype(np.float32)


def test_identities_between_nodes_go_and_outputs_keep_their_names() -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Identity", ["b"], ["y"]),
        helper.make_node("Abs", ["b"], ["z"]),
    ]
    model = make_model(nodes, {"x": [2, 3]}, ["y", "z"])
    after, reports = rewritten(model, Level.BASIC)
    assert operators(after) == ["Neg", "Abs"]
    assert reports["EliminateIdentity"].changes == 2
    assert_same_meaning(model, after, {"x": X})


def test_an_identity_that_gives_an_output_its_name_stays() -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("Identity", ["y"], ["again"]),
        helper.make_node("Identity", ["x"], ["input_again"]),
    ]
    model = make_model(nodes, {"x": [2, 3]}, ["y", "again", "input_again"])
    after, _ = rewritten(model, Level.BASIC)
    assert operators(after) == ["Neg", "Identity", "Identity"]
    assert_same_meaning(model, after, {"x": X})


def test_a_branch_may_hand_out_an_outer_value() -> None:
    def branch(name: str) -> object:
        return helper.make_graph(
            [helper.make_node("Identity", ["outer"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )

    nodes = [
        helper.make_node("Neg", ["x"], ["outer"]),
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Cast", ["top"], ["flag"], to=TensorProto.BOOL),
        helper.make_node("If", ["flag"], ["y"], then_branch=branch("then_y"), else_branch=branch("else_y")),
    ]
    model = make_model(nodes, {"x": [2, 3]}, ["outer", "y"])
    after, _ = rewritten(model)
    assert_same_meaning(model, after, {"x": X})


def test_constants_of_branches_without_readers_go() -> None:
    """What a constant in a branch is computed of is of no use once that is done."""

    def branch(name: str, number: float) -> object:
        nodes = [
            helper.make_node("Constant", [], [f"{name}_number"], value_float=number),
            helper.make_node("Exp", [f"{name}_number"], [f"{name}_scale"]),
            helper.make_node("Mul", ["x", f"{name}_scale"], [name]),
        ]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])

    nodes = [
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Cast", ["top"], ["flag"], to=TensorProto.BOOL),
        helper.make_node("If", ["flag"], ["y"], then_branch=branch("a", 1.0), else_branch=branch("b", 2.0)),
    ]
    model = make_model(nodes, {"x": [2, 3]}, ["y"])
    after, _ = rewritten(model)
    branches = [attribute.g for attribute in after.graph.node[-1].attribute]
    assert sorted(tensor.name for graph in branches for tensor in graph.initializer) == ["a_scale", "b_scale"]
    assert_same_meaning(model, after, {"x": X})


def test_nodes_and_constants_without_readers_go() -> None:
    nodes = [helper.make_node("Exp", ["x"], ["unread"]), helper.make_node("Neg", ["x"], ["y"])]
    model = make_model(nodes, {"x": [2, 3]}, ["y"], {"spare": np.ones(3, np.float32)})
    after, reports = rewritten(model, Level.BASIC)
    assert operators(after) == ["Neg"]
    assert not after.graph.initializer
    assert reports["RemoveUnusedShapes"].changes + reports["RemoveUnused"].changes == 2


def test_equal_nodes_over_equal_constants_are_kept_once() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "a"], ["left"]),
        helper.make_node("Mul", ["x", "b"], ["right"]),
        helper.make_node("Softmax", ["left"], ["s0"], axis=0),
        helper.make_node("Softmax", ["right"], ["s1"], axis=1),
        helper.make_node("Sub", ["s0", "s1"], ["y"]),
    ]
    constants = {"a": np.array([2.0], np.float32), "b": np.array([2.0], np.float32)}
    model = make_model(nodes, {"x": [2, 3]}, ["y"], constants)
    after, reports = rewritten(model, Level.BASIC)
    assert operators(after) == ["Mul", "Softmax", "Softmax", "Sub"]
    assert reports["ConstantSharing"].changes == 1
    assert reports["CommonSubexpressionElimination"].changes == 1
    assert_same_meaning(model, after, {"x": X})


def test_zeros_of_different_sign_are_different_constants() -> None:
    nodes = [helper.make_node("Div", ["x", "a"], ["p"]), helper.make_node("Div", ["x", "b"], ["q"])]
    constants = {"a": np.array([0.0], np.float32), "b": np.array([-0.0], np.float32)}
    model = make_model(nodes, {"x": [2, 3]}, ["p", "q"], constants)
    after, _ = rewritten(model)
    assert_same_meaning(model, after, {"x": np.ones((2, 3), np.float32)})


def test_an_output_that_is_left_out_does_not_stand_for_one_that_is_read() -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["values", ""], kernel_shape=[2]),
        helper.make_node("MaxPool", ["x"], ["again", "places"], kernel_shape=[2]),
        helper.make_node("Cast", ["places"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Sum", ["values", "again", "floats"], ["y"]),
    ]
    model = make_model(nodes, {"x": [1, 2, 3]}, ["y"])
    after, _ = rewritten(model)
    assert_same_meaning(model, after, {"x": X[None]})


def test_two_draws_of_random_numbers_are_two() -> None:
    draws = [helper.make_node("RandomNormal", [], [name], shape=[3]) for name in ("a", "b")]
    after, _ = rewritten(make_model([*draws, helper.make_node("Sub", ["a", "b"], ["y"])], {"x": [1]}, ["y"]))
    assert operators(after) == ["RandomNormal", "RandomNormal", "Sub"]


def test_a_disabled_pass_does_not_run() -> None:
    nodes = [helper.make_node("Identity", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    after, reports = rewritten(make_model(nodes, {"x": [1]}, ["y"]), disabled={"EliminateIdentity", "NoSuchPass"})
    assert operators(after) == ["Identity", "Neg"]
    assert "EliminateIdentity" not in reports


def test_masks_of_pasts_of_one_length_are_made_once() -> None:
    nodes = []
    for layer in ("a", "b"):
        nodes += [
            helper.make_node("Shape", [f"past_{layer}"], [f"sizes_{layer}"]),
            helper.make_node("Gather", [f"sizes_{layer}", "last"], [f"length_{layer}"], axis=0),
            helper.make_node("Slice", ["mask", "first", f"length_{layer}", "last"], [f"mask_{layer}"]),
            helper.make_node("Softmax", [f"mask_{layer}"], [f"bias_{layer}"]),
            helper.make_node("Add", [f"past_{layer}", f"bias_{layer}"], [f"y_{layer}"]),
        ]
    constants = {"first": np.array([0]), "last": np.array([1])}
    inputs = {"mask": [2, 9], "past_a": [2, "past"], "past_b": [2, "past"]}
    model = make_model(nodes, inputs, ["y_a", "y_b"], constants)
    after, reports = rewritten(model)
    assert operators(after) == ["Shape", "Gather", "Slice", "Softmax", "Add", "Add"]
    assert reports["RepeatedNodeSharing"].changes == 2
    numbers = {"mask": np.repeat(X, 3, axis=1), "past_a": X, "past_b": -X}
    assert_same_meaning(model, after, numbers)
