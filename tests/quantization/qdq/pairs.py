"""Float models in the QDQ format, evaluated in float64 and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from sardonyx.quantization.qdq_quantizer import QDQQuantizer
from sardonyx.quantization.quant_utils import QuantType
from sardonyx.quantization.registry import QDQRegistry, QLinearOpsRegistry
from tests.quantization.quantizing import Range, ranges_of, run, run_peer

Array = np.ndarray[Any, Any]

OPERATORS = sorted({*QDQRegistry, *QLinearOpsRegistry})


def quantizer(
    proto: onnx.ModelProto,
    feeds: Mapping[str, Array],
    *,
    ranges: Mapping[str, Range] | None = None,
    weight_type: QuantType = QuantType.QInt8,
    activation_type: QuantType = QuantType.QUInt8,
    per_channel: bool = False,
    reduce_range: bool = False,
    operators: Sequence[str] = OPERATORS,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    **options: Any,
) -> QDQQuantizer:
    """A quantizer of a model, by the ranges of one run unless others are given. `options` are the extra options."""
    return QDQQuantizer(
        proto,
        per_channel,
        reduce_range,
        weight_type,
        activation_type,
        ranges_of(proto, feeds) if ranges is None else ranges,
        include,
        exclude,
        operators,
        options,
    )


def quantized(proto: onnx.ModelProto, feeds: Mapping[str, Array], **arguments: Any) -> onnx.ModelProto:
    """A model in the QDQ format; see `quantizer`."""
    return quantizer(proto, feeds, **arguments).quantize_model()


def evaluate(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of a model without bodies, every number of it in float64."""
    values: dict[str, Any] = {tensor.name: _wide(numpy_helper.to_array(tensor)) for tensor in proto.graph.initializer}
    values |= {name: _wide(array) for name, array in feeds.items()}
    opsets = {entry.domain: entry.version for entry in proto.opset_import}
    for node in proto.graph.node:
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            array, scale, zero_point = (values[name] for name in node.input)
            places = [_spread(one, array, attributes) for one in (scale, zero_point)]
            change = _quantized if node.op_type == "QuantizeLinear" else _dequantized
            values[node.output[0]] = change(array, *places, zero_point.dtype)
            continue
        inputs = {name: values[name] for name in node.input if name}
        if node.op_type == "ConvTranspose":
            results = [_conv_transpose(node, attributes, [inputs[name] for name in node.input])]
        else:
            results = ReferenceEvaluator(node, opsets=opsets).run(None, inputs)
        values |= zip(node.output, map(_wide, results), strict=False)
    return [values[output.name] for output in proto.graph.output]


def check(proto: onnx.ModelProto, feeds: Mapping[str, Array], *, slack: float = 1e-5, peer: bool = True) -> list[Array]:
    """Check a quantised model: it is valid, and this engine and ONNX Runtime give what it says, but for one step of
    what is stored last, or `slack` of the largest number where an output is not stored. The exact outputs."""
    onnx.checker.check_model(proto, full_check=False)
    exact = evaluate(proto, feeds)
    for found in (run(proto, feeds), *([run_peer(proto, feeds)] if peer else ())):
        for output, ours, wanted in zip(proto.graph.output, found, exact, strict=True):
            step = _last_step(proto, output.name)
            largest = max(1.0, float(np.abs(wanted).max(initial=0.0)))
            allowed = (step if step else slack * largest) + 2 * float(np.finfo(ours.dtype).eps) * largest
            np.testing.assert_allclose(ours.astype(np.float64), wanted, rtol=0, atol=allowed)
    return exact


def nodes(proto: onnx.ModelProto, op_type: str) -> list[onnx.NodeProto]:
    """The nodes of an operator."""
    return [one for one in proto.graph.node if one.op_type == op_type]


def named(proto: onnx.ModelProto, name: str) -> onnx.NodeProto:
    """The node that is called so."""
    found = [one for one in proto.graph.node if one.name == name]
    assert len(found) == 1, f"{len(found)} nodes are called {name}"
    return found[0]


def maker(proto: onnx.ModelProto, value: str) -> onnx.NodeProto | None:
    """The node that makes a value; None for inputs and constants."""
    return next((one for one in proto.graph.node if value in one.output), None)


def is_dequantized(proto: onnx.ModelProto, value: str) -> bool:
    """Whether a value is what a DequantizeLinear gives."""
    found = maker(proto, value)
    return found is not None and found.op_type == "DequantizeLinear"


def error_of(proto: onnx.ModelProto, quantized_model: onnx.ModelProto, feeds: Mapping[str, Array]) -> float:
    """The largest difference of the first output from the float model's, as a part of its largest number."""
    before, after = evaluate(proto, feeds)[0], evaluate(quantized_model, feeds)[0]
    return float(np.abs(before - after).max() / np.abs(before).max())


def _last_step(proto: onnx.ModelProto, output: str) -> float:
    found = maker(proto, output)
    if found is None or found.op_type != "DequantizeLinear":
        return 0.0
    scale = next(tensor for tensor in proto.graph.initializer if tensor.name == found.input[1])
    return float(numpy_helper.to_array(scale).max())


def _wide(array: Any) -> Any:
    return array.astype(np.float64) if isinstance(array, np.ndarray) and array.dtype in _FLOATS else array


_FLOATS = (np.dtype(np.float16), np.dtype(np.float32))


def _spread(parameter: Array, array: Array, attributes: Mapping[str, Any]) -> Array:
    """A scale or zero point as one number for each of an array, or one for all."""
    wide = np.asarray(parameter).astype(np.float64)
    if wide.size == 1:
        return wide.reshape(())
    axis = attributes.get("axis", 1) % array.ndim
    block = attributes.get("block_size", 0)
    if block:
        return wide.repeat(block, axis)[tuple(slice(size) for size in array.shape)]
    return wide.reshape([-1 if index == axis else 1 for index in range(array.ndim)])


def _quantized(array: Array, scale: Array, zero_point: Array, dtype: np.dtype[Any]) -> Array:
    if dtype == ml_dtypes.float8_e4m3fn:
        return np.clip(array / scale, -448, 448).astype(np.float32).astype(dtype)
    limits = ml_dtypes.iinfo(dtype)
    return np.clip(np.rint(array / scale) + zero_point, int(limits.min), int(limits.max))


def _dequantized(array: Array, scale: Array, zero_point: Array, _: np.dtype[Any]) -> Array:
    return (np.asarray(array).astype(np.float64) - zero_point) * scale


def _conv_transpose(node: onnx.NodeProto, attributes: Mapping[str, Any], inputs: Sequence[Array]) -> Array:
    """ConvTranspose group by group, which the reference evaluator only does right for one group."""
    groups = attributes.get("group", 1)
    others = {key: value for key, value in attributes.items() if key != "group"}
    one = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **others)
    parts = zip(np.split(inputs[0], groups, 1), np.split(inputs[1], groups, 0), strict=True)
    found = [ReferenceEvaluator(one, opsets={"": 17}).run(None, {"x": x, "w": w})[0] for x, w in parts]
    result = np.concatenate(found, 1)
    if len(inputs) > 2:
        result += inputs[2].reshape([1, -1, *[1] * (result.ndim - 2)])
    return result
