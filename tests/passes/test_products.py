"""Matrix products: Gemm of rows, joint projections, transpositions and factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from sardonyx.graph.computed_tensor import JoinedTensor
from sardonyx.passes import pipeline
from sardonyx.passes.base import Level
from sardonyx.passes.rule import RULE_KEY, SOURCES_KEY
from tests.passes.agreement import assert_agrees
from tests.passes.models import make_model, operators, rewritten

RNG = np.random.default_rng(15)
N = helper.make_node


def random(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


X = {"x": random(2, 5, 8)}
SHAPE: dict[str, list[int | str]] = {"x": ["n", "m", 8]}


def _gemm(bias: np.ndarray[Any, Any] | None, back: list[str], trans_b: int = 0, **attributes: Any) -> onnx.ModelProto:
    """Linear layers as GPT-2's exporter writes them: rows, Gemm, and the first dimensions again."""
    nodes = [
        N("Shape", ["x"], ["s"]),
        N("Gather", ["s", "zero"], ["batch"], axis=0),
        N("Gather", ["s", "one"], ["length"], axis=0),
        N("Reshape", ["x", "rows"], ["a"]),
        N("Gemm", ["a", "w", *([] if bias is None else ["b"])], ["g"], name="gemm", transB=trans_b, **attributes),
        N("Concat", back, ["target"], axis=0),
        N("Reshape", ["g", "target"], ["y"], name="back"),
    ]
    constants = {
        "zero": np.array([0]),
        "one": np.array([1]),
        "six": np.array([6]),
        "rows": np.array([-1, 8]),
        "w": random(6, 8) if trans_b else random(8, 6),
    }
    if bias is not None:
        constants["b"] = bias
    return make_model(nodes, SHAPE, ["y"], constants)


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, random(6), random(1, 6)])
def test_gemm_of_rows_is_a_product_of_the_tensor(bias: np.ndarray[Any, Any] | None, trans_b: int) -> None:
    model = _gemm(bias, ["batch", "length", "six"], trans_b)
    after, reports = rewritten(model)
    assert operators(after) == ["MatMul"] + ([] if bias is None else ["Add"])
    assert reports["GemmReshapeFusion"].changes == 1
    for node in after.graph.node:
        metadata = {entry.key: entry.value for entry in node.metadata_props}
        assert metadata[RULE_KEY] == "GemmReshapeFusion"
        assert "gemm" in metadata[SOURCES_KEY]
    assert len(after.graph.initializer) == (1 if bias is None else 2)
    assert_agrees(model, after, X)
    assert_agrees(model, after, {"x": random(0, 5, 8)})


@pytest.mark.parametrize(
    ("bias", "back", "attributes", "reason"),
    [
        (random(6), ["length", "batch", "six"], {}, "does not bring back"),
        (random(6), ["batch", "length", "six"], {"alpha": 0.5}, "scaled"),
        (random(6), ["batch", "length", "six"], {"beta": 0.5}, "scaled"),
        (random(1), ["batch", "length", "six"], {}, "its bias is not one row"),
    ],
)
def test_a_gemm_that_is_more_than_a_linear_layer_stays(
    bias: np.ndarray[Any, Any], back: list[str], attributes: dict[str, Any], reason: str
) -> None:
    model = _gemm(bias, back, **attributes)
    after, reports = rewritten(model)
    assert "Gemm" in operators(after)
    assert any(reason in text for text in reports["GemmReshapeFusion"].declined)
    assert_agrees(model, after, X)


