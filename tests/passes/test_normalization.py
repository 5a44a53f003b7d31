"""LayerNormalization and RMS normalisation from their parts, and with the residual before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx import InferenceSession, errors
from sardonyx.passes.rule import RULE_KEY
from tests.passes.agreement import assert_agrees
from tests.passes.models import make_model, operators, rewritten

RNG = np.random.default_rng(14)
N = helper.make_node
X = {"x": RNG.standard_normal((2, 5, 8)).astype(np.float32)}
Z = {"z": RNG.standard_normal((2, 5, 8)).astype(np.float32)}
SHAPE: dict[str, list[int | str]] = {"x": ["n", "m", 8]}
BOTH: dict[str, list[int | str]] = {**SHAPE, "z": ["n", "m", 8]}
CONSTANTS = {
    "two": np.array(2, np.float32),
    "one": np.array(1, np.float32),
    "epsilon": np.array(1e-5, np.float32),
    "scale": RNG.standard_normal(8).astype(np.float32),
    "bias": RNG.standard_normal(8).astype(np.float32),
    "offset": RNG.standard_normal(8).astype(np.float32),
}
ROOTS = {
    "div": [N("Div", ["d", "r"], ["n"])],
    "reciprocal": [N("Reciprocal", ["r"], ["i"]), N("Mul", ["d", "i"], ["n"])],
    "one over": [N("Div", ["one", "r"], ["i"]), N("Mul", ["i", "d"], ["n"])],
}
SQUARES = {"pow": [N("Pow", ["d", "two"], ["q"])], "mul": [N("Mul", ["d", "d"], ["q"])]}
ENDS = {
    "scale and bias": [N("Mul", ["n", "scale"], ["s"]), N("Add", ["s", "bias"], ["y"])],
    "bias first": [N("Mul", ["scale", "n"], ["s"]), N("Add", ["bias", "s"], ["y"])],
    "scale": [N("Mul", ["n", "scale"], ["y"])],
    "nothing": [N("Identity", ["n"], ["y"])],
}


def _norm(
    square: str, root: str, end: str, *, centred: bool, axes: Sequence[int] = (-1,), opset: int = 14, keepdims: int = 1
) -> onnx.ModelProto:
    """The parts, over d: x less its mean, or x itself."""
    reduce = {"axes": list(axes), "keepdims": keepdims} if opset < 18 else {"keepdims": keepdims}
    extra = [] if opset < 18 else ["axes"]
    head = (
        [N("ReduceMean", ["x", *extra], ["mean"], **reduce), N("Sub", ["x", "mean"], ["d"])]
        if centred
        else [N("Identity", ["x"], ["d"])]
    )
    nodes = [
        *head,
        *SQUARES[square],
        N("ReduceMean", ["q", *extra], ["v"], **reduce),
        N("Add", ["v", "epsilon"], ["w"]),
        N("Sqrt", ["w"], ["r"]),
        *ROOTS[root],
        *ENDS[end],
    ]
    constants = CONSTANTS | ({} if opset < 18 else {"axes": np.array(axes)})
    return make_model(nodes, SHAPE, ["y"], constants, opset=opset)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("square", SQUARES)
def test_layer_normalization_in_parts(square: str, root: str, end: str) -> None:
    model = _norm(square, root, end, centred=True, opset=17)
    after, reports = rewritten(model)
    assert operators(after) == ["LayerNormalization"]
    assert reports["LayerNormFusionL2"].changes == 1
    assert len(after.graph.node[0].input) == (3 if "bias" in end else 2)
    assert_agrees(model, after, X)


@pytest.mark.parametrize("opset", [12, 18, 22])
def test_axes_as_an_attribute_or_an_input(opset: int) -> None:
    model = _norm("pow", "div", "scale and bias", centred=True, opset=opset, axes=[2])
    after, _ = rewritten(model)
    assert [node.op_type for node in after.graph.node] == ["LayerNormalization"]
    assert_agrees(model, after, X)


@pytest.mark.parametrize("reciprocal", [True, False])
@pytest.mark.parametrize("square", SQUARES)
def test_layer_normalization_as_tensorflow_writes_it(square: str, reciprocal: bool) -> None:
    nodes = [
        N("ReduceMean", ["x"], ["mean"], axes=[-1]),
        N("Sub", ["x", "mean"], ["d"]),
        *SQUARES[square],
        N("ReduceMean", ["q"], ["v"], axes=[-1]),
        N("Add", ["v", "epsilon"], ["w"]),
        N("Sqrt", ["w"], ["r"]),
        N("Reciprocal", ["r"], ["i"]) if reciprocal else N("Div", ["one", "r"], ["i"]),
        N("Mul", ["i", "scale"], ["f"]),
        N("Mul", ["x", "f"], ["xf"]),
        N("Mul", ["mean", "f"], ["mf"]),
        N("Sub", ["bias", "mf"], ["rest"]),
        N("Add", ["xf", "rest"], ["y"]),
    ]
    model = make_model(nodes, SHAPE, ["y"], CONSTANTS, opset=17)
    after, reports = rewritten(model)
    assert operators(after) == ["LayerNormalization"]
    assert reports["LayerNormFusionL2"].changes == 1
    assert_agrees(model, after, X)


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("opset", [17, 23])
def test_rms_normalization_in_parts(square: str, root: str, opset: int) -> None:
    model = _norm(square, root, "scale", centred=False, opset=opset)
    after, reports = rewritten(model)
    assert operators(after) == ["RMSNormalization" if opset >= 23 else "SimplifiedLayerNormalization"]
    assert reports["SimplifiedLayerNormFusion"].changes == 1
    assert_agrees(model, after, X)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(
    ("axes", "keepdims", "constants", "reason"),
    [
        ([1], 1, {}, "last dimension alone"),
        ([1, 2], 1, {}, "last dimension alone"),
        ([-1], 1, {"scale": np.ones((5, 8), np.float32)}, "its scale is not a row"),
        ([-1], 1, {"scale": np.full(1, 2, np.float32)}, "its scale is not a row"),
        ([-1], 1, {"epsilon": np.full(8, 1e-5, np.float32)}, "its epsilon is not one constant"),
        ([-1], 1, {"epsilon": np.full((1, 1, 1, 1), 1e-5, np.float32)}, "may give the result more dimensions"),
    ],
)
def test_what_is_no_normalization_of_rows(
    centred: bool, axes: list[int], keepdims: int, constants: dict[str, Any], reason: str
) -> None:
    model = _norm("mul", "div", "scale", centred=centred, axes=axes, keepdims=keepdims)
    for name, array in constants.items():
        (held,) = (one for one in model.graph.initializer if one.name == name)
        held.CopyFrom(onnx.numpy_helper.from_array(array, name))
    after, reports = rewritten(model)
    report = reports["LayerNormFusionL2" if centred else "SimplifiedLayerNormFusion"]
    assert any(reason in text for text in report.declined)
    if centred and "scale" in constants:
        assert operators(after) == ["LayerNormalization", "Mul"]  # the rest of it is one all the same
    else:
        assert report.changes == 0
    feeds = {"x": RNG.standard_normal((2, 5, 8)).astype(np.float32)}
    assert_agrees(model, after, feeds)


def test_a_deviation_of_something_else_is_no_normalization() -> None:
    nodes = [
        N("ReduceMean", ["x"], ["mean"], axes=[-1]),
        N("Sub", ["x", "mean"], ["d"]),
        N("Mul", ["d", "x"], ["q"]),
        N("ReduceMean", ["q"], ["v"], axes=[-1]),
        N("Abs", ["v"], ["b"]),
        N("Add", ["b", "epsilon"], ["w"]),
        N("Sqrt", ["w"], ["r"]),
        N("Div", ["d", "r"], ["y"]),
    ]
    model = make_model(nodes, SHAPE, ["y"], {"epsilon": CONSTANTS["epsilon"]}, opset=14)
    after, _ = rewritten(model)
    assert "Sqrt" in operators(after)
    assert_agrees(model, after, X)


def _skip(kind: str, *, bias: bool, read: bool, skip_first: bool = False) -> onnx.ModelProto:
    nodes = [N("Neg", ["x"], ["a"])]
    value = "a"
    if bias:
        nodes.append(N("Add", ["offset", "a"], ["b"], name="bias_add"))
        value = "b"
    nodes.append(N("Add", ["z", value] if skip_first else [value, "z"], ["total"], name="residual"))
    if read:
        nodes.append(N("Relu", ["total"], ["other"]))  # before the normalisation, as a graph may well have it
    inputs = ["total", "scale", "bias"] if kind == "LayerNormalization" else ["total", "scale"]
    nodes.append(N(kind, inputs, ["n"], epsilon=1e-6, name="norm"))
    nodes.append(N("Relu", ["n"], ["y"]))
    if read:
        nodes.append(N("Add", ["total", "y"], ["late"]))
    constants = {name: CONSTANTS[name] for name in ("scale", "bias", "offset")}
    return make_model(nodes, BOTH, ["y", "other", "late"] if read else ["y"], constants, opset=17)


@pytest.mark.parametrize("skip_first", [False, True])
@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_residual_bias_and_normalization_are_one_node(bias: bool, read: bool, skip_first: bool) -> None:
    model = _skip("LayerNormalization", bias=bias, read=read, skip_first=skip_first)
    after, reports = rewritten(model)
    assert reports["SkipLayerNormFusion"].changes == 1
    assert reports["BiasSkipLayerNormFusion"].changes == int(bias)
    (node,) = (node for node in after.graph.node if node.op_type == "SkipLayerNormalization")
    assert list(node.output) == (["n", "", "", "total"] if read else ["n"])
    assert len(node.input) == (5 if bias else 4)
    metadata = {entry.key: entry.value for entry in node.metadata_props}
    assert metadata[RULE_KEY] == "SkipLayerNormFusion" + (",BiasSkipLayerNormFusion" if bias else "")
    assert set(metadata["sardonyx.sources"].split(",")) == {"norm", "residual", *(["bias_add"] if bias else [])}
    assert operators(after).count("Add") == (1 if read else 0)
    assert_agrees(model, after, {**X, **Z})


@pytest.mark.parametrize("read", [False, True])
def test_residual_and_rms_normalization_are_one_node(read: bool) -> None:
    model = _norm("pow", "div", "scale", centred=False, opset=17)
    nodes = [N("Add", ["x", "z"], ["total"]), *model.graph.node]
    for node in nodes[1:]:
        for index, name in enumerate(node.input):
            if name == "x":
                node.input[index] = "total"
    outputs = ["y"]
    if read:
        nodes.append(N("Relu", ["total"], ["other"]))
        outputs.append("other")
    whole = make_model(nodes, BOTH, outputs, CONSTANTS, opset=17)
    after, reports = rewritten(whole)
    assert reports["SkipSimplifiedLayerNormFusion"].changes == 1
    assert operators(after) == ["SkipSimplifiedLayerNormalization", *(["Relu"] if read else [])]
    assert_agrees(whole, after, {**X, **Z})


def test_a_sum_that_is_an_output_keeps_its_name() -> None:
    nodes = [N("Add", ["x", "z"], ["total"]), N("LayerNormalization", ["total", "scale", "bias"], ["y"])]
    model = make_model(nodes, BOTH, ["y", "total"], {name: CONSTANTS[name] for name in ("scale", "bias")})
    after, _ = rewritten(model)
    (node,) = after.graph.node
    assert list(node.output) == ["y", "", "", "total"]
    assert_agrees(model, after, {**X, **Z})


@pytest.mark.parametrize("table_first", [False, True])
def test_the_beginning_of_a_table_is_as_long_as_what_it_is_added_to(table_first: bool) -> None:
    """Other lengths than the sequence's fail in the sum, and in the node that takes its place."""
    nodes = [
        N("Shape", ["x"], ["length"], start=1, end=2),
        N("Slice", ["table", "zero", "length", "one"], ["rows"]),
        N("Add", ["rows", "x"] if table_first else ["x", "rows"], ["total"]),
        N("LayerNormalization", ["total", "scale"], ["y"]),
    ]
    numbers = {name: np.array([value]) for name, value in (("zero", 0), ("one", 1))}
    table = RNG.standard_normal((1, 6, 8)).astype(np.float32)
    constants = {"table": table, "scale": np.ones(8, np.float32), **numbers}
    model = make_model(nodes, {"x": [1, "m", 8]}, ["y"], constants, opset=17)
    after, _ = rewritten(model)
    assert "SkipLayerNormalization" in operators(after)
    assert_agrees(model, after, {"x": RNG.standard_normal((1, 5, 8)).astype(np.float32)})
    for one in (model, after):
        with pytest.raises(errors.OnnxRuntimeError):
            InferenceSession(one).run(None, {"x": np.ones((1, 7, 8), np.float32)})


