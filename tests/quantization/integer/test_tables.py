"""Gather, Transpose and EmbedLayerNormalization of stored tables; Attention."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sardonyx.quantization.quant_utils import QuantType
from tests.quantization.quantizing import constants, model, node, operators, quantized, quantizer, run, run_peer

INT64, INT32 = onnx.TensorProto.INT64, onnx.TensorProto.INT32


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("weight_type", "kind"), [(QuantType.QInt8, np.int8), (QuantType.QUInt8, np.uint8)])
def test_table_is_asymmetric_and_of_the_type_that_was_asked_for(weight_type: QuantType, kind: type) -> None:
    table = np.abs(_floats(9, 8)) + np.float32(1)
    proto = model([node("Gather", ["t", "i"], ["y"])], {"i": [2]}, ["y"], {"t": table}, kinds={"i": INT64})
    made = quantized(proto, weight_type=weight_type)
    kept = constants(made)
    assert kept["t_quantized"].dtype == kind
    assert kept["t_scale"] == np.float32(table.max().astype(np.float64) / 255)
    indices = np.array([8, 3])
    expected = (kept["t_quantized"][indices].astype(np.float32) - np.float32(kept["t_zero_point"])) * kept["t_scale"]
    for outputs in (run(made, {"i": indices}), run_peer(made, {"i": indices})):
        np.testing.assert_array_equal(outputs[0], expected)
    assert np.abs(expected - table[indices]).max() <= kept["t_scale"] * 0.501


def test_symmetric_weights_make_symmetric_tables() -> None:
    proto = model(
        [node("Gather", ["t", "i"], ["y"])], {"i": [2]}, ["y"], {"t": np.abs(_floats(9, 8))}, kinds={"i": INT64}
    )
    assert constants(quantized(proto, WeightSymmetric=True))["t_zero_point"] == 0


@pytest.mark.parametrize("per_channel", [False, True])
def test_table_that_a_product_reads_as_well(per_channel: bool) -> None:
    table = _floats(8, 8)
    proto = model(
        [node("Gather", ["t", "i"], ["rows"]), node("MatMul", ["rows", "t"], ["y"])],
        {"i": [2]},
        ["rows", "y"],
        {"t": table},
        kinds={"i": INT64},
    )
    made = quantized(proto, per_channel=per_channel)
    assert sum(name.startswith("t_quantized") for name in constants(made)) == (2 if per_channel else 1)
    indices = np.array([5, 1])
    for outputs in (run(made, {"i": indices}), run_peer(made, {"i": indices})):
        np.testing.assert_allclose(outputs[0], table[indices], atol=0.02)
        np.testing.assert_allclose(outputs[1], table[indices] @ table, atol=0.2)


def test_transpose_of_rows_is_one_of_what_is_stored() -> None:
    table = _floats(9, 8)
    proto = model(
        [node("Gather", ["t", "i"], ["rows"]), node("Transpose", ["rows"], ["y"])],
        {"i": [2]},
        ["y"],
        {"t": table},
        kinds={"i": INT64},
    )
    made = quantized(proto)
    assert operators(made) == ["Gather", "Transpose", "DequantizeLinear"]
    indices = np.array([5, 1])
    np.testing.assert_allclose(run(made, {"i": indices})[0], table[indices].T, atol=0.02)


def test_transpose_of_a_float_that_a_product_reads_stays_exact() -> None:
    proto = model(
        [node("MatMul", ["x", "w"], ["y"]), node("Transpose", ["x"], ["z"])],
        {"x": [3, 8]},
        ["y", "z"],
        {"w": _floats(8, 4)},
    )
    left = _floats(3, 8)
    made = quantized(proto)
    np.testing.assert_array_equal(run(made, {"x": left})[1], left.T)


@pytest.mark.parametrize("weight_type", [QuantType.QInt8, QuantType.QUInt8])
@pytest.mark.parametrize("segments", [False, True])
def test_embedding(weight_type: QuantType, segments: bool) -> None:
    tables = {"words": _floats(12, 8), "positions": _floats(6, 8), "kinds": _floats(2, 8)}
    given = ["ids", "segments" if segments else "", "words", "positions", "kinds" if segments else "", "g", "b", "mask"]
    used = {name: array for name, array in tables.items() if segments or name != "kinds"}
    inputs = {"ids": [2, 5], "mask": [2, 5]} | ({"segments": [2, 5]} if segments else {})
    proto = model(
        [node("EmbedLayerNormalization", given, ["y", "lengths"], domain="com.microsoft")],
        inputs,
        ["y", "lengths"],
        {**used, "g": np.linspace(0.5, 1, 8, dtype=np.float32), "b": _floats(8) * np.float32(0.1)},
        kinds=dict.fromkeys(["ids", "mask", "segments", "lengths"], INT32),
    )
    made = quantized(proto, weight_type=weight_type)
    assert operators(made) == ["QEmbedLayerNormalization"]
    assert constants(made)["words_quantized"].dtype == (np.int8 if weight_type is QuantType.QInt8 else np.uint8)
    generator = np.random.default_rng(3)
    feeds = {"ids": generator.integers(0, 12, (2, 5)), "mask": np.ones((2, 5), int)}
    if segments:
        feeds["segments"] = generator.integers(0, 2, (2, 5))
    feeds = {name: array.astype(np.int32) for name, array in feeds.items()}
    exact = run(proto, feeds)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        np.testing.assert_allclose(outputs[0], exact[0], atol=0.05)
        np.testing.assert_array_equal(outputs[1], exact[1])


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("weight_type", [QuantType.QInt8, QuantType.QUInt8])
def test_attention(per_channel: bool, weight_type: QuantType) -> None:
    attention = node("Attention", ["x", "w", "b", "mask"], ["y"], domain="com.microsoft", num_heads=2)
    proto = model(
        [attention],
        {"x": [2, 5, 8], "mask": [2, 5]},
        ["y"],
        {"w": _floats(8, 24) * np.float32(0.3), "b": _floats(24)},
        kinds={"mask": INT32},
    )
    made = quantized(proto, per_channel=per_channel, weight_type=weight_type)
    assert operators(made) == ["DynamicQuantizeLinear", "QAttention"]
    mask = np.ones((2, 5), np.int32)
    mask[1, 3:] = 0
    feeds = {"x": _floats(2, 5, 8), "mask": mask}
    (exact,) = run(proto, feeds)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        np.testing.assert_allclose(outputs[0], exact, atol=0.06)
    np.testing.assert_allclose(run(made, feeds)[0], run_peer(made, feeds)[0], atol=1e-5)


@pytest.mark.parametrize(
    ("attributes", "more", "reason"),
    [
        ({"qkv_hidden_sizes": [8, 8, 8]}, [], "QAttention has no attribute qkv_hidden_sizes"),
        ({}, ["", "", "scores"], "QAttention has no bias of attention scores"),
    ],
)
def test_attention_that_integers_have_no_form_of(attributes: dict, more: list[str], reason: str) -> None:
    proto = model(
        [
            node("Attention", ["x", "w", "b", *more], ["z"], domain="com.microsoft", num_heads=2, **attributes),
            node("MatMul", ["x", "v"], ["y"]),
        ],
        {"x": [2, 5, 8], "scores": [2, 2, 5, 5]},
        ["y", "z"],
        {"w": _floats(8, 24), "b": _floats(24), "v": _floats(8, 4)},
    )
    made = quantizer(proto)
    made.quantize_model()
    assert any(reason in line for line in made.report.lines())


def test_attention_of_onnx_is_another_operator() -> None:
    proto = model(
        [
            node("Attention", ["x", "x", "x"], ["z"], q_num_heads=2, kv_num_heads=2),
            node("MatMul", ["x", "v"], ["y"]),
        ],
        {"x": [2, 5, 8]},
        ["y", "z"],
        {"v": _floats(8, 4)},
        opset=23,
    )
    made = quantizer(proto)
    proto_made = made.quantize_model()
    assert "Attention" in operators(proto_made)
    feeds = {"x": _floats(2, 5, 8)}
    np.testing.assert_array_equal(run(proto_made, feeds)[1], run(proto, feeds)[1])


@pytest.mark.parametrize("weight_type", [QuantType.QInt8, QuantType.QUInt8])
def test_operators_of_rows_of_a_table(weight_type: QuantType) -> None:
    proto = model(
        [
            node("Gather", ["t", "i"], ["rows"]),
            node("Attention", ["rows", "w", "b"], ["y"], domain="com.microsoft", num_heads=2),
            node("Transpose", ["rows"], ["turned"], perm=[0, 2, 1]),
            node("Conv", ["turned", "k"], ["z"], pads=[1, 1]),
        ],
        {"i": [2, 5]},
        ["y", "z"],
        {"t": _floats(9, 8), "w": _floats(8, 24) * np.float32(0.3), "b": _floats(24), "k": _floats(4, 8, 3)},
        kinds={"i": INT64},
    )
    made = quantized(proto, weight_type=weight_type)
    assert {"QAttention", "ConvInteger"} <= set(operators(made))
    feeds = {"i": np.random.default_rng(0).integers(0, 9, (2, 5))}
    exact = run(proto, feeds)
    for outputs in (run(made, feeds), run_peer(made, feeds)):
        np.testing.assert_allclose(outputs[0], exact[0], atol=0.06)
        np.testing.assert_allclose(outputs[1], exact[1], atol=0.25)


@pytest.mark.parametrize("by", ["Transpose", "Gemm"])
def test_table_that_is_tied_to_the_last_product_is_stored_once(by: str) -> None:
    table = _floats(11, 8)
    last = (
        [node("Transpose", ["t"], ["turned"]), node("MatMul", ["rows", "turned"], ["y"])]
        if by == "Transpose"
        else [node("Gemm", ["rows", "t"], ["y"], transB=1)]
    )
    proto = model(
        [node("Gather", ["t", "i"], ["rows"]), *last], {"i": [3]}, ["rows", "y"], {"t": table}, kinds={"i": INT64}
    )
    made = quantized(proto)
    assert sum(array.size == table.size for array in constants(made).values()) == 1
    indices = np.array([5, 1, 10])
    for outputs in (run(made, {"i": indices}), run_peer(made, {"i": indices})):
        np.testing.assert_allclose(outputs[0], table[indices], atol=0.02)
        np.testing.assert_allclose(outputs[1], table[indices] @ table.T, atol=0.3)
