"""Which tensors of a model are calibrated, and which of their ranges follow from those of others."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16})

# Operators whose result has the elements of their first input, each at least once: in the same channels, or in others.
_KEEP = frozenset({"Identity"})
_MOVE = frozenset({"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_INFINITY = float("inf")


@dataclass(frozen=True)
class Derived:
    """A tensor whose elements are those of `source`, clipped to `low` and `high`."""

    source: str
    low: float = -_INFINITY
    high: float = _INFINITY

    @property
    def clips(self) -> bool:
        """Whether there are elements that differ from those of the source."""
        return self.low > -_INFINITY or self.high < _INFINITY


def infos_of(graph: GraphProto) -> dict[str, ValueInfoProto]:
    """What a graph says of the types of its values, by name."""
    return {info.name: info for info in itertools.chain(graph.value_info, graph.output, graph.input)}


def calibrated(graph: GraphProto, op_types: Collection[str] | None) -> list[str]:
    """The float tensors that nodes of these operators (all, where there are none) read and write, but weights, in the
    order in which they are computed."""
    infos = infos_of(graph)
    weights = {tensor.name for tensor in graph.initializer}
    found: dict[str, None] = {}
    for node in graph.node:
        if not op_types or node.op_type in op_types:
            for name in itertools.chain(node.input, node.output):
                if name in infos and name not in weights and _is_float(infos[name]):
                    found[name] = None
    return list(found)


def element_type(info: ValueInfoProto) -> int:
    """The type of a tensor's elements, as in TensorProto."""
    return int(info.type.tensor_type.elem_type)


def rank_of(info: ValueInfoProto) -> int | None:
    """The number of a tensor's dimensions, where it is known."""
    kind = info.type.tensor_type
    return len(kind.shape.dim) if kind.HasField("shape") else None


def _is_float(info: ValueInfoProto) -> bool:
    return info.type.HasField("tensor_type") and element_type(info) in _FLOATS


def derived(model: ModelProto, tensors: Collection[str], per_channel: bool) -> dict[str, Derived]:
    """Which of the tensors take their range from another one of them, in the order in which they are computed.

    The extremes of what Relu makes are the extremes that it was given, clipped, and no element must be looked at.
    """
    graph = model.graph
    constants = _constants(graph)
    found: dict[str, Derived] = {}
    for node in graph.node:
        if node.domain in ("", "ai.onnx") and node.input and node.input[0] in tensors and node.output[0] in tensors:
            one = _derived(node, constants, per_channel)
            if one is not None:
                found[node.output[0]] = one
    return found


def _derived(node: NodeProto, constants: Mapping[str, TensorProto], per_channel: bool) -> Derived | None:
    if node.op_type == "Relu":
        return Derived(node.input[0], low=0.0)
    if node.op_type in _KEEP or (node.op_type in _MOVE and not per_channel):
        return Derived(node.input[0])
    if node.op_type == "Clip":
        return _clipped(node, constants)
    return None


def _clipped(node: NodeProto, constants: Mapping[str, TensorProto]) -> Derived | None:
    """What Clip does with bounds that are constants."""
    bounds = {"min": -_INFINITY, "max": _INFINITY}
    for attribute in node.attribute:
        bounds[attribute.name] = float(helper.get_attribute_value(attribute))
    for name, value in zip(("min", "max"), node.input[1:], strict=False):
        if value:
            tensor = constants.get(value)
            array = None if tensor is None else numpy_helper.to_array(tensor)
            if array is None or array.size != 1:
                return None
            bounds[name] = float(array.reshape(()))
    if np.isnan([bounds["min"], bounds["max"]]).any() or bounds["min"] > bounds["max"]:
        return None
    return Derived(node.input[0], bounds["min"], bounds["max"])


def _constants(graph: GraphProto) -> dict[str, TensorProto]:
    """Small constants of a graph by name."""
    overridden = {info.name for info in graph.input}
    found = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.name not in overridden and tensor.data_location != TensorProto.EXTERNAL
    }
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            for attribute in node.attribute:
                if attribute.name == "value" and attribute.t.data_location != TensorProto.EXTERNAL:
                    found[node.output[0]] = attribute.t
    return found


def maker_of(graph: GraphProto, tensor: str) -> str:
    """Who makes a tensor, for messages."""
    for node in graph.node:
        if tensor in node.output:
            return f"the result of {node.op_type}" + (f" node {node.name!r}" if node.name else "")
    return "an input of the model"
