"""Relu and Clip between operators of integers: they go only where storing clamps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx.quantization.quant_utils import QuantType
from tests.quantization.quantizing import (
    Range,
    constants,
    model,
    node,
    operators,
    quantized,
    ranges_of,
    run,
    run_peer,
)

U8, S8 = QuantType.QUInt8, QuantType.QInt8


def _floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


FEEDS = {"x": _floats(2, 3, 6, 6)}
WEIGHT = {"w": _floats(4, 3, 1, 1)}


def _model(nodes: list[onnx.NodeProto], outputs: list[str], more: Mapping[str, Any] | None = None) -> onnx.ModelProto:
    return model([node("Conv", ["x", "w"], ["c"]), *nodes], {"x": [2, 3, 6, 6]}, outputs, {**WEIGHT, **(more or {})})


def _check(proto: onnx.ModelProto, made: onnx.ModelProto, quanta: float = 2.0) -> None:
    scale = max(float(array) for name, array in constants(made).items() if name.endswith("_scale") and not array.ndim)
    exact = run(proto, FEEDS)
    for outputs in (run(made, FEEDS), run_peer(made, FEEDS)):
        for one, other in zip(outputs, exact, strict=True):
            np.testing.assert_allclose(one, other, atol=quanta * scale)


@pytest.mark.parametrize("activations", [U8, S8])
def test_relu_after_a_conv_goes(activations: QuantType) -> None:
    proto = _model([node("Relu", ["c"], ["y"])], ["y"])
    made = quantized(proto, ranges=ranges_of(proto, FEEDS), activation_type=activations)
    assert operators(made) == ["QuantizeLinear", "QLinearConv", "DequantizeLinear"]
    assert run(made, FEEDS)[0].min() == 0
    _check(proto, made)


@pytest.mark.parametrize(
    "between",
    [
        node("MaxPool", ["c"], ["m"], kernel_shape=[2, 2]),
        node("Transpose", ["c"], ["m"], perm=[0, 2, 3, 1]),
        node("Reshape", ["c", "shape"], ["m"]),
        node("Pad", ["c", "pads"], ["m"]),
        node("Resize", ["c", "", "scales"], ["m"], mode="nearest"),
        node("Split", ["c"], ["m", "other"], axis=1),
    ],
    ids=lambda one: one.op_type,
)
def test_relu_after_an_operator_that_gives_what_it_reads(between: onnx.NodeProto) -> None:
    more = {
        "shape": np.array([2, -1]),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    used = {name: array for name, array in more.items() if name in between.input}
    outputs = ["y", "other"] if "other" in between.output else ["y"]
    proto = _model([between, node("Relu", ["m"], ["y"])], outputs, used)
    made = quantized(proto, ranges=ranges_of(proto, FEEDS))
    assert "Relu" not in operators(made)
    assert "Clip" in operators(made)
    assert run(made, FEEDS)[0].min() == 0
    _check(proto, made)


def test_relu_beside_another_reader() -> None:
    proto = _model([node("Relu", ["c"], ["y"]), node("Sigmoid", ["c"], ["z"])], ["y", "z"])
    made = quantized(proto, ranges=ranges_of(proto, FEEDS))
    assert "Clip" in operators(made)
    assert run(made, FEEDS)[0].min() == 0
    _check(proto, made)


def test_relu_of_a_conv_that_is_an_output() -> None:
    proto = _model([node("Relu", ["c"], ["y"])], ["y", "c"])
    made = quantized(proto, ranges=ranges_of(proto, FEEDS))
    exact, outputs = run(proto, FEEDS), run(made, FEEDS)
    assert outputs[1].min() < -1
    assert outputs[0].min() == 0
    _check(proto, made)
    assert exact[1].min() < -1


@pytest.mark.parametrize("activations", [U8, S8])
@pytest.mark.parametrize("low", [-1.0, 0.0, 0.2])
@pytest.mark.parametrize("high", [1.0, 6.0, 100.0])
def test_clip_is_kept_where_storing_does_not_clamp(activations: QuantType, low: float, high: float) -> None:
    bounds = {"low": np.float32(low), "high": np.float32(high)}
    proto = _model([node("Clip", ["c", "low", "high"], ["y"])], ["y"], bounds)
    made = quantized(proto, ranges=ranges_of(proto, FEEDS), activation_type=activations)
    assert ("Clip" in operators(made)) == (low == 0.2)
    _check(proto, made)
    half = float(constants(made)["c_scale"]) * 0.51
    assert run(made, FEEDS)[0].min() >= low - half
    assert run(made, FEEDS)[0].max() <= high + half


def test_clip_whose_bounds_are_the_wrong_way_round() -> None:
    proto = _model([node("Clip", ["c", "low", "high"], ["y"])], ["y"], {"low": np.float32(1), "high": np.float32(0.5)})
    made = quantized(proto, ranges=ranges_of(proto, FEEDS))
    _check(proto, made)


def test_clip_whose_bound_is_an_input_stays() -> None:
    proto = model(
        [node("Conv", ["x", "w"], ["c"]), node("Clip", ["c", "", "high"], ["y"])],
        {"x": [2, 3, 6, 6], "high": []},
        ["y"],
        WEIGHT,
    )
    feeds = {**FEEDS, "high": np.array(0.5, np.float32)}
    made = quantized(proto, ranges=ranges_of(proto, feeds))
    assert operators(made)[-1] == "Clip"
    assert run(made, feeds)[0].max() == np.float32(0.5)


def test_symmetric_activations_clamp_nothing() -> None:
    proto = _model([node("Relu", ["c"], ["y"])], ["y"])
    made = quantized(proto, ranges=ranges_of(proto, FEEDS), ActivationSymmetric=True)
    assert "Clip" in operators(made)
    assert run(made, FEEDS)[0].min() == 0
    _check(proto, made)


def test_excluded_relu_stays() -> None:
    proto = _model([node("Relu", ["c"], ["y"])], ["y"])
    made = quantized(proto, ranges=ranges_of(proto, FEEDS), exclude=["Relu_y"])
    assert operators(made) == ["QuantizeLinear", "QLinearConv", "DequantizeLinear", "Relu"]
    _check(proto, made)


def test_opset_without_clip_of_integers() -> None:
    proto = model(
        [node("Conv", ["x", "w"], ["c"]), node("Transpose", ["c"], ["m"]), node("Relu", ["m"], ["y"])],
        {"x": [2, 3, 6, 6]},
        ["y"],
        WEIGHT,
        opset=11,
    )
    made = quantized(proto, ranges=ranges_of(proto, FEEDS))
    assert operators(made)[-1] == "Relu"
    _check(proto, made)


def test_known_tool_is_followed_where_asked() -> None:
    """What ONNX Runtime's tool does: the Relu is gone, and numbers below zero come out."""
    proto = _model([node("Transpose", ["c"], ["m"]), node("Relu", ["m"], ["y"])], ["y"])
    made = quantized(proto, ranges=ranges_of(proto, FEEDS), OrtCompatible=True)
    assert operators(made) == ["QuantizeLinear", "QLinearConv", "Transpose", "DequantizeLinear"]
    assert run(made, FEEDS)[0].min() < 0


def test_range_of_the_relu_is_that_of_the_conv() -> None:
    proto = _model([node("Relu", ["c"], ["y"])], ["y"])
    made = quantized(proto, ranges={**ranges_of(proto, FEEDS), "y": Range(np.float32(0), np.float32(5.1))})
    assert constants(made)["c_scale"] == np.float32(5.1 / 255)
    assert constants(made)["c_zero_point"] == 0
