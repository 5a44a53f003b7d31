"""The rewrite rules: where they apply, where they decline and why, and that the meaning stays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from sardonyx.passes.base import Level
from sardonyx.passes.rule import RULE_KEY, SOURCES_KEY
from tests.passes.models import assert_same_meaning, make_model, operators, rewritten

RNG = np.random.default_rng(3)
X = RNG.standard_normal((2, 3)).astype(np.float32)


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    import sardonyx

    options = sardonyx.SessionOptions()
    options.graph_optimization_level = sardonyx.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = sardonyx.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


@pytest.mark.parametrize(
    ("op_type", "constant", "applies"),
    [
        ("Add", -0.0, True),
        ("Add", 0.0, False),
        ("Sub", 0.0, True),
        ("Sub", -0.0, False),
        ("Mul", 1.0, True),
        ("Div", 1.0, True),
        ("Mul", 2.0, False),
        ("Add", 1.0, False),
    ],
)
def test_operations_without_effect(op_type: str, constant: float, applies: bool) -> None:
    nodes = [helper.make_node(op_type, ["x", "c"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    model = make_model(nodes, {"x": [2, 3]}, ["y"], {"c": np.array(constant, np.float32)})
    after, _ = rewritten(model)
    assert operators(after) == (["Relu"] if applies else [op_type, "Relu"])
    assert_same_meaning(model, after, {"x": X})


def test_a_one_that_adds_a_dimension_has_an_effect() -> None:
    nodes = [helper.make_node("Mul", ["x", "c"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    model = make_model(nodes, {"x": [2, 3]}, ["y"], {"c": np.ones((1, 1, 1), np.float32)})
    after, reports = rewritten(model)
    assert operators(after) == ["Mul", "Relu"]
    assert any("more dimensions" in reason for reason in reports["NoopElimination"].declined)


def test_one_divided_by_x_is_not_x() -> None:
    nodes = [helper.make_node("Div", ["c", "x"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    model = make_model(nodes, {"x": [2, 3]}, ["y"], {"c": np.array(1, np.float32)})
    after, _ = rewritten(model)
    assert_same_meaning(model, after, {"x": X})


def test_casts_to_the_same_type_go() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["same"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["same"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Cast", ["whole"], ["y"], to=TensorProto.FLOAT),
    ]
    model = make_model(nodes, {"x": [2, 3]}, ["y"])
    after, reports = rewritten(model)
    assert operators(after) == ["Cast", "Cast"]
    assert reports["CastElimination"].changes == 1
    assert_same_meaning(model, after, {"x": X * 5})


@pytest.mark.parametrize(("training", "applies"), [(None, True), (False, True), (True, False)])
def test_dropout_outside_training_goes(training: bool | None, applies: bool) -> None:
    inputs = ["x"] if training is None else ["x", "ratio", "training"]
    nodes = [helper.make_node("Dropout", inputs, ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    constants = {"ratio": np.array(0.5, np.float32), "training": np.array(bool(training))}
    after, _ = rewritten(make_model(nodes, {"x": [2, 3]}, ["y"], constants))
    assert operators(after) == (["Relu"] if applies else ["Dropout", "Relu"])


def test_dropout_whose_mask_is_read_stays() -> None:
    nodes = [
        helper.make_node("Dropout", ["x"], ["a", "mask"]),
        helper.make_node("Cast", ["mask"], ["kept"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["a", "kept"], ["y"]),
    ]
    after, reports = rewritten(make_model(nodes, {"x": [2, 3]}, ["y"]))
    assert "Dropout" in operators(after)
    assert any("its mask is read" in reason for reason in reports["EliminateDropout"].declined)


def test_a_negated_condition_swaps_the_branches_and_remembers_its_source() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["flag"], to=TensorProto.BOOL),
        helper.make_node("Not", ["flag"], ["opposite"], name="negate"),
        helper.make_node("Neg", ["x"], ["other"]),
        helper.make_node("Where", ["opposite", "x", "other"], ["y"], name="choose"),
    ]
    model = make_model(nodes, {"x": [2, 3]}, ["y"])
    after, _ = rewritten(model)
    assert sorted(operators(after)) == ["Cast", "Neg", "Where"]
    where = after.graph.node[-1]
    assert where.name == "choose"
    metadata = {entry.key: entry.value for entry in where.metadata_props}
    assert metadata[RULE_KEY] == "NotWhereFusion"
    assert metadata[SOURCES_KEY] == "negate,choose"
    assert_same_meaning(model, after, {"x": np.array([[0, 1, 2], [3, 0, 0]], np.float32)})


def test_a_result_that_is_read_elsewhere_keeps_its_node() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["flag"], to=TensorProto.BOOL),
        helper.make_node("Not", ["flag"], ["opposite"]),
        helper.make_node("Where", ["opposite", "x", "x"], ["y"]),
        helper.make_node("Cast", ["opposite"], ["z"], to=TensorProto.FLOAT),
    ]
    after, reports = rewritten(make_model(nodes, {"x": [2, 3]}, ["y", "z"]))
    assert "Not" in operators(after)
    assert any("read elsewhere" in reason for reason in reports["NotWhereFusion"].declined)


def _convolution(statistics_constant: bool = True, bias: bool = True) -> tuple[onnx.ModelProto, dict[str, Any]]:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"] if bias else ["x", "w"], ["c"], pads=[1, 1, 1, 1], group=2),
        helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["y"], epsilon=1e-3),
    ]
    rng = np.random.default_rng(4)
    constants = {
        "w": rng.standard_normal((6, 2, 3, 3)).astype(np.float32),
        "b": rng.standard_normal(6).astype(np.float32),
        "scale": rng.uniform(0.5, 1.5, 6).astype(np.float32),
        "bias": rng.standard_normal(6).astype(np.float32),
        "mean": rng.standard_normal(6).astype(np.float32),
        "var": rng.uniform(0.5, 2, 6).astype(np.float32),
    }
    inputs: dict[str, list[int | str]] = {"x": ["n", 4, 5, 5]}
    feeds = {"x": rng.standard_normal((2, 4, 5, 5)).astype(np.float32)}
    if not statistics_constant:
        inputs["mean"] = [6]
        feeds["mean"] = constants["mean"]
    return make_model(nodes, inputs, ["y"], constants), feeds


@pytest.mark.parametrize("bias", [True, False])
def test_batch_normalization_goes_into_the_convolution(bias: bool) -> None:
    model, feeds = _convolution(bias=bias)
    after, reports = rewritten(model)
    assert operators(after) == ["Conv"]
    assert reports["ConvBNFusion"].changes == 1
    (wanted,), (found,) = run(model, feeds), run(after, feeds)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_statistics_that_callers_can_override_stay() -> None:
    model, _ = _convolution(statistics_constant=False)
    after, reports = rewritten(model)
    assert operators(after) == ["Conv", "BatchNormalization"]
    assert any("its mean is not constant" in reason for reason in reports["ConvBNFusion"].declined)


def _gelu(form: int, divide: bool) -> list[onnx.NodeProto]:
    scale = (
        helper.make_node("Div", ["x", "root"], ["s"]) if divide else helper.make_node("Mul", ["half_root", "x"], ["s"])
    )
    head = [scale, helper.make_node("Erf", ["s"], ["e"]), helper.make_node("Add", ["one", "e"], ["g"])]
    tails = (
        [helper.make_node("Mul", ["x", "g"], ["p"]), helper.make_node("Mul", ["p", "half"], ["y"])],
        [helper.make_node("Mul", ["g", "half"], ["p"]), helper.make_node("Mul", ["x", "p"], ["y"])],
        [helper.make_node("Mul", ["x", "half"], ["p"]), helper.make_node("Mul", ["p", "g"], ["y"])],
    )
    return [*head, *tails[form]]


GELU_CONSTANTS = {
    "root": np.array(math.sqrt(2), np.float32),
    "half_root": np.array(math.sqrt(0.5), np.float32),
    "one": np.array(1, np.float32),
    "half": np.array(0.5, np.float32),
}


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize("form", [0, 1, 2])
def test_the_parts_of_gelu_become_one_node(form: int, divide: bool, opset: int) -> None:
    model = make_model(_gelu(form, divide), {"x": ["n", 3]}, ["y"], GELU_CONSTANTS, opset=opset)
    after, _ = rewritten(model)
    (node,) = after.graph.node
    assert (node.op_type, node.domain) == ("Gelu", "" if opset >= 20 else "com.microsoft")
    (wanted,), (found,) = run(model, {"x": X}), run(after, {"x": X})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    basic, _ = rewritten(model, Level.BASIC)
    assert "Erf" in operators(basic)


def test_another_constant_is_no_gelu() -> None:
    constants = {**GELU_CONSTANTS, "half": np.array(0.6, np.float32)}
    after, _ = rewritten(make_model(_gelu(0, True), {"x": [2, 3]}, ["y"], constants))
    assert "Erf" in operators(after)


def _layer_norm(axes: list[int]) -> onnx.ModelProto:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=axes),
        helper.make_node("Sub", ["x", "mean"], ["d"]),
        helper.make_node("Pow", ["d", "two"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["variance"], axes=axes),
        helper.make_node("Add", ["variance", "epsilon"], ["moved"]),
        helper.make_node("Sqrt", ["moved"], ["deviation"]),
        helper.make_node("Div", ["d", "deviation"], ["n"]),
        helper.make_node("Mul", ["n", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["y"]),
    ]
    constants = {
        "two": np.array(2, np.float32),
        "epsilon": np.array(1e-5, np.float32),
        "scale": np.array([0.5, 1, 2], np.float32),
        "bias": np.array([1, 2, 3], np.float32),
    }
    return make_model(nodes, {"x": ["n", 3]}, ["y"], constants, opset=14)


def test_the_parts_of_layer_normalization_become_one_node() -> None:
    model = _layer_norm([-1])
    loaded = ir.from_proto(model)
    from sardonyx.passes import pipeline

    reports = {report.name: report.changes for report in pipeline.apply(loaded, Level.ALL)}
    assert reports["LayerNormFusionL2"] == 1
    (node,) = loaded.graph
    assert (node.op_type, node.attributes["axis"].as_int()) == ("LayerNormalization", -1)
    fused = ir.to_proto(loaded)
    (wanted,), (found,) = run(model, {"x": X}), run(fused, {"x": X})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_mean_over_other_dimensions_is_no_layer_normalization() -> None:
    loaded = ir.from_proto(_layer_norm([0]))
    from sardonyx.passes import pipeline

    reports = {report.name: report for report in pipeline.apply(loaded, Level.ALL)}
    assert reports["LayerNormFusionL2"].changes == 0
    assert any("last dimension alone" in reason for reason in reports["LayerNormFusionL2"].declined)


def test_statistics_that_are_given_out_mean_training() -> None:
    model, _ = _convolution()
    model.opset_import[0].version = 9
    model.graph.node[1].output.extend(["new_mean", "new_variance", "saved_mean", "saved_variance"])
    after, reports = rewritten(model)
    assert operators(after) == ["Conv", "BatchNormalization"]
    assert any("training mode" in reason for reason in reports["ConvBNFusion"].declined)
