"""Small models with constant weights, and what quantised ones stand for, in float64."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]

N = helper.make_node


def value(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    constants: Mapping[str, Array | onnx.TensorProto],
    kind: int = TensorProto.FLOAT,
    opset: int = 17,
    output: str = "y",
) -> onnx.ModelProto:
    tensors = [
        one if isinstance(one, onnx.TensorProto) else numpy_helper.from_array(one, name)
        for name, one in constants.items()
    ]
    graph = helper.make_graph(nodes, "g", inputs, [value(output, None, kind)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def product_model(weight: Array, rank: int = 2) -> onnx.ModelProto:
    """One MatMul, `product`, of rows "x" with the constant "w"."""
    kind = numpy_helper.from_array(weight).data_type
    inner = weight.shape[-2] if weight.ndim > 1 else weight.shape[0]
    shape = ["n"] * (rank - 1) + [inner]
    return model_of([N("MatMul", ["x", "w"], ["y"], name="product")], [value("x", shape, kind)], {"w": weight}, kind)


def table_model(table: Array, axis: int = 0) -> onnx.ModelProto:
    """One Gather, `rows`, of the constant "t"."""
    kind = numpy_helper.from_array(table).data_type
    nodes = [N("Gather", ["t", "ids"], ["y"], name="rows", axis=axis)]
    return model_of(nodes, [value("ids", ["n"], TensorProto.INT64)], {"t": table}, kind)


def constants_of(model: onnx.ModelProto) -> dict[str, Array]:
    """The initializers; numbers of few bits as int64."""
    found = {}
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        found[tensor.name] = array if array.dtype.kind in "fiu" else array.astype(np.int64)
    return found


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    return {one.name: helper.get_attribute_value(one) for one in node.attribute}


def unpacked(codes: Array, bits: int, count: int) -> Array:
    """The numbers of bytes along the last axis, int64, the lowest bits of a byte first."""
    parts = codes.astype(np.int64)[..., None] >> np.arange(0, 8, bits) & (1 << bits) - 1
    return parts.reshape(*codes.shape[:-1], -1)[..., :count]


def product_weight(model: onnx.ModelProto, node: onnx.NodeProto | None = None) -> Array:
    """The weight [K, N] of the (first) MatMulNBits or of a product behind a DequantizeLinear, in float64."""
    held = constants_of(model)
    if node is None:
        node = next(one for one in model.graph.node if one.op_type in ("MatMulNBits", "DequantizeLinear"))
    given = attributes_of(node)
    if node.op_type == "DequantizeLinear":
        return dequantized(model, node)
    rows, length, bits, block = (given[name] for name in ("N", "K", "bits", "block_size"))
    blocks = -(-length // block)
    codes = unpacked(held[node.input[1]].reshape(rows, -1), bits, length)
    scales = held[node.input[2]].astype(np.float64).reshape(rows, blocks)
    zeros = np.full((rows, blocks), 1 << bits - 1, np.float64)
    if len(node.input) > 3:
        points = held[node.input[3]]
        packed = points.dtype == np.uint8
        zeros = unpacked(points.reshape(rows, -1), bits, blocks) if packed else points.reshape(rows, blocks)
    spread = [np.repeat(each, block, 1)[:, :length] for each in (zeros, scales)]
    return ((codes - spread[0]) * spread[1]).T


def dequantized(model: onnx.ModelProto, node: onnx.NodeProto) -> Array:
    """What a blocked DequantizeLinear of constants makes, in float64."""
    held, given = constants_of(model), attributes_of(node)
    codes = held[node.input[0]].astype(np.float64)
    axis, block = given["axis"], given["block_size"]
    size = codes.shape[axis]

    def spread(parameter: Array) -> Array:
        return np.take(np.repeat(parameter.astype(np.float64), block, axis), np.arange(size), axis)

    zeros = spread(held[node.input[2]]) if len(node.input) > 2 else 0
    return (codes - zeros) * spread(held[node.input[1]])


def table_of(model: onnx.ModelProto) -> Array:
    """The table of a GatherBlockQuantized, in float64."""
    (node,) = (one for one in model.graph.node if one.op_type == "GatherBlockQuantized")
    held, given = constants_of(model), attributes_of(node)
    codes, scales = held[node.input[0]], held[node.input[2]].astype(np.float64)
    block, axis, bits = given["block_size"], given["quantize_axis"], given.get("bits", 4)
    zeros: Array | int = 0
    if codes.dtype == np.uint8:
        codes, zeros = unpacked(codes, bits, codes.shape[-1] * 8 // bits), 1 << bits - 1
    if len(node.input) > 3:
        zeros = held[node.input[3]]
        zeros = unpacked(zeros, bits, scales.shape[-1]) if zeros.dtype == np.uint8 else zeros
        zeros = np.take(np.repeat(zeros, block, axis), np.arange(codes.shape[axis]), axis)
    return (codes - zeros) * np.take(np.repeat(scales, block, axis), np.arange(codes.shape[axis]), axis)
