"""Small models that the tests of the API share."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper


def add_and_multiply() -> bytes:
    """y = x + x, z = x * x for float tensors [n, 3]."""
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Add", ["x", "x"], ["y"], name="add0"), helper.make_node("Mul", ["x", "x"], ["z"])]
    outputs = [info("y", TensorProto.FLOAT, ["n", 3]), info("z", TensorProto.FLOAT, ["n", 3])]
    return serialized(helper.make_graph(nodes, "g", [info("x", TensorProto.FLOAT, ["n", 3])], outputs))


def add_weight(weight: np.ndarray) -> bytes:
    """y = x + w, where w is an initializer that a caller may override."""
    info = helper.make_tensor_value_info
    kind = TensorProto.FLOAT
    inputs = [info("x", kind, weight.shape), info("w", kind, weight.shape)]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        inputs,
        [info("y", kind, weight.shape)],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    return serialized(graph)


def serialized(graph: onnx.GraphProto) -> bytes:
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