def test_a_transposed_weight_with_two_readers_is_not_doubled() -> None:
    model = _gemm(None, ["batch", "length", "six"], trans_b=1)
    model.graph.node.append(N("Relu", ["w"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [6, 8]))
    after, reports = rewritten(model)
    assert "Gemm" in operators(after)
    assert any("would be there twice" in text for text in reports["GemmReshapeFusion"].declined)
    assert_agrees(model, after, X)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("bias", [None, random(16)])
def test_a_product_of_rows_takes_the_tensor(bias: np.ndarray[Any, Any] | None, compressed: bool) -> None:
    """MatMul, and MatMulNBits with 4 bits in blocks of 16, as quantising a linear layer of GPT-2 leaves it."""
    constants: dict[str, np.ndarray[Any, Any]] = {
        "rows": np.array([-1, 16]),
        "zero": np.array([0]),
        "two": np.array([2]),
    }
    if compressed:
        constants["w"] = RNG.integers(0, 256, (16, 1, 8)).astype(np.uint8)
        constants["scales"] = np.abs(random(16))
        product = N(
            "MatMulNBits", ["a", "w", "scales"], ["p"], domain="com.microsoft", K=16, N=16, bits=4, block_size=16
        )
    else:
        constants["w"] = random(16, 16)
        product = N("MatMul", ["a", "w"], ["p"])
    if bias is not None:
        constants["b"] = bias
    nodes = [
        N("Shape", ["x"], ["s"]),
        N("Slice", ["s", "zero", "two"], ["lead"]),
        N("Concat", ["lead", "sixteen"], ["target"], axis=0),
        N("Reshape", ["x", "rows"], ["a"]),
        product,
        *([] if bias is None else [N("Add", ["b", "p"], ["q"])]),
        N("Reshape", ["p" if bias is None else "q", "target"], ["y"]),
    ]
    constants["sixteen"] = np.array([16])
    model = make_model(nodes, {"x": ["n", "m", 16]}, [], constants)
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b", "c"]))
    after, reports = rewritten(model)
    assert operators(after) == [product.op_type, *([] if bias is None else ["Add"])]
    assert reports["MatMulReshapeFusion"].changes == 1
    assert_agrees(model, after, {"x": random(2, 5, 16)}, rtol=1e-4, atol=1e-4)


def test_a_product_of_rows_that_go_elsewhere_keeps_its_reshapes() -> None:
    nodes = [N("Reshape", ["x", "rows"], ["a"]), N("MatMul", ["a", "w"], ["p"]), N("Reshape", ["p", "target"], ["y"])]
    constants = {"rows": np.array([-1, 8]), "w": random(8, 6), "target": np.array([5, -1, 6])}
    model = make_model(nodes, SHAPE, ["y"], constants)
    after, reports = rewritten(model)
    assert operators(after) == ["Reshape", "MatMul", "Reshape"]
    assert any("does not bring back" in text for text in reports["MatMulReshapeFusion"].declined)
    assert_agrees(model, after, X)


def _attention(
    biases: tuple[bool, bool, bool] = (True, True, True),
    *,
    sources: tuple[str, str, str] = ("x", "x", "x"),
    extra: list[onnx.NodeProto] | None = None,
    outputs: tuple[str, ...] = ("y",),
    opset: int = 17,
    width: int = 4,
    constants: dict[str, np.ndarray[Any, Any]] | None = None,
) -> onnx.ModelProto:
    nodes = []
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    operands = []
    for letter, biased, source in zip("qkv", biases, sources, strict=True):
        arrays[f"w{letter}"] = random(8, 8 if letter != "v" else width * 2)
        nodes.append(N("MatMul", [source, f"w{letter}"], [f"{letter}p"], name=f"{letter}_product"))
        operands.append(f"{letter}p")
        if biased:
            arrays[f"b{letter}"] = random(arrays[f"w{letter}"].shape[1])
            nodes.append(N("Add", [f"b{letter}", f"{letter}p"], [f"{letter}s"], name=f"{letter}_sum"))
            operands[-1] = f"{letter}s"
    nodes.append(N("MultiHeadAttention", operands, ["y"], domain="com.microsoft", num_heads=2, name="attention"))
    inputs: dict[str, list[int | str]] = {**SHAPE} | ({"z": ["n", "m", 8]} if "z" in sources else {})
    model = make_model([*nodes, *(extra or [])], inputs, [], {**arrays, **(constants or {})}, opset=opset)
    for name in outputs:
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["a", "b", "c"]))
    return model


