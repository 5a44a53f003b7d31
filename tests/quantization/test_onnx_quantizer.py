"""What `ONNXQuantizer` refuses, and the models that it makes beside those of ONNX Runtime's tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from sardonyx import errors
from sardonyx.quantization.onnx_quantizer import ONNXQuantizer
from sardonyx.quantization.quant_utils import QuantizationMode, QuantType
from sardonyx.quantization.refusal import InvalidQuantization
from tests.quantization.quantizing import Range, model, node, quantized, quantizer, ranges_of, run, run_peer


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _matmul() -> onnx.ModelProto:
    return model([node("MatMul", ["x", "w"], ["y"])], {"x": [3, 8]}, ["y"], {"w": _floats(8, 4)})


RANGES = {"x": Range(np.float32(-1), np.float32(1)), "y": Range(np.float32(-2), np.float32(2))}


@pytest.mark.parametrize("kind", [QuantType.QInt4, QuantType.QUInt4, QuantType.QInt16, QuantType.QFLOAT8E4M3FN])
@pytest.mark.parametrize("ranges", [None, RANGES])
def test_types_that_integer_operators_do_not_take(kind: QuantType, ranges: Any) -> None:
    with pytest.raises(InvalidQuantization, match=r"weights of int8 or uint8, not .*QuantFormat\.QDQ"):
        quantizer(_matmul(), ranges=ranges, weight_type=kind)
    with pytest.raises(InvalidQuantization, match="activations of int8 or uint8"):
        quantizer(_matmul(), ranges=RANGES, activation_type=QuantType.QUInt16)


def test_signed_activations_with_unsigned_weights() -> None:
    with pytest.raises(ValueError, match="quantise the weights to int8"):
        quantizer(_matmul(), ranges=RANGES, activation_type=QuantType.QInt8, weight_type=QuantType.QUInt8)


def test_signed_activations_whose_scales_are_found_in_each_run() -> None:
    with pytest.raises(InvalidQuantization, match="activations of uint8, not INT8"):
        quantizer(_matmul(), activation_type=QuantType.QInt8)


@pytest.mark.parametrize("mode", ["IntegerOps", 0, None])
def test_mode_that_is_none(mode: Any) -> None:
    with pytest.raises(InvalidQuantization, match="mode must be a member of QuantizationMode"):
        ONNXQuantizer(_matmul(), False, False, mode, False, QuantType.QInt8, QuantType.QUInt8, None, [], [], ["MatMul"])


def test_mode_that_contradicts() -> None:
    with pytest.raises(InvalidQuantization, match="goes with static=True"):
        ONNXQuantizer(
            _matmul(),
            False,
            False,
            QuantizationMode.QLinearOps,
            False,
            QuantType.QInt8,
            QuantType.QUInt8,
            None,
            [],
            [],
            ["MatMul"],
        )


@pytest.mark.parametrize("ranges", [None, RANGES])
def test_model_that_is_quantised_already(ranges: Any) -> None:
    made = quantized(_matmul(), ranges=ranges)
    with pytest.raises(InvalidQuantization, match="quantised already: node "):
        quantizer(made, ranges=ranges)


def test_names_that_match_nothing() -> None:
    with pytest.raises(InvalidQuantization, match="nodes_to_exclude"):
        quantizer(_matmul(), exclude=["MatMul_z"])
    with pytest.raises(InvalidQuantization, match="op_types_to_quantize"):
        quantizer(_matmul(), operators=["Conv"])


def test_unknown_option() -> None:
    with pytest.raises(InvalidQuantization, match="did you mean 'EnableSubgraph'"):
        quantizer(_matmul(), EnableSubgraphs=True)


def test_errors_are_of_both_kinds() -> None:
    with pytest.raises(errors.InvalidArgument):
        quantizer(_matmul(), weight_type=QuantType.QInt4)
    with pytest.raises(ValueError, match="INVALID_ARGUMENT"):
        quantizer(_matmul(), weight_type=QuantType.QInt4)


def test_named_nodes_alone() -> None:
    proto = model(
        [node("MatMul", ["x", "w"], ["y"]), node("MatMul", ["x", "w"], ["z"])],
        {"x": [3, 8]},
        ["y", "z"],
        {"w": _floats(8, 4)},
    )
    feeds = {"x": _floats(3, 8)}
    made, exact = quantized(proto, include=["MatMul_y"]), run(proto, feeds)
    outputs = run(made, feeds)
    np.testing.assert_array_equal(outputs[1], exact[1])
    assert (outputs[0] != exact[0]).any()


def test_names_of_the_model_are_not_taken_twice() -> None:
    constants = {"w": _floats(8, 4), "w_quantized": np.ones(4, np.float32), "x_scale": np.ones(4, np.float32)}
    proto = model(
        [
            node("MatMul", ["x", "w"], ["y"]),
            node("Add", ["y", "w_quantized"], ["a"]),
            node("Add", ["a", "x_scale"], ["z"], name="MatMul_y_quant"),
        ],
        {"x": [3, 8]},
        ["z"],
        constants,
    )
    made = quantized(proto)
    onnx.checker.check_model(made)
    feeds = {"x": _floats(3, 8)}
    np.testing.assert_allclose(run(made, feeds)[0], run(proto, feeds)[0], atol=0.1)


@pytest.mark.parametrize("opset", [8, 9, 10])
def test_old_opsets_are_raised(opset: int) -> None:
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": [3, 8]}, ["y"], {"w": _floats(8, 4)}, opset=opset)
    made = quantized(proto)
    assert next(one.version for one in made.opset_import if one.domain == "") == 11
    feeds = {"x": _floats(3, 8)}
    np.testing.assert_allclose(run(made, feeds)[0], run(proto, feeds)[0], atol=0.1)
    np.testing.assert_allclose(run_peer(made, feeds)[0], run(proto, feeds)[0], atol=0.1)


# The same models by ONNX Runtime's tool.


def _network(opset: int = 17) -> onnx.ModelProto:
    return model(
        [
            node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
            node("Relu", ["c"], ["r"]),
            node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2]),
            node("Sigmoid", ["r"], ["s"]),
            node("Mul", ["r", "s"], ["q"]),
            node("GlobalAveragePool", ["q"], ["g"]),
            node("Flatten", ["g"], ["f"]),
            node("Gemm", ["f", "v", "d"], ["e"], transB=1),
            node("Softmax", ["e"], ["y"]),
            node("Transpose", ["m"], ["t"], perm=[0, 2, 3, 1]),
            node("MatMul", ["t", "u"], ["z"]),
        ],
        {"x": [2, 3, 6, 6]},
        ["y", "z"],
        {"w": _floats(4, 3, 3, 3), "b": _floats(4), "v": _floats(5, 4), "d": _floats(5), "u": _floats(4, 7)},
        opset=opset,
    )


def _tables() -> onnx.ModelProto:
    return model(
        [
            node("Gather", ["t", "i"], ["rows"]),
            node("MatMul", ["rows", "w"], ["a"]),
            node("Add", ["a", "b"], ["n"]),
            node("MatMul", ["n", "v"], ["y"]),
            node("Gemm", ["n", "g", "h"], ["z"]),
        ],
        {"i": [3]},
        ["y", "z"],
        {
            "t": _floats(9, 8),
            "w": _floats(8, 6),
            "b": _floats(6),
            "v": _floats(6, 4),
            "g": _floats(6, 3),
            "h": _floats(3),
        },
        kinds={"i": TensorProto.INT64},
    )


def _parts(proto: onnx.ModelProto) -> tuple[dict, dict]:
    nodes = {
        tuple(one.output): (one.op_type, one.domain, tuple(one.input), one.name, sorted(map(str, one.attribute)))
        for one in proto.graph.node
    }
    return nodes, {one.name: (one.data_type, numpy_helper.to_array(one)) for one in proto.graph.initializer}


def _check_same(ours: onnx.ModelProto, known: onnx.ModelProto) -> None:
    (nodes, constants), (known_nodes, known_constants) = _parts(ours), _parts(known)
    assert nodes == known_nodes
    assert constants.keys() == known_constants.keys()
    for name, (kind, array) in constants.items():
        assert kind == known_constants[name][0], name
        assert array.shape == known_constants[name][1].shape, name
        np.testing.assert_array_equal(array, known_constants[name][1], err_msg=name)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("reduce_range", [False, True])
@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("make", [_network, _tables])
def test_dynamic_model_is_that_of_the_known_tool(
    tmp_path: Path, per_channel: bool, reduce_range: bool, kind: str, make: Any
) -> None:
    from onnxruntime.quantization import QuantType as KnownType
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(make(), str(tmp_path / "known.onnx"), None, per_channel, reduce_range, KnownType.from_string(kind))
    ours = quantized(
        make(),
        per_channel=per_channel,
        reduce_range=reduce_range,
        weight_type=QuantType.from_string(kind),
        OrtCompatible=True,
    )
    known = onnx.load(tmp_path / "known.onnx")
    for proto in (ours, known):  # which has no name there
        for one in proto.graph.node:
            if one.op_type == "Reshape" and one.output[0].endswith("_bias_reshape_output"):
                one.name = ""
    _check_same(ours, known)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activation_symmetric", [False, True])
@pytest.mark.parametrize("kinds", [("QInt8", "QUInt8"), ("QUInt8", "QUInt8"), ("QInt8", "QInt8")])
@pytest.mark.parametrize("compatible", [False, True])
def test_static_model_is_that_of_the_known_tool(
    per_channel: bool, activation_symmetric: bool, kinds: tuple[str, str], compatible: bool
) -> None:
    from onnxruntime.quantization import QuantizationMode as KnownMode
    from onnxruntime.quantization import QuantType as KnownType
    from onnxruntime.quantization.calibrate import TensorData
    from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer as Known
    from onnxruntime.quantization.registry import QLinearOpsRegistry

    if not compatible and ((per_channel and kinds[0] == "QUInt8") or activation_symmetric):
        pytest.skip("where this is right and the known tool is not")
    ranges = ranges_of(_network(), {"x": _floats(2, 3, 6, 6)})
    weight, activation = kinds
    known = Known(
        _network(),
        per_channel,
        False,
        KnownMode.QLinearOps,
        True,
        KnownType.from_string(weight),
        KnownType.from_string(activation),
        {name: TensorData(lowest=one.low, highest=one.high) for name, one in ranges.items()},
        [],
        [],
        list(QLinearOpsRegistry),
        {"ActivationSymmetric": activation_symmetric},
    )
    known.quantize_model()
    options = {"OrtCompatible": True} if compatible else {}
    ours = quantized(
        _network(),
        ranges=ranges,
        per_channel=per_channel,
        weight_type=QuantType.from_string(weight),
        activation_type=QuantType.from_string(activation),
        ActivationSymmetric=activation_symmetric,
        **options,
    )
    _check_same(ours, known.model.model)
