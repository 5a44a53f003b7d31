"""What one run of a model has to do at least: how many operations, and how many bytes come from memory."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

# Nodes that hand their first input on: what reads their result reads the weight behind it.
_PASS_ON = ("Identity", "Transpose", "Reshape", "Cast", "DequantizeLinear", "Unsqueeze", "Squeeze")


@dataclass(frozen=True)
class Work:
    """Of one run: floating-point operations, bytes of weights read, bytes of inputs and outputs."""

    flops: float
    weight_bytes: int
    io_bytes: int

    @property
    def nbytes(self) -> int:
        """The least traffic: every weight and input read once, every output written once."""
        return self.weight_bytes + self.io_bytes


def of_model(folder: Path, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], batch: int = 1) -> Work:
    """The work of a built model of the zoo at its usual sizes, for `batch` examples; `outputs` are those of one."""
    io_bytes = sum(array.nbytes for array in inputs.values()) + batch * sum(one.nbytes for one in outputs.values())
    macs = json.loads((folder / "info.json").read_text())["macs"]
    return Work(2.0 * batch * macs, weight_bytes(onnx.load(folder / "model.onnx", load_external_data=False)), io_bytes)


def weight_bytes(model: onnx.ModelProto) -> int:
    """Bytes of the weights that a run reads whole.

    A table that only Gather reads does not count: a run touches a few of its rows.
    """
    graph = model.graph
    sizes = {tensor.name: _tensor_bytes(tensor) for tensor in graph.initializer}
    source = {name: name for name in sizes}  # of a value: the weight that it hands on
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            sizes[node.output[0]] = _tensor_bytes(node.attribute[0].t)
            source[node.output[0]] = node.output[0]
    read: set[str] = set()
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name not in source:
                continue
            if index == 0 and node.op_type in _PASS_ON:
                source[node.output[0]] = source[name]
            elif not (index == 0 and node.op_type == "Gather"):
                read.add(source[name])
    return sum(sizes[name] for name in read)


def _tensor_bytes(tensor: onnx.TensorProto) -> int:
    elements = math.prod(tensor.dims)
    four_bits = tensor.data_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4)
    return elements // 2 if four_bits else elements * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