@pytest.mark.parametrize("opset", [12, 17, 18])
@pytest.mark.parametrize("biases", [(True, True, True), (True, False, True), (False, False, False)])
@pytest.mark.parametrize("width", [4, 6])
def test_projections_of_one_input_are_one_product(biases: tuple[bool, bool, bool], opset: int, width: int) -> None:
    model = _attention(biases, opset=opset, width=width)
    after, reports = rewritten(model)
    assert reports["QKVProjectionFusion"].changes == 1
    assert operators(after) == ["MatMul", *(["Add"] if any(biases) else []), "Split", "MultiHeadAttention"]
    names = {constant.name for constant in after.graph.initializer}
    assert not names & {"wq", "wk", "wv", "bq", "bk", "bv"}
    metadata = {entry.key: entry.value for entry in after.graph.node[0].metadata_props}
    assert metadata[RULE_KEY] == "QKVProjectionFusion"
    assert set(metadata[SOURCES_KEY].split(",")) >= {"q_product", "k_product", "v_product"}
    assert_agrees(model, after, X)


def test_projections_are_found_behind_heads_and_factors() -> None:
    constants: dict[str, np.ndarray[Any, Any]] = {"heads": np.array([0, 0, 2, 4]), "two": np.array(2, np.float32)}
    nodes = []
    for letter in "qkv":
        constants[f"w{letter}"] = random(8, 8)
        nodes.append(N("MatMul", ["x", f"w{letter}"], [f"{letter}p"]))
        nodes.append(N("Mul", [f"{letter}p", "two"], [f"{letter}m"]))
        nodes.append(N("Reshape", [f"{letter}m", "heads"], [f"{letter}h"]))
        nodes.append(N("Transpose", [f"{letter}h"], [f"{letter}t"], perm=[0, 2, 1, 3]))
    nodes += [N("Attention", ["qt", "kt", "vt"], ["a"], is_causal=1), N("Relu", ["a"], ["y"])]
    model = make_model(nodes, SHAPE, ["y"], constants, opset=23)
    after, reports = rewritten(model)
    assert reports["QKVProjectionFusion"].changes == 1
    assert operators(after).count("MatMul") == 1
    assert_agrees(model, after, X)


def test_a_projection_that_others_read_is_read_from_the_joint_one() -> None:
    model = _attention(extra=[N("Relu", ["qs"], ["r"])], outputs=("y", "r", "ks"))
    after, reports = rewritten(model)
    assert reports["QKVProjectionFusion"].changes == 1
    assert operators(after).count("MatMul") == 1
    assert_agrees(model, after, X)


def test_keys_and_values_of_another_sequence_are_joined_without_the_queries() -> None:
    model = _attention(sources=("x", "z", "z"))
    after, reports = rewritten(model)
    assert reports["QKVProjectionFusion"].changes == 1
    assert operators(after).count("MatMul") == 2
    assert operators(after).count("Split") == 1
    assert_agrees(model, after, {**X, "z": random(2, 5, 8)})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"extra": [N("Relu", ["wq"], ["r"])], "outputs": ("y",)}, "a weight is read elsewhere too"),
        ({"constants": {"bq": random(1)}}, "a bias is not one row"),
        ({"extra": [N("Relu", ["qp"], ["r"])], "outputs": ("y", "r")}, "the result of MatMul is read elsewhere"),
    ],
)
def test_projections_that_stay_apart(changes: dict[str, Any], reason: str) -> None:
    model = _attention(**changes)
    if "constants" in changes:
        for constant in [one for one in model.graph.initializer if one.name == "bq"][:1]:
            constant.CopyFrom(onnx.numpy_helper.from_array(changes["constants"]["bq"], "bq"))
    after, reports = rewritten(model, disabled=["ConstantFolding", "RemoveUnused", "RemoveUnusedShapes"])
    assert reports["QKVProjectionFusion"].changes == 0
    assert any(reason in text for text in reports["QKVProjectionFusion"].declined)
    assert operators(after).count("MatMul") == 3
    assert_agrees(model, after, X)


def test_the_joint_weight_is_put_together_when_it_is_read() -> None:
    loaded = ir.from_proto(_attention())
    pipeline.apply(loaded, Level.ALL)
    (product,) = (node for node in loaded.graph if node.op_type == "MatMul")
    assert product.inputs[1] is not None
    tensor = product.inputs[1].const_value
    assert isinstance(tensor, JoinedTensor)
    assert [part.name for part in tensor.parts] == ["wq", "wk", "wv"]
    assert tuple(tensor.shape) == (8, 24)
    np.testing.assert_array_equal(tensor.numpy(), np.concatenate([part.numpy() for part in tensor.parts], axis=1))
    assert tensor.tobytes() == tensor.numpy().tobytes()
    assert tensor.nbytes == 8 * 24 * 4


