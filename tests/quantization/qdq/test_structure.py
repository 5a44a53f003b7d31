"""Where pairs go, what they are called, and what parameters they have."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from sardonyx.quantization.qdq.rules import RULES
from sardonyx.quantization.quant_utils import QuantType
from sardonyx.quantization.registry import QDQRegistry
from tests.quantization.qdq.pairs import check, is_dequantized, maker, named, nodes, quantized, quantizer
from tests.quantization.quantizing import Range, constants, model, node, operators

_RANDOM = np.random.default_rng(7)


def _floats(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


X = _floats(2, 3, 8, 8)


def _convolutions() -> onnx.ModelProto:
    """Two convolutions with a Relu and a MaxPool between them."""
    return model(
        [
            node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4, name="first"),
            node("Relu", ["c"], ["r"], name="relu"),
            node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2], name="pool"),
            node("Conv", ["p", "v", "d"], ["y"], name="second"),
        ],
        {"x": ["n", 3, 8, 8]},
        ["y"],
        {"w": _floats(4, 3, 3, 3), "b": _floats(4), "v": _floats(5, 4, 1, 1), "d": _floats(5)},
    )


def test_the_rules_are_those_of_the_registry() -> None:
    assert set(RULES) == set(QDQRegistry)


def test_names_and_places_are_those_that_tools_know() -> None:
    proto = quantized(_convolutions(), {"x": X})
    assert sorted(operators(proto)) == sorted(
        ["Conv", "Conv", "MaxPool", *["QuantizeLinear"] * 4, *["DequantizeLinear"] * 8]
    )
    first = named(proto, "first")
    assert list(first.input) == ["x_DequantizeLinear_Output", "w_DequantizeLinear_Output", "b"]
    assert list(first.output) == ["r"]
    assert list(named(proto, "w_DequantizeLinear").input) == ["w_quantized", "w_scale", "w_zero_point"]
    assert list(named(proto, "b_DequantizeLinear").input) == [
        "b_quantized",
        "b_quantized_scale",
        "b_quantized_zero_point",
    ]
    assert list(named(proto, "y_QuantizeLinear").input) == ["y_QuantizeLinear_Input", "y_scale", "y_zero_point"]
    assert list(named(proto, "y_DequantizeLinear").output) == ["y"]
    # The pool keeps the parameters of what it reads.
    assert list(named(proto, "p_QuantizeLinear").input)[1:] == ["r_scale", "r_zero_point"]
    assert proto.producer_name == "onnx.quantize"
    assert {entry.key: entry.value for entry in proto.metadata_props} == {"onnx.infer": "onnxruntime.quant"}
    assert not {"w", "b", "v", "d"} & constants(proto).keys()
    check(proto, {"x": X})


def test_numbers_follow_from_ranges_and_weights() -> None:
    float_model = _convolutions()
    proto = quantized(float_model, {"x": X})
    found, before = constants(proto), constants(float_model)
    assert found["x_scale"] == np.float32((float(X.max()) - float(X.min())) / 255)
    assert found["x_zero_point"] == np.round(-float(X.min()) / ((float(X.max()) - float(X.min())) / 255))
    assert found["w_scale"] == np.float32(2 * np.abs(before["w"]).max().astype(np.float64) / 254)
    assert found["w_zero_point"] == 0
    assert found["w_quantized"].dtype == np.int8
    np.testing.assert_array_equal(found["w_quantized"], np.rint(before["w"] / found["w_scale"]))
    scale = found["x_scale"] * found["w_scale"]
    assert found["b_quantized_scale"] == scale
    np.testing.assert_array_equal(found["b_quantized"], np.rint(before["b"].astype(np.float64) / np.float64(scale)))


def test_a_scale_for_each_channel() -> None:
    float_model = _convolutions()
    proto = quantized(float_model, {"x": X}, per_channel=True)
    found, before = constants(proto), constants(float_model)
    wanted = np.float32(2 * np.abs(before["w"]).max((1, 2, 3)).astype(np.float64) / 254)
    np.testing.assert_array_equal(found["w_scale"], wanted)
    assert [one.i for one in named(proto, "w_DequantizeLinear").attribute if one.name == "axis"] == [0]
    assert found["b_quantized_scale"].shape == (4,)
    assert [one.i for one in named(proto, "b_DequantizeLinear").attribute if one.name == "axis"] == [0]
    check(proto, {"x": X})


@pytest.mark.parametrize(
    ("weights", "activations"),
    [
        (QuantType.QInt8, QuantType.QInt8),
        (QuantType.QUInt8, QuantType.QUInt8),
        (QuantType.QInt16, QuantType.QUInt16),
        (QuantType.QInt8, QuantType.QInt16),
        (QuantType.QInt4, QuantType.QUInt8),
        (QuantType.QUInt4, QuantType.QUInt16),
    ],
)
@pytest.mark.parametrize("per_channel", [False, True])
def test_all_integer_types(weights: QuantType, activations: QuantType, per_channel: bool) -> None:
    """In a model of an old operator set, pairs of 4 and 16 bits are of com.microsoft."""
    proto = quantized(
        _convolutions(), {"x": X}, weight_type=weights, activation_type=activations, per_channel=per_channel
    )
    wide = {QuantType.QInt16, QuantType.QUInt16, QuantType.QInt4, QuantType.QUInt4} & {weights, activations}
    assert {one.domain for one in nodes(proto, "DequantizeLinear")} == {"com.microsoft" if wide else ""}
    check(proto, {"x": X})


def test_symmetric_activations_keep_their_relu() -> None:
    proto = quantized(_convolutions(), {"x": X}, activation_type=QuantType.QInt8, ActivationSymmetric=True)
    assert len(nodes(proto, "Relu")) == 1
    assert all(constants(proto)[f"{name}_zero_point"] == 0 for name in ("x", "r", "y"))
    check(proto, {"x": X})


def test_restricted_zero_points() -> None:
    found = constants(quantized(_convolutions(), {"x": X}, ActivationRestrictedAsymmetric=True))
    assert found["x_zero_point"] == 128
    assert found["r_zero_point"] == 0
    assert found["x_scale"] == np.float32(max(-float(X.min()) / 128, float(X.max()) / 127))


def test_a_least_range() -> None:
    found = constants(quantized(_convolutions(), {"x": X}, MinimumRealRange=100.0))
    assert found["x_scale"] == pytest.approx(100 / 255)


def test_weights_kept_in_float_between_pairs() -> None:
    proto = quantized(_convolutions(), {"x": X}, AddQDQPairToWeight=True)
    assert list(named(proto, "w_QuantizeLinear").input) == ["w", "w_scale", "w_zero_point"]
    assert constants(proto)["w"].dtype == np.float32
    check(proto, {"x": X})


def test_biases_may_stay_float() -> None:
    proto = quantized(_convolutions(), {"x": X}, QuantizeBias=False)
    np.testing.assert_array_equal(constants(proto)["b"], constants(_convolutions())["b"] * 0 + constants(proto)["b"])
    assert list(named(proto, "first").input)[2] == "b"
    assert maker(proto, "b") is None
    check(proto, {"x": X})


def test_pairs_of_com_microsoft() -> None:
    proto = quantized(_convolutions(), {"x": X}, UseQDQContribOps=True)
    assert {one.domain for one in (*nodes(proto, "QuantizeLinear"), *nodes(proto, "DequantizeLinear"))} == {
        "com.microsoft"
    }
    check(proto, {"x": X})


def _products() -> onnx.ModelProto:
    """What one value is read by: two products and a sum."""
    return model(
        [
            node("MatMul", ["x", "w"], ["m"], name="one"),
            node("MatMul", ["x", "v"], ["n"], name="two"),
            node("Add", ["m", "x"], ["a"], name="sum"),
            node("Add", ["a", "n"], ["y"], name="last"),
        ],
        {"x": [2, 8, 8]},
        ["y"],
        {"w": _floats(8, 8), "v": _floats(8, 8)},
    )


def test_a_pair_for_each_reader() -> None:
    x = _floats(2, 8, 8)
    proto = quantized(_products(), {"x": x}, DedicatedQDQPair=True)
    inputs = [named(proto, "one").input[0], named(proto, "two").input[0], named(proto, "sum").input[1]]
    assert inputs == [f"x_DequantizeLinear_Output_{number}" for number in (1, 2, 3)]
    assert len(nodes(proto, "QuantizeLinear")) == 3 + 4
    check(proto, {"x": x})


def test_operators_whose_results_stay_float() -> None:
    x = _floats(2, 8, 8)
    proto = quantized(_products(), {"x": x}, OpTypesToExcludeOutputQuantization=["MatMul", "Add"])
    # What a product makes is read by a sum that is quantised, the last sum by nobody.
    assert not is_dequantized(proto, "y")
    assert list(named(proto, "last").output) == ["y"]
    check(proto, {"x": x}, slack=2e-2)


def test_types_of_single_tensors() -> None:
    x = _floats(2, 8, 8)
    proto = quantized(
        _products(),
        {"x": x},
        TensorQuantOverrides={
            "w": [{"quant_type": QuantType.QUInt8, "symmetric": False}],
            "v": [{"axis": 1, "quant_type": QuantType.QInt8}],
            "m": [{"scale": np.array(0.5, np.float32), "zero_point": np.array(100)}],
            "n": [{"rmin": -10.0, "rmax": 10.0}],
        },
    )
    found = constants(proto)
    assert found["w_quantized"].dtype == np.uint8
    assert found["v_scale"].shape == (8,)
    assert (found["m_scale"], found["m_zero_point"]) == (np.float32(0.5), 100)
    assert found["n_scale"] == np.float32(20 / 255)
    check(proto, {"x": x})


@pytest.mark.parametrize("receivers", [None, {"one"}])
def test_other_types_for_some_readers(receivers: set[str] | None) -> None:
    x = _floats(2, 8, 8)
    convert: dict[str, Any] = {"quant_type": QuantType.QUInt16}
    if receivers is not None:
        convert["recv_nodes"] = receivers
    proto = quantized(_products(), {"x": x}, TensorQuantOverrides={"x": [{"convert": convert}]})
    first, second = named(proto, "one").input[0], named(proto, "two").input[0]
    assert first == "x_convert_DequantizeLinear_Output"
    assert second == (first if receivers is None else "x_DequantizeLinear_Output")
    assert constants(proto)["x_zero_point_convert"].dtype == np.uint16
    again = maker(proto, maker(proto, maker(proto, first).input[0]).input[0])  # type: ignore[union-attr]
    assert again is not None
    assert again.op_type == "DequantizeLinear"
    # The conversion reads a copy of the first pair where others read that pair: backends fuse it with what it feeds.
    assert again.output[0] == ("x_DequantizeLinear_Output" if receivers is None else "x_convert_QuantizeLinear_Input")
    check(proto, {"x": x})


@pytest.mark.parametrize("receivers", [None, {"last"}])
def test_an_output_in_another_type(receivers: set[str] | None) -> None:
    x = _floats(2, 8, 8)
    float_model = _products()
    float_model.graph.output.append(onnx.ValueInfoProto(name="n"))
    convert: dict[str, Any] = {"quant_type": QuantType.QUInt16}
    if receivers is not None:
        convert["recv_nodes"] = receivers
    proto = quantized(float_model, {"x": x}, TensorQuantOverrides={"n": [{"convert": convert}]})
    assert [output.name for output in proto.graph.output] == ["y", "n"]
    last = maker(proto, "n")
    assert last is not None
    assert last.op_type == "DequantizeLinear"
    assert last.input[1] == "n_scale_convert"
    check(proto, {"x": x})


def test_blocks_of_weights_of_any_rank() -> None:
    """Each block is of numbers that are added up."""
    x = _floats(2, 10, 6, 6)
    for inner, weight, scales in (
        (node("Conv", ["x", "w"], ["y"], name="it"), _floats(5, 10, 3, 3), (5, 3, 3, 3)),
        (node("MatMul", ["x", "w"], ["y"], name="it"), _floats(10, 6, 7), (10, 2, 7)),
        (node("ConvTranspose", ["x", "w"], ["y"], name="it"), _floats(10, 5, 3, 3), (3, 5, 3, 3)),
    ):
        float_model = model([inner], {"x": [2, 10, 6, 6]}, ["y"], {"w": weight}, opset=21)
        proto = quantized(float_model, {"x": x}, weight_type=QuantType.QInt4, BlockSize=4)
        assert constants(proto)["w_scale"].shape == scales
        check(proto, {"x": x})
    gemm = model([node("Gemm", ["a", "w"], ["y"], transB=1)], {"a": [3, 10]}, ["y"], {"w": _floats(6, 10)}, opset=21)
    a = _floats(3, 10)
    proto = quantized(gemm, {"a": a}, weight_type=QuantType.QUInt4, BlockSize=4)
    assert constants(proto)["w_scale"].shape == (6, 3)
    assert constants(proto)["w_zero_point"].shape == (6, 3)
    check(proto, {"a": a})


def test_blocks_raise_the_operator_set() -> None:
    x = _floats(2, 8, 8)
    proto = quantized(_products(), {"x": x}, weight_type=QuantType.QInt4, BlockSize=4)
    assert {entry.domain: entry.version for entry in proto.opset_import}[""] == 21
    assert proto.ir_version >= 10
    check(proto, {"x": x})


def test_8_bit_floats() -> None:
    """Their scales follow from standard deviations; a Relu stays, as such a range clamps nothing."""

    class Deviation(Range):
        avg_std = (0.0, np.float32(1.0))

    ranges = {name: Deviation(np.float32(-3), np.float32(3)) for name in ("x", "c", "r", "p", "y")}
    kind = QuantType.QFLOAT8E4M3FN
    float_model = _convolutions()
    proto = quantized(float_model, {"x": X}, ranges=ranges, weight_type=kind, activation_type=kind)
    assert {entry.domain: entry.version for entry in proto.opset_import}[""] == 19
    assert len(nodes(proto, "Relu")) == 1
    assert "b" in constants(proto)
    # ONNX Runtime makes an operator of these pairs that takes no such floats.
    check(proto, {"x": X}, slack=5e-2, peer=False)


def test_half_precision() -> None:
    """Scales have the type of what they scale."""
    x = _floats(2, 3, 8, 8).astype(np.float16)
    float_model = model(
        [node("Conv", ["x", "w", "b"], ["c"], name="it"), node("Relu", ["c"], ["y"])],
        {"x": [2, 3, 8, 8]},
        ["y"],
        {"w": _floats(4, 3, 3, 3).astype(np.float16), "b": _floats(4).astype(np.float16)},
        opset=19,
        kind=onnx.TensorProto.FLOAT16,
    )
    proto = quantized(float_model, {"x": x})
    assert constants(proto)["x_scale"].dtype == np.float16
    assert constants(proto)["w_scale"].dtype == np.float16
    check(proto, {"x": x}, slack=1e-2)


def test_a_weight_that_is_a_constant_node() -> None:
    x = _floats(2, 3, 8, 8)
    weight = _floats(4, 3, 1, 1)
    constant = helper.make_node("Constant", [], ["w"], value=onnx.numpy_helper.from_array(weight))
    proto = quantized(model([constant, node("Conv", ["x", "w"], ["y"])], {"x": [2, 3, 8, 8]}, ["y"], {}), {"x": x})
    assert not nodes(proto, "Constant")
    assert constants(proto)["w_quantized"].dtype == np.int8
    check(proto, {"x": x})


def test_a_weight_that_was_stored_quantised_before() -> None:
    """A DequantizeLinear of a constant is left as it is; a bias takes its scale."""
    x = _floats(2, 3, 8, 8)
    before = [
        node("DequantizeLinear", ["q", "s", "z"], ["w"], name="dequantize"),
        node("Conv", ["x", "w", "b"], ["y"], name="it"),
    ]
    weights = {
        "q": _RANDOM.integers(-127, 128, (4, 3, 1, 1)).astype(np.int8),
        "s": np.float32(0.02),
        "z": np.int8(0),
        "b": _floats(4),
    }
    proto = quantized(model(before, {"x": [2, 3, 8, 8]}, ["y"], weights), {"x": x})
    assert list(named(proto, "it").input)[1] == "w"
    assert len(nodes(proto, "DequantizeLinear")) == 4
    found = constants(proto)
    assert found["b_quantized_scale"] == found["x_scale"] * np.float32(0.02)
    check(proto, {"x": x})


def test_the_report_tells_of_each_node() -> None:
    found = quantizer(_convolutions(), {"x": X}, exclude=["second"])
    found.quantize_model()
    lines = found.report.lines()
    assert lines[0] == "Conv first: reads x, w int8, makes r"
    assert lines[1] == "Relu relu: left out, as the stored range clamps"
    assert lines[3] == "Conv second: left, excluded by name (nodes_to_exclude)"
    assert lines[-1].startswith("3 of 4 nodes quantised; weights 0.00 MB before")
    assert found.report.bytes_after < found.report.bytes_before