@pytest.mark.parametrize(
    ("inputs", "attributes", "dtype", "reason"),
    [
        ({"x": ["n", "m", 8], "z": [1, "m", 8]}, {}, TensorProto.FLOAT, "of another shape"),
        ({"x": ["n", "m", 8], "z": ["n", "k", 8]}, {}, TensorProto.FLOAT, "of another shape"),
        ({"x": [2, 2, 5, 8], "z": [2, 2, 5, 8]}, {}, TensorProto.FLOAT, "not over rows"),
        ({"x": ["n", "m", 8], "z": ["n", "m", 8]}, {}, TensorProto.DOUBLE, "only single precision"),
        ({"x": [2, 1, 8], "z": [2, 1, 8]}, {"axis": 1}, TensorProto.FLOAT, "more than the last dimension"),
    ],
)
def test_residuals_that_stay_apart(inputs: dict[str, Any], attributes: dict[str, Any], dtype: int, reason: str) -> None:
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    scale = np.ones((1, 8) if attributes else 8, kind)
    nodes = [N("Add", ["x", "z"], ["total"]), N("LayerNormalization", ["total", "scale"], ["y"], **attributes)]
    model = make_model(nodes, inputs, ["y"], {"scale": scale}, dtype=dtype)
    after, reports = rewritten(model)
    assert operators(after) == ["Add", "LayerNormalization"]
    assert any(reason in text for text in reports["SkipLayerNormFusion"].declined)
    sizes = {"n": 2, "m": 5, "k": 5}
    feeds = {
        name: RNG.standard_normal([sizes.get(dim, dim) for dim in dims]).astype(kind) for name, dims in inputs.items()
    }
    assert_agrees(model, after, feeds)


def test_a_scale_that_is_computed_and_statistics_that_are_read_keep_them_apart() -> None:
    computed = [
        N("Add", ["x", "z"], ["total"]),
        N("ReduceMean", ["x"], ["row"], axes=[0, 1], keepdims=0),
        N("LayerNormalization", ["total", "row"], ["y"]),
    ]
    model = make_model(computed, BOTH, ["y"])
    after, reports = rewritten(model)
    assert "Add" in operators(after)
    assert any("its scale is computed" in text for text in reports["SkipLayerNormFusion"].declined)
    assert_agrees(model, after, {**X, **Z})
    read = [
        N("Add", ["x", "z"], ["total"]),
        N("LayerNormalization", ["total", "scale"], ["n", "mean"]),
        N("Sub", ["n", "mean"], ["y"]),
    ]
    model = make_model(read, BOTH, ["y"], {"scale": CONSTANTS["scale"]})
    after, reports = rewritten(model)
    assert "LayerNormalization" in operators(after)
    assert any("its statistics are read" in text for text in reports["SkipLayerNormFusion"].declined)
    assert_agrees(model, after, {**X, **Z})
