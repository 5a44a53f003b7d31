"""Constant folding."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx.passes.base import Level
from tests.passes.models import assert_same_meaning, make_model, operators, rewritten

X = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)


def test_what_reads_constants_only_is_computed_once() -> None:
    nodes = [
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Mul", ["weight", "two"], ["doubled"]),
        helper.make_node("Transpose", ["doubled"], ["turned"]),
        helper.make_node("MatMul", ["x", "turned"], ["y"]),
    ]
    model = make_model(nodes, {"x": [2, 3]}, ["y"], {"weight": np.ones((4, 3), np.float32)})
    after, reports = rewritten(model)
    assert operators(after) == ["MatMul"]
    assert reports["ConstantFolding"].changes == 3
    assert [tensor.name for tensor in after.graph.initializer] == ["turned"]
    assert_same_meaning(model, after, {"x": X})


def test_shape_arithmetic_of_known_dimensions_is_folded() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["columns"]),
        helper.make_node("Concat", ["rest", "columns"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"one": np.array([1]), "rest": np.array([-1])}
    known = make_model(nodes, {"x": ["batch", 3]}, ["y"], constants)
    after, _ = rewritten(known)
    assert operators(after) == ["Reshape"]
    assert_same_meaning(known, after, {"x": X})
    unknown, _ = rewritten(make_model(nodes, {"x": ["batch", "width"]}, ["y"], constants), disabled=["ReshapeFusion"])
    assert operators(unknown) == ["Shape", "Gather", "Concat", "Reshape"]


def test_numbers_that_a_narrower_type_does_not_hold_wrap_around() -> None:
    nodes = [
        helper.make_node("Constant", [], ["wide"], value_ints=[21, 2**62 + 5, -(2**31) - 1]),
        helper.make_node("Cast", ["wide"], ["narrow"], to=TensorProto.INT32),
        helper.make_node("Cast", ["narrow"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "real"], ["y"]),
    ]
    model = make_model(nodes, {"x": [2, 3]}, ["y"])
    after, _ = rewritten(model)
    assert_same_meaning(model, after, {"x": X})


def test_an_initializer_that_callers_can_override_is_not_folded() -> None:
    nodes = [helper.make_node("Neg", ["offset"], ["negative"]), helper.make_node("Add", ["x", "negative"], ["y"])]
    model = make_model(nodes, {"x": [2, 3], "offset": [3]}, ["y"], {"offset": np.ones(3, np.float32)})
    after, reports = rewritten(model)
    assert operators(after) == ["Neg", "Add"]
    assert reports["ConstantFolding"].changes == 0


def test_random_numbers_are_drawn_in_every_run() -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["shape_of"], ["noise"]),
        helper.make_node("Bernoulli", ["half"], ["coin"]),
        helper.make_node("Sum", ["x", "noise", "coin"], ["y"]),
    ]
    constants = {"shape_of": np.ones((2, 3), np.float32), "half": np.full((2, 3), 0.5, np.float32)}
    after, _ = rewritten(make_model(nodes, {"x": [2, 3]}, ["y"], constants))
    assert operators(after) == ["RandomNormalLike", "Bernoulli", "Sum"]


def test_a_large_result_of_small_constants_is_left_to_the_run() -> None:
    nodes = [helper.make_node("ConstantOfShape", ["shape"], ["zeros"]), helper.make_node("Add", ["x", "zeros"], ["y"])]
    model = make_model(nodes, {"x": [1]}, ["y"], {"shape": np.array([1 << 40])})
    after, reports = rewritten(model, disabled={"NoopElimination"})
    assert operators(after) == ["ConstantOfShape", "Add"]
    assert any("above the limit" in reason for reason in reports["ConstantFolding"].declined)


def test_a_node_that_fails_on_its_constants_stays_to_fail_when_it_runs() -> None:
    nodes = [helper.make_node("GatherND", ["weight", "place"], ["item"]), helper.make_node("Add", ["x", "item"], ["y"])]
    model = make_model(nodes, {"x": ["n"]}, ["y"], {"weight": np.ones(6, np.float32), "place": np.array([[99]])})
    after, reports = rewritten(model)
    assert operators(after) == ["GatherND", "Add"]
    assert any("fails on its constants" in reason for reason in reports["ConstantFolding"].declined)


def test_quantised_weights_stay_integers() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["weight", "scale"], ["floats"]),
        helper.make_node("Add", ["x", "floats"], ["y"]),
    ]
    constants = {"weight": np.ones((3, 2), np.int8), "scale": np.array(0.5, np.float32)}
    after, _ = rewritten(make_model(nodes, {"x": [3, 2]}, ["y"], constants))
    assert operators(after) == ["DequantizeLinear", "Add"]


@pytest.mark.parametrize("clips", [True, False])
def test_weights_that_a_model_quantises_itself_are_stored_as_integers(clips: bool) -> None:
    """As Brevitas writes them: real weights, rounded, and cut off at -127 for a narrow range."""
    nodes = [helper.make_node("QuantizeLinear", ["weight", "scale", "zero"], ["integers"], axis=0)]
    source = "integers"
    if clips:
        nodes.append(helper.make_node("Clip", ["integers", "low", "high"], ["narrow"]))
        source = "narrow"
    nodes.append(helper.make_node("DequantizeLinear", [source, "scale", "zero"], ["floats"], axis=0))
    nodes.append(helper.make_node("Add", ["x", "floats"], ["y"]))
    constants = {
        "weight": np.array([[-9.0, 1.26], [0.1, 0.25]], np.float32),
        "scale": np.array([0.01, 0.1], np.float32),
    }
    constants |= {"zero": np.zeros(2, np.int8), "low": np.array(-127, np.int8), "high": np.array(127, np.int8)}
    after, _ = rewritten(make_model(nodes, {"x": [2, 2]}, ["y"], constants))
    assert operators(after) == ["DequantizeLinear", "Add"]
    held = next(one for one in after.graph.initializer if one.name == after.graph.node[0].input[0])
    np.testing.assert_array_equal(numpy_helper.to_array(held), [[-127 if clips else -128, 126], [1, 2]])


def test_a_constant_output_keeps_its_node_and_name() -> None:
    nodes = [helper.make_node("Neg", ["weight"], ["y"])]
    after, _ = rewritten(make_model(nodes, {"x": [1]}, ["y"], {"weight": np.ones(3, np.float32)}))
    assert operators(after) == ["Neg"]


def test_bodies_of_control_flow_are_folded_too() -> None:
    def branch(name: str, factor: float) -> object:
        nodes = [
            helper.make_node("Constant", [], [f"{name}_c"], value_float=factor),
            helper.make_node("Neg", [f"{name}_c"], [f"{name}_n"]),
            helper.make_node("Mul", ["x", f"{name}_n"], [f"{name}_y"]),
        ]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Cast", ["total"], ["positive"], to=TensorProto.BOOL),
        helper.make_node("If", ["positive"], ["y"], then_branch=branch("then", 2.0), else_branch=branch("else", 3.0)),
    ]
    model = make_model(nodes, {"x": [2, 3]}, ["y"])
    after, reports = rewritten(model)
    assert reports["ConstantFolding"].changes == 4
    bodies = [attribute.g for attribute in after.graph.node[-1].attribute]
    assert [[node.op_type for node in body.node] for body in bodies] == [["Mul"], ["Mul"]]
    for feed in (X, np.zeros((2, 3), np.float32)):
        assert_same_meaning(model, after, {"x": feed})


def test_nothing_happens_at_level_disabled() -> None:
    nodes = [helper.make_node("Identity", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    after, reports = rewritten(make_model(nodes, {"x": [1]}, ["y"]), Level.DISABLED)
    assert operators(after) == ["Identity", "Neg"]
    assert reports == {}
