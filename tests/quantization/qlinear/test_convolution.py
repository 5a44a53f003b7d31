"""QLinearConv."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.quantization.quant_utils import QuantType
from sardonyx.quantization.refusal import InvalidQuantization
from tests.quantization.quantizing import (
    constants,
    model,
    node,
    operators,
    quantized,
    quantizer,
    ranges_of,
    requantized,
    run,
    run_peer,
    stored,
)

U8, S8 = QuantType.QUInt8, QuantType.QInt8


def _floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def _conv(weight: np.ndarray, bias: np.ndarray | None) -> tuple:
    given = {"w": weight} if bias is None else {"w": weight, "b": bias}
    proto = model([node("Conv", ["x", *given], ["y"])], {"x": [2, 3, 6, 5]}, ["y"], given)
    return proto, {"x": _floats(2, 3, 6, 5)}


@pytest.mark.parametrize(("activations", "weights"), [(U8, S8), (U8, U8), (S8, S8)])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_conv_is_exact(
    activations: QuantType, weights: QuantType, per_channel: bool, symmetric: bool, has_bias: bool
) -> None:
    weight = _floats(5, 3, 1, 1) * np.linspace(0.1, 2, 5, dtype=np.float32)[:, None, None, None]
    bias = _floats(5) if has_bias else None
    proto, feeds = _conv(weight, bias)
    made = quantized(
        proto,
        ranges=ranges_of(proto, feeds),
        weight_type=weights,
        activation_type=activations,
        per_channel=per_channel,
        ActivationSymmetric=symmetric,
    )
    assert operators(made) == ["QuantizeLinear", "QLinearConv", "DequantizeLinear"]
    kept = constants(made)
    kind = np.uint8 if activations is U8 else np.int8
    assert kept["w_quantized"].dtype == (np.uint8 if weights is U8 else np.int8)
    assert kept["w_scale"].shape == ((5,) if per_channel else ())
    numbers = stored(feeds["x"], kept["x_scale"], int(kept["x_zero_point"]), kind) - int(kept["x_zero_point"])
    zero_point = np.broadcast_to(kept["w_zero_point"].astype(np.int64), 5)[:, None]
    matrix = kept["w_quantized"].astype(np.int64)[:, :, 0, 0] - zero_point
    sums = np.einsum("oc,nchw->nohw", matrix, numbers)
    if has_bias:
        sums = sums + kept["b_quantized"].astype(np.int64)[:, None, None]
        scale = kept["x_scale"].astype(np.float64) * kept["w_scale"]
        assert np.abs(kept["b_quantized"] * scale - bias).max() <= scale.max() * 0.51
    scale = np.broadcast_to(kept["x_scale"].astype(np.float64) * kept["w_scale"], 5)[:, None, None]
    expected, sure = requantized(sums * scale / kept["y_scale"], int(kept["y_zero_point"]), kind)
    assert sure.mean() > 0.95
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        found = np.rint(outputs[0] / kept["y_scale"]).astype(np.int64) + int(kept["y_zero_point"])
        np.testing.assert_array_equal(found[sure], expected[sure])


@pytest.mark.parametrize("weights", [U8, S8])
@pytest.mark.parametrize("per_channel", [False, True])
def test_bias_beyond_int32_raises_the_scale_of_the_weight(weights: QuantType, per_channel: bool) -> None:
    weight = _floats(4, 3, 1, 1) * np.float32(1e-6)
    bias = np.array([5, -3, 0.5, 1000], np.float32)
    proto = model([node("Conv", ["x", "w", "b"], ["y"])], {"x": [1, 3, 4, 4]}, ["y"], {"w": weight, "b": bias})
    feeds = {"x": _floats(1, 3, 4, 4) * np.float32(1e-3)}
    made = quantizer(proto, ranges=ranges_of(proto, feeds), weight_type=weights, per_channel=per_channel)
    result = made.quantize_model()
    kept = constants(result)
    assert (np.abs(kept["b_quantized"].astype(np.int64)) < 2**31 - 1).all()
    (exact,) = run(proto, feeds)
    for outputs in (run(result, feeds), run_peer(result, feeds)):
        np.testing.assert_allclose(outputs[0], exact, atol=kept["y_scale"] * 0.6)
    assert any("bias 'b' fits int32" in line for line in made.report.lines())


def test_two_convs_of_one_weight_whose_biases_differ() -> None:
    weight = _floats(4, 3, 1, 1) * np.float32(1e-6)
    biases = {"small": np.full(4, 1e-9, np.float32), "large": np.array([5, -3, 0.5, 1000], np.float32)}
    proto = model(
        [node("Conv", ["x", "w", "small"], ["y"]), node("Conv", ["x", "w", "large"], ["z"])],
        {"x": [1, 3, 4, 4]},
        ["y", "z"],
        {"w": weight, **biases},
    )
    feeds = {"x": _floats(1, 3, 4, 4) * np.float32(1e-3)}
    made = quantized(proto, ranges=ranges_of(proto, feeds))
    exact, kept = run(proto, feeds), constants(made)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        np.testing.assert_allclose(outputs[0], exact[0], atol=kept["y_scale"] * 2)
        np.testing.assert_allclose(outputs[1], exact[1], atol=kept["z_scale"] * 2)


def test_conv_whose_bias_is_no_constant_stays() -> None:
    proto = model(
        [node("Conv", ["x", "w", "b"], ["y"])], {"x": [1, 3, 4, 4], "b": [4]}, ["y"], {"w": _floats(4, 3, 1, 1)}
    )
    with pytest.raises(InvalidQuantization, match="its bias is no constant"):
        quantized(proto, ranges=ranges_of(proto, {"x": _floats(1, 3, 4, 4), "b": _floats(4)}))


def test_conv_without_a_range_stays() -> None:
    proto, _ = _conv(_floats(4, 3, 1, 1), None)
    with pytest.raises(InvalidQuantization, match="'x' has no calibrated range"):
        quantized(proto, ranges={})


def test_range_that_is_none() -> None:
    proto, feeds = _conv(_floats(4, 3, 1, 1), None)
    ranges = ranges_of(proto, feeds)
    ranges["y"] = type(ranges["y"])(np.float32(0), np.float32("nan"))
    with pytest.raises(InvalidQuantization, match="The calibrated range of 'y' is"):
        quantized(proto, ranges=ranges)


def test_float16_is_widened() -> None:
    import onnx

    weight = _floats(4, 3, 1, 1).astype(np.float16)
    proto = model(
        [node("Conv", ["x", "w"], ["y"])], {"x": [1, 3, 4, 4]}, ["y"], {"w": weight}, kind=onnx.TensorProto.FLOAT16
    )
    feeds = {"x": _floats(1, 3, 4, 4).astype(np.float16)}
    made = quantized(proto, ranges=ranges_of(proto, feeds))
    exact, scale = run(proto, feeds)[0], constants(made)["y_scale"]
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        assert outputs[0].dtype == np.float16
        np.testing.assert_allclose(outputs[0].astype(np.float32), exact.astype(np.float32), atol=4 * scale)
