"""Small float models, quantised to integer operators and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.quantization.onnx_quantizer import ONNXQuantizer
from sardonyx.quantization.quant_utils import QuantizationMode, QuantType
from sardonyx.quantization.registry import IntegerOpsRegistry, QLinearOpsRegistry

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Range:
    """The calibrated range of a value, as TensorData has it."""

    low: Array
    high: Array

    @property
    def range_value(self) -> tuple[Array, Array]:
        return self.low, self.high


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    """A node that is called after its first output."""
    name = attributes.pop("name", f"{op_type}_{outputs[0]}")
    return helper.make_node(op_type, inputs, outputs, name=name, **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str | None]],
    outputs: Sequence[str],
    constants: Mapping[str, Array],
    *,
    opset: int = 17,
    kind: int = TensorProto.FLOAT,
    kinds: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model; inputs and outputs are of `kind` unless `kinds` says otherwise."""
    kinds = kinds or {}
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, kinds.get(name, kind), shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, kinds.get(name, kind), None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of a model, by this engine."""
    options = sardonyx.SessionOptions()
    options.log_severity_level = 4
    session = sardonyx.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def run_peer(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of a model, by ONNX Runtime.

    Some machines add products of bytes in 16 bits, which may not hold them: a key keeps it from that, but it has no
    products of signed activations then.
    """
    import onnxruntime

    content = proto.SerializeToString()
    for exact in (True, False):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        if exact:
            options.add_session_config_entry("session.x64quantprecision", "1")
        try:
            session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            return session.run(None, dict(feeds))
        except Exception:
            if not exact:
                raise
    raise AssertionError


def ranges_of(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Range]:
    """The ranges of the floats of a model's main graph in one run."""
    everything = onnx.ModelProto()
    everything.CopyFrom(proto)
    present = {value.name for value in everything.graph.output}
    for one in everything.graph.node:
        for name in one.output:
            if name and name not in present:
                everything.graph.output.append(onnx.ValueInfoProto(name=name))
    options = sardonyx.SessionOptions()
    options.log_severity_level = 4
    session = sardonyx.InferenceSession(everything.SerializeToString(), options)
    names = [value.name for value in session.get_outputs()]
    found = dict(zip(names, session.run(names, dict(feeds)), strict=True)) | dict(feeds)
    return {
        name: Range(array.min(), array.max())
        for name, array in found.items()
        if isinstance(array, np.ndarray) and array.dtype in (np.float32, np.float16) and array.size
    }


def quantizer(
    proto: onnx.ModelProto,
    *,
    ranges: Mapping[str, Range] | None = None,
    weight_type: QuantType = QuantType.QInt8,
    activation_type: QuantType = QuantType.QUInt8,
    per_channel: bool = False,
    reduce_range: bool = False,
    operators: Sequence[str] | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    **options: Any,
) -> ONNXQuantizer:
    """A quantizer of a model: dynamic without `ranges`. `options` are the extra options."""
    static = ranges is not None
    registry = QLinearOpsRegistry if static else IntegerOpsRegistry
    return ONNXQuantizer(
        proto,
        per_channel,
        reduce_range,
        QuantizationMode.QLinearOps if static else QuantizationMode.IntegerOps,
        static,
        weight_type,
        activation_type,
        ranges,
        include,
        exclude,
        list(registry) if operators is None else operators,
        options,
    )


def quantized(proto: onnx.ModelProto, **arguments: Any) -> onnx.ModelProto:
    """A model, quantised; see `quantizer`."""
    return quantizer(proto, **arguments).quantize_model()


def operators(proto: onnx.ModelProto) -> list[str]:
    """The operators of the main graph, in order."""
    return [one.op_type for one in proto.graph.node]


def constants(proto: onnx.ModelProto) -> dict[str, Array]:
    """The initializers of the main graph."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def dynamic_quantized(array: Array) -> tuple[Array, np.float32, int]:
    """What DynamicQuantizeLinear gives: the numbers, as integers of 64 bits, the scale and the zero point."""
    low, high = min(array.min(), np.float32(0)), max(array.max(), np.float32(0))
    scale = np.float32((high - low) / np.float32(255))
    if scale == 0:
        return np.zeros(array.shape, np.int64), np.float32(0), 0
    zero_point = int(np.clip(np.rint(-low / scale), 0, 255))
    return np.clip(np.rint(array / scale) + zero_point, 0, 255).astype(np.int64), scale, zero_point


def stored(array: Array, scale: Any, zero_point: int, dtype: Any) -> Array:
    """What QuantizeLinear gives, as integers of 64 bits."""
    limits = np.iinfo(dtype)
    return np.clip(np.rint(array / np.float32(scale)) + zero_point, limits.min, limits.max).astype(np.int64)


def requantized(exact: Array, zero_point: int, dtype: Any, slack: float = 1e-3) -> tuple[Array, Array]:
    """What exact results in units of the output's scale are stored as, and where this is beyond doubt: not where they
    lie within `slack` of a half, which the last bit of a factor decides."""
    limits = np.iinfo(dtype)
    sure = np.abs(np.abs(exact - np.floor(exact)) - 0.5) > slack
    return np.clip(np.rint(exact) + zero_point, limits.min, limits.max).astype(np.int64), sure