def test_tensors_that_do_not_fit_side_by_side_are_refused() -> None:
    a = ir.Tensor(random(2, 3), name="a")
    for other in (ir.Tensor(random(3, 3), name="b"), ir.Tensor(random(2, 3).astype(np.float64), name="b")):
        with pytest.raises(ValueError, match="whole"):
            JoinedTensor([a, other], "whole")


PRODUCT_INPUTS: dict[str, list[int | str]] = {"x": ["n", 2, "m", 8], "z": ["n", 2, "k", 8]}
PRODUCT_FEEDS = {"x": random(2, 2, 5, 8), "z": random(2, 2, 4, 8)}


def test_a_transposed_operand_is_an_attribute_of_the_product() -> None:
    for nodes, attribute in (
        ([N("Transpose", ["z"], ["t"], perm=[0, 1, 3, 2]), N("MatMul", ["x", "t"], ["y"])], "transB"),
        (
            [N("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]), N("MatMul", ["t", "x"], ["y"])],
            "transA",
        ),
    ):
        model = make_model(nodes, PRODUCT_INPUTS, ["y"])
        after, reports = rewritten(model)
        (node,) = after.graph.node
        assert (node.op_type, node.domain) == ("FusedMatMul", "com.microsoft")
        assert {one.name: one.i for one in node.attribute} == {attribute: 1}
        assert reports["MatmulTransposeFusion"].changes == 1
        assert_agrees(model, after, PRODUCT_FEEDS)


def test_both_operands_and_a_factor_join_one_product() -> None:
    nodes = [
        N("Transpose", ["x"], ["a"], perm=[0, 1, 3, 2]),
        N("Transpose", ["z"], ["b"], perm=[0, 1, 3, 2]),
        N("Transpose", ["b"], ["c"], perm=[0, 1, 3, 2]),
        N("Mul", ["x", "eighth"], ["scaled"]),
        N("Transpose", ["c"], ["d"], perm=[0, 1, 3, 2]),
        N("MatMul", ["scaled", "d"], ["p"]),
        N("Div", ["p", "two"], ["y"]),
    ]
    constants = {"eighth": np.array(0.125, np.float32), "two": np.array([2], np.float32)}
    model = make_model(nodes, PRODUCT_INPUTS, ["y"], constants)
    after, _ = rewritten(model)
    (node,) = after.graph.node
    attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    assert attributes["transB"] == 1
    assert attributes["alpha"] == pytest.approx(0.0625)
    assert "transA" not in attributes
    assert_agrees(model, after, PRODUCT_FEEDS)


@pytest.mark.parametrize("place", ["left", "right", "result"])
@pytest.mark.parametrize("kind", ["Mul", "Div"])
def test_a_factor_of_an_operand_or_the_result(place: str, kind: str) -> None:
    transposed = [N("Transpose", ["z"], ["t"], perm=[0, 1, 3, 2])]
    nodes = {
        "left": [N(kind, ["x", "c"], ["s"]), N("MatMul", ["s", "t"], ["y"])],
        "right": [N(kind, ["t", "c"], ["s"]), N("MatMul", ["x", "s"], ["y"])],
        "result": [N("MatMul", ["x", "t"], ["s"]), N(kind, ["s", "c"], ["y"])],
    }[place]
    model = make_model([*transposed, *nodes], PRODUCT_INPUTS, ["y"], {"c": np.array(3, np.float32)})
    after, reports = rewritten(model)
    assert reports["MatMulScaleFusion"].changes == 1
    assert {"Mul", "Div"}.isdisjoint(operators(after))
    assert_agrees(model, after, PRODUCT_FEEDS)
    assert "FusedMatMul" not in operators(rewritten(model, Level.BASIC)[0])


@pytest.mark.parametrize("kind", ["Mul", "Div"])
def test_a_factor_of_a_matrix_times_itself_counts_twice(kind: str) -> None:
    nodes = [
        N(kind, ["x", "c"], ["s"]),
        N("Transpose", ["s"], ["t"], perm=[0, 1, 3, 2]),
        N("MatMul", ["s", "t"], ["y"]),
    ]
    model = make_model(nodes, {"x": PRODUCT_INPUTS["x"]}, ["y"], {"c": np.array(3, np.float32)})
    after, _ = rewritten(model)
    assert operators(after) == ["FusedMatMul"]
    assert_agrees(model, after, {"x": PRODUCT_FEEDS["x"]})


def test_a_factor_too_small_for_an_attribute_stays() -> None:
    nodes = [N("MatMul", ["x", "w"], ["s"]), N("Mul", ["s", "c"], ["y"])]
    constants = {"w": np.full((2, 3), 1e300), "c": np.array(1e-300)}
    model = make_model(nodes, {"x": [4, 2]}, ["y"], constants, dtype=TensorProto.DOUBLE)
    after, reports = rewritten(model)
    assert any("too small" in text for text in reports["MatMulScaleFusion"].declined)
    assert_agrees(model, after, {"x": np.ones((4, 2))})


@pytest.mark.parametrize(
    ("nodes", "constants", "rule", "reason"),
    [
        (
            [N("Transpose", ["z"], ["t"], perm=[0, 3, 1, 2]), N("MatMul", ["w", "t"], ["y"])],
            {"w": random(2, 2)},
            "MatmulTransposeFusion",
            "it moves other axes",
        ),
        (
            [N("Transpose", ["z"], ["t"], perm=[0, 1, 3, 2]), N("MatMul", ["w", "t"], ["y"])],
            {"w": random(8)},
            "MatmulTransposeFusion",
            "the other operand is no matrix",
        ),
        (
            [N("Mul", ["x", "c"], ["s"]), N("MatMul", ["s", "w"], ["y"])],
            {"w": random(8), "c": np.array(2, np.float32)},
            "MatMulScaleFusion",
            "an operand is no matrix",
        ),
        (
            [N("MatMul", ["x", "w"], ["s"]), N("Div", ["s", "c"], ["y"])],
            {"w": random(8, 3), "c": np.array(0, np.float32)},
            "MatMulScaleFusion",
            "it divides by zero",
        ),
        (
            [N("MatMul", ["x", "w"], ["s"]), N("Mul", ["s", "c"], ["y"])],
            {"w": random(8, 3), "c": np.full((1, 1, 1, 1, 1), 2, np.float32)},
            "MatMulScaleFusion",
            "more dimensions",
        ),
        (
            [
                N("Mul", ["x", "c"], ["s"]),
                N("MatMul", ["s", "w"], ["m"]),
                N("Relu", ["s"], ["r"]),
                N("Add", ["m", "r"], ["y"]),
            ],
            {"w": random(8, 8), "c": np.array(2, np.float32)},
            "MatMulScaleFusion",
            "read elsewhere",
        ),
    ],
)
def test_products_that_stay_as_they_are(
    nodes: list[onnx.NodeProto], constants: dict[str, Any], rule: str, reason: str
) -> None:
    inputs = {name: dims for name, dims in PRODUCT_INPUTS.items() if any(name in node.input for node in nodes)}
    model = make_model(nodes, inputs, ["y"], constants)
    after, reports = rewritten(model)
    assert "FusedMatMul" not in operators(after)
    assert any(reason in text for text in reports[rule].declined)
    feeds = {name: PRODUCT_FEEDS[name] for name in inputs}
    if reason != "it divides by zero":
        assert_agrees(model, after, feeds)


def test_a_vector_of_factors_is_no_factor() -> None:
    nodes = [N("MatMul", ["x", "w"], ["s"]), N("Mul", ["s", "c"], ["y"])]
    model = make_model(nodes, {"x": PRODUCT_INPUTS["x"]}, ["y"], {"w": random(8, 3), "c": random(3)})
    after, reports = rewritten(model)
    assert operators(after) == ["MatMul", "Mul"]
    assert reports["MatMulScaleFusion"].declined == ()
    assert_agrees(model, after, {"x": PRODUCT_FEEDS["x"]})
