"""Models of a few bytes: they show what one run and one node cost beside the arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.zoo import registry

CHAIN_LENGTH = 100


def answer(model: registry.Model, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x + _length(model) * y


def _length(model: registry.Model) -> int:
    return CHAIN_LENGTH if model.name == "chain-100-add" else 1


def build(model: registry.Model, path: Path) -> None:
    """Write `one-add` (x + y) or `chain-100-add` (x + y + y + …, one Add each)."""
    length = _length(model)
    values = ["x", *(f"partial_{i}" for i in range(1, length)), "sum"]
    nodes = [helper.make_node("Add", [values[i], "y"], [values[i + 1]], name=f"add_{i}") for i in range(length)]
    inputs = [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.shape) for t in model.inputs]
    outputs = [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.shape) for t in model.outputs]
    graph = helper.make_graph(nodes, model.name, inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", model.opset)], ir_version=8), path)
