"""Quantisations that follow each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx.passes.base import Settings
from tests.passes.agreement import outputs_of, outputs_of_onnxruntime
from tests.passes.models import fused, make_model, operators, rewritten

N = helper.make_node
RNG = np.random.default_rng(22)
X = {"x": np.linspace(-3, 3, 48, dtype=np.float32).reshape(2, 24)}
SHAPE: dict[str, list[int | str]] = {"x": ["n", 24]}


def _double(zeros: tuple[int, int], scales: tuple[float, float], dtype: Any = np.uint8) -> onnx.ModelProto:
    nodes = [N("Neg", ["x"], ["a"])]
    value = "a"
    for place in (0, 1):
        nodes.append(N("QuantizeLinear", [value, f"scale{place}", f"zero{place}"], [f"q{place}"]))
        nodes.append(N("DequantizeLinear", [f"q{place}", f"scale{place}", f"zero{place}"], [f"d{place}"]))
        value = f"d{place}"
    nodes.append(N("Softplus", [value], ["y"]))
    constants = {f"scale{place}": np.array(scale, np.float32) for place, scale in enumerate(scales)}
    constants |= {f"zero{place}": np.array(zero, dtype) for place, zero in enumerate(zeros)}
    return make_model(nodes, SHAPE, ["y"], constants)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(("zeros", "scales"), [((100, 100), (0.02, 0.02)), ((100, 90), (0.02, 0.03))])
def test_two_quantisations_are_one_as_in_onnxruntime(zeros: Any, scales: Any, dtype: Any) -> None:
    model = _double(zeros, scales, dtype)
    after, reports = rewritten(model)
    assert reports["DoubleQDQPairsRemover"].changes == 1
    assert operators(after) == ["Neg", "QuantizeLinear", "DequantizeLinear", "Softplus"]
    ours = outputs_of(after, X)[0]
    ort = pytest.importorskip("onnxruntime")
    theirs = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, X)[0]
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    kept, _ = rewritten(model, disabled={"DoubleQDQPairsRemover", "QDQFinalCleanupTransformer"})
    assert operators(kept).count("QuantizeLinear") == 2


def test_ranges_without_common_numbers_stay() -> None:
    model = _double((0, 255), (0.01, 0.01))
    after, reports = rewritten(model)
    assert operators(after).count("QuantizeLinear") == 2
    assert any("nothing in common" in text for text in reports["DoubleQDQPairsRemover"].declined)


def test_a_result_that_is_read_elsewhere_keeps_both() -> None:
    model = _double((100, 90), (0.02, 0.03))
    model.graph.node.append(N("Relu", ["d0"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    after, _ = rewritten(model)
    assert operators(after).count("QuantizeLinear") == 2


def _again(other_zero: int) -> onnx.ModelProto:
    """Integers that are dequantised and quantised again."""
    nodes = [
        N("QuantizeLinear", ["x", "s", "z"], ["q"]),
        N("MaxPool", ["q"], ["p"], kernel_shape=[1]),
        N("DequantizeLinear", ["p", "s", "z"], ["d"]),
        N("QuantizeLinear", ["d", "s", "z2"], ["r"]),
        N("DequantizeLinear", ["r", "s", "z2"], ["y"]),
    ]
    constants = {
        "s": np.array(0.02, np.float32),
        "z": np.array(100, np.uint8),
        "z2": np.array(other_zero, np.uint8),
    }
    return make_model(nodes, {"x": [2, 4, 6]}, ["y"], constants)


def test_integers_that_are_quantised_again_in_the_same_way_are_kept() -> None:
    model, feeds = _again(100), {"x": X["x"].reshape(2, 4, 6)}
    after, reports = rewritten(model)
    assert reports["QDQFinalCleanupTransformer"].changes == 1
    assert operators(after).count("QuantizeLinear") == 1
    np.testing.assert_array_equal(outputs_of(after, feeds)[0], outputs_of(model, feeds)[0])
    other = _again(101)
    after, reports = rewritten(other)
    assert any("other parameters" in text for text in reports["QDQFinalCleanupTransformer"].declined)
    np.testing.assert_allclose(outputs_of(after, feeds)[0], outputs_of(other, feeds)[0], atol=1e-6)


def test_real_numbers_keep_what_a_quantisation_rounds_where_that_is_asked_for() -> None:
    nodes = [
        N("Softplus", ["x"], ["a"]),
        N("QuantizeLinear", ["a", "s", "z"], ["q"]),
        N("DequantizeLinear", ["q", "s", "z"], ["d"]),
        N("Softplus", ["d"], ["y"]),
    ]
    constants = {"s": np.array(0.1, np.float32), "z": np.array(100, np.uint8)}
    model = make_model(nodes, SHAPE, ["y"], constants)
    assert operators(rewritten(model)[0]) == [node.op_type for node in model.graph.node]
    after, _ = rewritten(model, settings=Settings(drops_quantization=True))
    assert operators(after) == ["Softplus", "Softplus"]
    wanted = np.log1p(np.exp(np.log1p(np.exp(X["x"].astype(np.float64)))))
    np.testing.assert_allclose(outputs_of(after, X)[0], wanted, rtol=1e-5)
    assert np.abs(outputs_of(model, X)[0] - wanted).max() > 1e-3


@pytest.mark.parametrize("block", [32, 64])
@pytest.mark.parametrize("scales", ["columns", "all"])
@pytest.mark.parametrize("zero", [True, False])
def test_weights_with_a_scale_for_a_column_are_taken_by_blocks(scales: str, zero: bool, block: int) -> None:
    rows, columns = 80, 24
    shape = (columns,) if scales == "columns" else ()
    scale = RNG.uniform(0.05, 0.2, shape).astype(np.float32)
    inputs = ["w", "s", "z"] if zero else ["w", "s"]
    nodes = [
        N("DequantizeLinear", inputs, ["d"], **({"axis": 1} if shape else {})),
        N("MatMul", ["x", "d"], ["y"]),
    ]
    model = make_model(nodes, {"x": ["n", rows]}, ["y"], {"s": scale}, opset=21)
    weights = RNG.integers(0, 16, (rows, columns)).astype(np.uint8)
    model.graph.initializer.append(_nibbles("w", weights))
    if zero:
        model.graph.initializer.append(_nibbles("z", np.full(shape, 7, np.uint8)))
    after, reports = rewritten(model, settings=Settings(packed_block=block))
    assert reports["DQMatMulToMatMulNBits"].changes == 1
    (node,) = (one for one in after.graph.node if one.op_type == "MatMulNBits")
    assert {a.name: a.i for a in node.attribute}["block_size"] == block
    feeds = {"x": RNG.standard_normal((3, rows)).astype(np.float32)}
    wanted = feeds["x"] @ ((weights.astype(np.float32) - (7 if zero else 0)) * scale)
    for found in (outputs_of(after, feeds)[0], outputs_of_onnxruntime(after, feeds)[0]):
        np.testing.assert_allclose(found, wanted, atol=0.02 * np.abs(wanted).max())  # rows are rounded to bytes


def _nibbles(name: str, array: np.ndarray[Any, Any]) -> onnx.TensorProto:
    return helper.make_tensor(name, TensorProto.UINT4, array.shape, array.reshape(-1).tolist())


def test_pairs_are_left_alone_in_models_that_are_saved() -> None:
    model = _double((100, 100), (0.02, 0.02))
    after, reports = fused(model)
    assert "DoubleQDQPairsRemover" not in reports
    assert operators(after) == [node.op_type for node in model.graph.node]
