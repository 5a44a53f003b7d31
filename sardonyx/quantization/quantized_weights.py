"""The weights of a quantised model as the numbers that it computes with, beside those of the float model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import nodes_of
from sardonyx.graph.load import load_model
from sardonyx.ops.framework.registry import operator_of
from sardonyx.quantization.quant_utils import TENSOR_NAME_QUANT_SUFFIX

Array = np.ndarray[Any, Any]

# Integer operators by the axis of a weight that its scales go along, where there are several.
_OUTPUT_CHANNELS_FIRST = frozenset({"QLinearConv", "ConvInteger"})


def dequantized_weights(
    float_model: str | os.PathLike[str], quantised_model: str | os.PathLike[str]
) -> Iterator[tuple[str, Array, Array]]:
    """The name of each weight that is quantised, its values in the float model, and those of the quantised one.

    A weight is looked up by its name, which a quantizer may have continued by ``_quantized``; behind DequantizeLinear
    in a model of QDQ, in one of integer operators with the scale and the zero point beside it. The errors of loading.
    """
    loaded, quantised = load_model(os.fspath(float_model)), load_model(os.fspath(quantised_model))
    weights = _constants(loaded.model)
    constants = _constants(quantised.model)
    seen: set[str] = set()
    for node in nodes_of(quantised.model.graph):
        for name, values in _of_node(node, constants):
            weight = weights.get(name)
            if weight is not None and name not in seen and tuple(weight.shape.numpy()) == values.shape:
                seen.add(name)
                yield name, np.asarray(weight.numpy()), values


def _of_node(node: ir.Node, constants: dict[str, ir.TensorProtocol]) -> Iterator[tuple[str, Array]]:
    """The weights that a node makes real or reads quantised: their names in the float model, and their values."""
    if node.op_type == "DequantizeLinear":
        before = None if node.inputs[0] is None else node.inputs[0].producer()
        if before is not None and before.op_type == "QuantizeLinear":
            quantised = _run(before, [_array(value, constants) for value in before.inputs])
            name = before.inputs[0].name if before.inputs[0] is not None else None
        else:
            quantised = _array(node.inputs[0], constants)
            name = None if node.inputs[0] is None else node.inputs[0].name
        values = _run(node, [quantised, *(_array(value, constants) for value in node.inputs[1:])])
        if values is not None and name is not None:
            yield name.removesuffix(TENSOR_NAME_QUANT_SUFFIX), values
        return
    for value in node.inputs:
        if value is None or value.name is None or not value.name.endswith(TENSOR_NAME_QUANT_SUFFIX):
            continue
        name = value.name.removesuffix(TENSOR_NAME_QUANT_SUFFIX)
        stored, scale = _array(value, constants), constants.get(f"{name}_scale")
        if stored is not None and scale is not None:
            zero = constants.get(f"{name}_zero_point")
            axis = 0 if node.op_type in _OUTPUT_CHANNELS_FIRST else stored.ndim - 1
            yield name, _real(stored, scale.numpy(), None if zero is None else zero.numpy(), axis)


def _run(node: ir.Node, inputs: list[Array | None]) -> Array | None:
    """What a node gives for constants; None where an input is none."""
    if any(array is None and value is not None for array, value in zip(inputs, node.inputs, strict=True)):
        return None
    (result,) = operator_of(node).run(*inputs)
    return np.asarray(result)


def _real(stored: Array, scale: Array, zero_point: Array | None, axis: int) -> Array:
    """Integers as the numbers that they stand for; several scales go along `axis`."""
    shape = [1] * stored.ndim
    if scale.size > 1:
        shape[axis] = scale.size
    zero = np.zeros(1) if zero_point is None else zero_point.astype(np.float64)
    zero = zero.reshape(shape if zero.size > 1 else [1] * stored.ndim)
    return ((stored.astype(np.float64) - zero) * scale.astype(np.float64).reshape(shape)).astype(scale.dtype)


def _array(value: ir.Value | None, constants: dict[str, ir.TensorProtocol]) -> Array | None:
    tensor = None if value is None or value.name is None else constants.get(value.name)
    return None if tensor is None else np.asarray(tensor.numpy())


def _constants(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """Initializers and the results of Constant nodes, by name."""
    found = {
        name: value.const_value for name, value in model.graph.initializers.items() if value.const_value is not None
    }
    for node in nodes_of(model.graph):
        if node.op_type == "Constant" and "value" in node.attributes and node.outputs[0].name:
            found[node.outputs[0].name] = node.attributes["value"].as_tensor()
    return found
