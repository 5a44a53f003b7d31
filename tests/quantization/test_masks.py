"""Masks of attention, which 8 bits cannot hold beside scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
from tests.quantization.qdq.pairs import quantizer
from tests.quantization.quantizing import model, node, ranges_of, run
from tests.quantization.quantizing import quantizer as integer_quantizer

RNG = np.random.default_rng(8)
FEEDS = {
    "x": RNG.standard_normal((2, 6, 8)).astype(np.float32),
    "known": np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], np.float32).reshape(2, 1, 6),
}


def _attention(lowest: float) -> onnx.ModelProto:
    """Scores of x with itself, masked by lowest * (1 - known), Softmax, and a product with x."""
    nodes = [
        node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["x", "turned"], ["scores"]),
        node("Sub", ["one", "known"], ["unknown"]),
        node("Mul", ["unknown", "lowest"], ["mask"]),
        node("Add", ["scores", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["shares"], axis=-1),
        node("MatMul", ["shares", "x"], ["mixed"]),
        node("MatMul", ["mixed", "w"], ["y"]),
    ]
    constants = {
        "one": np.array(1, np.float32),
        "lowest": np.array(lowest, np.float32),
        "w": RNG.standard_normal((8, 8)).astype(np.float32),
    }
    return model(nodes, {"x": [2, 6, 8], "known": [2, 1, 6]}, ["y"], constants)


@pytest.mark.parametrize("lowest", [-1e4, -65504.0, float(np.finfo(np.float32).min)])
def test_masks_of_attention_stay_float(lowest: float) -> None:
    proto = _attention(lowest)
    exact = run(proto, FEEDS)[0]
    made = quantizer(proto, FEEDS)
    ours = run(made.quantize_model(), FEEDS)[0]
    assert np.abs(ours - exact).max() < 0.03 * np.abs(exact).max()
    assert any("mask" in note for note in made.report.notes)
    known = quantizer(proto, FEEDS, OrtCompatible=True)
    assert np.abs(run(known.quantize_model(), FEEDS)[0] - exact).max() > 0.1 * np.abs(exact).max()


def test_integer_operators_leave_masks_as_well() -> None:
    proto = _attention(-1e4)
    exact = run(proto, FEEDS)[0]
    made = integer_quantizer(proto, ranges=ranges_of(proto, FEEDS))
    ours = run(made.quantize_model(), FEEDS)[0]
    assert np.abs(ours - exact).max() < 0.03 * np.abs(exact).max()


@pytest.mark.parametrize("form", list(QuantFormat))
@pytest.mark.parametrize("method", [CalibrationMethod.MinMax, CalibrationMethod.Entropy, CalibrationMethod.Percentile])
def test_infinite_masks_stay_float(tmp_path: Path, form: QuantFormat, method: CalibrationMethod) -> None:
    proto = _attention(0)
    del proto.graph.node[2:5]
    proto.graph.node.insert(2, node("Where", ["known", "scores", "lowest"], ["masked"]))
    next(one for one in proto.graph.input if one.name == "known").type.tensor_type.elem_type = onnx.TensorProto.BOOL
    next(one for one in proto.graph.initializer if one.name == "lowest").CopyFrom(
        onnx.numpy_helper.from_array(np.array(-np.inf, np.float32), "lowest")
    )
    feeds = {**FEEDS, "known": FEEDS["known"].astype(bool)}
    exact, target = run(proto, feeds)[0], tmp_path / "quantised.onnx"
    quantize_static(proto, target, [feeds], form, activation_type=QuantType.QUInt8, calibrate_method=method)
    ours = run(onnx.load(target), feeds)[0]
    assert np.abs(ours - exact).max() < 0.05 * np.abs(exact).max()


def test_scores_without_a_mask_are_stored() -> None:
    proto = _attention(-30.0)
    made = quantizer(proto, FEEDS)
    kinds = [one.op_type for one in made.quantize_model().graph.node]
    assert kinds.count("QuantizeLinear") >= 8
    assert not made.report.notes
