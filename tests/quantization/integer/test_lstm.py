"""LSTM of integers."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.quantization.quant_utils import QuantType
from tests.quantization.quantizing import constants, model, node, operators, quantized, run, run_peer

INPUTS, HIDDEN, BATCH, STEPS = 6, 5, 3, 4


def _floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def _weights(directions: int, inputs: int = INPUTS) -> dict[str, np.ndarray]:
    return {
        "w": _floats(directions, 4 * HIDDEN, inputs) * np.float32(0.5),
        "r": _floats(directions, 4 * HIDDEN, HIDDEN) * np.float32(0.5),
        "b": _floats(directions, 8 * HIDDEN) * np.float32(0.1),
    }


def _feeds(layout: int = 0) -> dict[str, np.ndarray]:
    return {"x": _floats(BATCH, STEPS, INPUTS) if layout else _floats(STEPS, BATCH, INPUTS)}


@pytest.mark.parametrize("weight_type", [QuantType.QInt8, QuantType.QUInt8])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
def test_lstm_is_close(weight_type: QuantType, per_channel: bool, directions: int) -> None:
    direction = "bidirectional" if directions == 2 else "forward"
    weights = _weights(directions)
    lstm = node("LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], hidden_size=HIDDEN, direction=direction)
    proto = model([lstm], {"x": [STEPS, BATCH, INPUTS]}, ["y", "h", "c"], weights)
    made = quantized(proto, weight_type=weight_type, per_channel=per_channel)
    assert operators(made) == ["DynamicQuantizeLSTM"]
    kept = constants(made)
    assert kept["w_quantized"].shape == (directions, INPUTS, 4 * HIDDEN)
    assert kept["w_quantized"].dtype == (np.int8 if weight_type is QuantType.QInt8 else np.uint8)
    assert kept["w_scale"].shape == ((directions, 4 * HIDDEN) if per_channel else (directions,))
    zero_point = kept["w_zero_point"].astype(np.float64)
    scale = kept["w_scale"].astype(np.float64)
    if per_channel:
        real = (kept["w_quantized"] - zero_point[:, None]) * scale[:, None]
    else:
        real = (kept["w_quantized"] - zero_point[:, None, None]) * scale[:, None, None]
    assert np.abs(real.swapaxes(1, 2) - weights["w"]).max() <= scale.max()
    exact = run(proto, _feeds())
    for outputs in (run(made, _feeds()), run_peer(made, _feeds())):
        for one, other in zip(outputs, exact, strict=True):
            np.testing.assert_allclose(one, other, atol=0.03)


@pytest.mark.parametrize("per_channel", [False, True])
def test_lstms_that_share_weights_are_both_right(per_channel: bool) -> None:
    weights = _weights(1, HIDDEN)
    proto = model(
        [
            node("LSTM", ["x", "w", "r", "b"], ["y", "h"], hidden_size=HIDDEN),
            node("Squeeze", ["y", "axis"], ["middle"]),
            node("LSTM", ["middle", "w", "r", "b"], ["z", "k"], hidden_size=HIDDEN),
        ],
        {"x": [STEPS, BATCH, HIDDEN]},
        ["h", "z"],
        {**weights, "axis": np.array([1])},
    )
    made = quantized(proto, per_channel=per_channel)
    assert operators(made).count("DynamicQuantizeLSTM") == 2
    assert sum(name.startswith("w_quantized") for name in constants(made)) == 1
    feeds = {"x": _floats(STEPS, BATCH, HIDDEN)}
    exact = run(proto, feeds)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        for one, other in zip(outputs, exact, strict=True):
            np.testing.assert_allclose(one, other, atol=0.02)


def test_weight_that_a_product_reads_as_well() -> None:
    weights = {**_weights(1), "m": np.eye(4 * HIDDEN, dtype=np.float32)[:, :INPUTS].T.copy()}
    proto = model(
        [
            node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=HIDDEN),
            node("MatMul", ["w", "m"], ["z"]),
        ],
        {"x": [STEPS, BATCH, INPUTS]},
        ["y", "z"],
        weights,
    )
    made = quantized(proto)
    exact = run(proto, _feeds())
    for outputs in (run(made, _feeds()), run_peer(made, _feeds())):
        np.testing.assert_allclose(outputs[0], exact[0], atol=0.03)
        np.testing.assert_allclose(outputs[1], exact[1], atol=0.05)


def test_batch_first_is_turned() -> None:
    lstm = node("LSTM", ["x", "w", "r", "b", "", "h0", "c0"], ["y", "h", "c"], hidden_size=HIDDEN, layout=1)
    states = {"h0": _floats(BATCH, 1, HIDDEN, seed=1), "c0": _floats(BATCH, 1, HIDDEN, seed=2)}
    proto = model(
        [lstm],
        {"x": [BATCH, STEPS, INPUTS], "h0": [BATCH, 1, HIDDEN], "c0": [BATCH, 1, HIDDEN]},
        ["y", "h", "c"],
        _weights(1),
    )
    made = quantized(proto)
    feeds = {**_feeds(1), **states}
    exact = run(proto, feeds)
    assert exact[0].shape == (BATCH, STEPS, 1, HIDDEN)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        for one, other in zip(outputs, exact, strict=True):
            np.testing.assert_allclose(one, other, atol=0.03)


def test_excluded_lstm_stays_exact_beside_one_of_the_same_weights() -> None:
    weights = _weights(1)
    proto = model(
        [
            node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=HIDDEN),
            node("LSTM", ["x", "w", "r", "b"], ["z"], hidden_size=HIDDEN),
        ],
        {"x": [STEPS, BATCH, INPUTS]},
        ["y", "z"],
        weights,
    )
    made = quantized(proto, exclude=["LSTM_z"])
    exact, outputs = run(proto, _feeds()), run(made, _feeds())
    np.testing.assert_array_equal(outputs[1], exact[1])
    assert (outputs[0] != exact[0]).any()


def test_lstm_of_rows_of_a_table() -> None:
    import onnx

    proto = model(
        [
            node("Gather", ["t", "i"], ["rows"]),
            node("Gather", ["s", "k"], ["state"]),
            node("LSTM", ["rows", "w", "r", "b", "", "state"], ["y"], hidden_size=HIDDEN),
        ],
        {"i": [STEPS, BATCH], "k": [1, BATCH]},
        ["y"],
        {**_weights(1), "t": _floats(9, INPUTS), "s": _floats(4, HIDDEN) * np.float32(0.3)},
        kinds=dict.fromkeys(["i", "k"], onnx.TensorProto.INT64),
    )
    made = quantized(proto)
    assert operators(made).count("DequantizeLinear") == 2
    generator = np.random.default_rng(4)
    feeds = {"i": generator.integers(0, 9, (STEPS, BATCH)), "k": generator.integers(0, 4, (1, BATCH))}
    (exact,) = run(proto, feeds)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        np.testing.assert_allclose(outputs[0], exact, atol=0.05)
