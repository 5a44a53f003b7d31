"""Attention as exporters write it, as small models for the tests of the attention rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]

HEADS, SIZE = 2, 4
WIDTH = HEADS * SIZE
LOWEST = float(np.finfo(np.float32).min)


@dataclass
class Graph:
    """A model under construction; every method that adds something gives its name."""

    opset: int = 17
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, tuple[int, Sequence[int | str]]] = field(default_factory=dict)
    outputs: dict[str, tuple[int, Sequence[int | str]]] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def input(self, name: str, shape: Sequence[int | str], feed: Array) -> str:
        self.inputs[name] = (helper.np_dtype_to_tensor_dtype(feed.dtype), shape)
        self.feeds[name] = feed
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def __call__(self, op_type: str, *inputs: str, count: int = 1, **attributes: Any) -> Any:
        place = len(self.nodes)
        names = [f"{op_type.lower()}{place}" + (f"_{index}" if count > 1 else "") for index in range(count)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, name=f"{op_type}_{place}", **attributes))
        return names if count > 1 else names[0]

    def output(self, name: str, shape: Sequence[int | str] = (), dtype: int = TensorProto.FLOAT) -> None:
        self.outputs[name] = (dtype, shape)

    def normal(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(np.float32)

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "attention",
            [helper.make_tensor_value_info(name, *spec) for name, spec in self.inputs.items()],
            [helper.make_tensor_value_info(name, *spec) for name, spec in self.outputs.items()],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    # The parts of attention

    def hidden(self, batch: int = 2, length: int = 5) -> str:
        return self.input("x", ["b", "s", WIDTH], self.normal(batch, length, WIDTH))

    def projected(self, x: str, width: int = WIDTH) -> str:
        product = self("MatMul", x, self.constant(self.normal(WIDTH, width)))
        return str(self("Add", self.constant(self.normal(width)), product))

    def sizes(self, x: str, *dims: int | str) -> str:
        """A shape as TorchScript computes it: a letter stands for a dimension of `x`."""
        shape = self("Shape", x)
        parts = []
        for dim in dims:
            if isinstance(dim, int):
                parts.append(self.constant([dim], np.int64))
            else:
                taken = self("Gather", shape, self.constant("bs".index(dim), np.int64), axis=0)
                parts.append(self("Unsqueeze", taken, self.constant([0], np.int64)))
        return str(self("Concat", *parts, axis=0))

    def split(self, rows: str, perm: Sequence[int] = (0, 2, 1, 3), size: int = SIZE) -> str:
        """(batch, length, heads * size) as heads, its sizes computed from its own shape."""
        return str(self("Transpose", self("Reshape", rows, self.sizes(rows, "b", -1, HEADS, size)), perm=perm))

    def flipped(self, keys: str) -> str:
        """The last two of four axes exchanged in the way of the dynamo exporter, by way of three."""
        shape = self("Shape", keys)
        last, before = self.constant([-1], np.int64), self.constant([-2], np.int64)
        length = self("Slice", shape, before, last)
        first = self("Slice", shape, self.constant([-(2**63)], np.int64), before)
        size = self.constant([SIZE], np.int64)
        flat = self("Reshape", keys, self("Concat", last, length, size, axis=0))
        swapped = self("Transpose", flat, perm=[0, 2, 1])
        return str(self("Reshape", swapped, self("Concat", first, size, length, axis=0)))

    def merged(self, result: str, x: str, perm: Sequence[int] = (0, 2, 1, 3), width: int = WIDTH) -> str:
        return str(self("Reshape", self("Transpose", result, perm=perm), self.sizes(x, "b", "s", width)))

    def scaled(self, value: str, factor: float = math.sqrt(1 / math.sqrt(SIZE))) -> str:
        return str(self("Mul", value, self.constant([factor])))

    def attended(self, scores: str, values: str, x: str, axis: int = -1) -> str:
        return self.merged(self("MatMul", self("Softmax", scores, axis=axis), values), x)

    def finished(self, result: str, x: str) -> Graph:
        """One more projection, so that the fused node is not an output."""
        last = self.projected(result)
        self.output(last, ["b", "s", WIDTH])
        return self

    def scores(self, x: str) -> tuple[str, str]:
        """Scaled scores and the values of self attention."""
        query, values = self.split(self.projected(x)), self.split(self.projected(x))
        keys = self.split(self.projected(x), (0, 2, 3, 1))
        return self("MatMul", self.scaled(query), self.scaled(keys)), values

    def positions(self, length: str, start: str | None = None) -> str:
        """0, 1, 2, … as Range, moved by `start`."""
        zero, one = self.constant(0, np.int64), self.constant(1, np.int64)
        counted = self("Range", zero, length, one)
        return str(counted if start is None else self("Add", counted, start))

    def size(self, x: str, axis: int) -> str:
        """One dimension of a value, as a scalar."""
        return str(self("Gather", self("Shape", x), self.constant(axis, np.int64), axis=0))

    def causal(self, queries: str, keys: str, past: str | None = None) -> str:
        """Which keys stand at or before their query: (1, 1, queries, keys) from two scalars."""
        columns = self("Unsqueeze", self.positions(keys), self.constant([0], np.int64))
        rows = self("Unsqueeze", self.positions(queries, past), self.constant([1], np.int64))
        visible = self("LessOrEqual", columns, rows)
        return str(self("Unsqueeze", visible, self.constant([0, 1], np.int64)))


def masks(batch: int, length: int) -> Mapping[str, Array]:
    """Masks over a batch: 1 and 0, with the last positions of the second entry hidden."""
    mask = np.ones((batch, length), np.int64)
    mask[1:, -2:] = 0
    return {"integers": mask, "added": np.where(mask, 0, LOWEST).astype(np.float32)}
