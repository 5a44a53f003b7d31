"""The small models with tensors of another floating point type."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import helper, numpy_helper

# Inputs (by place) that have to be float32 in models of every type.
_ALWAYS_FLOAT = {"Resize": (1, 2), "Upsample": (1,)}


def typed(model: onnx.ModelProto, dtype: str, source: str = "float32") -> onnx.ModelProto:
    """A copy of a model whose values of the type `source` are of `dtype`, names of NumPy or `ml_dtypes`."""
    old, wanted = (helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in (source, dtype))
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kept = {
        node.input[place]
        for graph in _graphs(copy.graph)
        for node in graph.node
        for place in _ALWAYS_FLOAT.get(node.op_type, ())
        if place < len(node.input)
    }
    for graph in _graphs(copy.graph):
        for item in (*graph.input, *graph.output, *graph.value_info):
            if item.type.tensor_type.elem_type == old and item.name not in kept:
                item.type.tensor_type.elem_type = wanted
        for tensor in graph.initializer:
            if tensor.data_type == old and tensor.name not in kept:
                tensor.CopyFrom(_converted(tensor, dtype))
        for node in graph.node:
            if not kept.intersection(node.output):
                _convert_node(node, dtype, old, wanted)
    return copy


def _graphs(graph: onnx.GraphProto) -> Iterable[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _convert_node(node: onnx.NodeProto, dtype: str, old: int, wanted: int) -> None:
    """Constants, and casts."""
    for attribute in node.attribute:
        if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            number = helper.get_attribute_value(attribute)
            tensor = numpy_helper.from_array(np.asarray(number, np.float32).astype(np.dtype(dtype)))
            attribute.CopyFrom(helper.make_attribute("value", tensor))
        elif node.op_type == "Constant" and attribute.name == "value" and attribute.t.data_type == old:
            attribute.t.CopyFrom(_converted(attribute.t, dtype))
        elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == old:
            attribute.i = wanted


def _converted(tensor: onnx.TensorProto, dtype: str) -> onnx.TensorProto:
    contents = numpy_helper.to_array(tensor)
    return numpy_helper.from_array(contents.astype(np.dtype(dtype)), tensor.name)
