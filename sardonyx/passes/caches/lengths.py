"""How much of the caches is filled, as values of the graph, and sizes that say the same as numbers or as shapes.

The model computes with the length of the past, a size, and with sizes made of it. What it uses them for decides what
stands there afterwards: the contents of a value need how many positions are filled, which is data (`Reading.DATA`); a
shape needs the capacity (`Reading.SHAPE`), of which the new positions are the last then, so that one plan serves
all lengths.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import tensor_of
from sardonyx.graph.types import element_type
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.dims import add, free_symbols
from sardonyx.ops.framework.facts import Dim, known, of_array, same
from sardonyx.ops.framework.inference import Inference
from sardonyx.passes.caches.pairs import Cache, DeclinedError
from sardonyx.passes.rule import stamp

NAME = "CachesInPlace"
PAST_LENGTH = "past_length"
CAPACITY = "cache_length"


class Reading(enum.Enum):
    """What a size is used for."""

    DATA = "data"
    SHAPE = "shape"


@dataclass(frozen=True)
class Sizes:
    """The length of the past as the model calls it, and how many positions are new."""

    past: str
    new: Dim

    @property
    def whole(self) -> Dim:
        """How many positions are filled or new."""
        return add(ir.SymbolicDim(self.past), self.new)

    def depends(self, dim: Dim) -> bool:
        """Whether a dimension has to do with the length of the past."""
        return known(dim) and self.past in free_symbols(dim)

    def is_whole(self, dim: Dim) -> bool:
        return same(dim, self.whole)

    def is_past(self, dim: Dim) -> bool:
        return same(dim, ir.SymbolicDim(self.past))


class Nodes:
    """New nodes of a graph for a rule, of ONNX's operators in the model's opset unless told otherwise."""

    def __init__(self, graph: ir.Graph, opsets: Mapping[str, int], inference: Inference, rule: str = NAME) -> None:
        self._rule = rule
        self._graph, self._opset, self._inference = graph, opsets.get("", 1), inference
        self._constants: dict[Any, ir.Value] = {}
        self._count = 0

    def make(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
    ) -> ir.Node:
        """A node that lies in no graph yet."""
        self._count += 1
        name = f"{self._rule}_{op_type}_{self._count}"
        node = ir.node(op_type, inputs, attributes or {}, version=version or self._opset, name=name)
        node.outputs[0].name = name
        return node

    def constant(self, numbers: Any, dtype: Any = np.int64) -> ir.Value:
        """A constant, the same for the same contents."""
        array = np.asarray(numbers, dtype)
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._constants:
            name = f"{self._rule}_constant_{len(self._constants)}"
            kind = element_type(array.dtype)
            value = ir.Value(
                name=name,
                type=ir.TensorType(kind),
                shape=ir.Shape(array.shape),
                const_value=tensor_of(array, kind, name),
            )
            self._graph.register_initializer(value)
            self._inference.facts[value] = of_array(array, kind)
            self._constants[key] = value
        return self._constants[key]

    def reshaped(self, value: ir.Value, shape: Sequence[int]) -> ir.Node:
        return self.make("Reshape", [value, self.constant(list(shape))])

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Node:
        return self.make("Cast", [value], {"to": int(dtype)})

    @property
    def has_axes_input(self) -> bool:
        """Whether Unsqueeze takes its axes as an input."""
        return self._opset >= 13


class Lengths:
    """What the new input says, at the beginning of the graph: numbers, and one for each batch entry."""

    def __init__(self, graph: ir.Graph, nodes: Nodes, caches: Sequence[Cache], sizes: Sizes) -> None:
        self._nodes, self._graph = nodes, graph
        self._first = graph[0]
        cache = caches[0]
        self.past = ir.Value(name=PAST_LENGTH, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
        graph.inputs.append(self.past)
        shape = self._put("Shape", [cache.past])
        self.capacity = self._put("Gather", [shape, nodes.constant(cache.axis)])
        self.new = self._size(sizes.new)
        self.whole = self._put("Add", [self.past, self.new])
        # Where shapes are meant, the new positions are the last ones of the capacity.
        self.room = self._put("Sub", [self.capacity, self.new])
        batch = self._put("Gather", [shape, nodes.constant([0])])
        self.starts = self._put("Expand", [self.past, batch])
        self.ends = self._put("Expand", [self.whole, batch])
        numbers = self._put("Range", [nodes.constant(0), self.capacity, nodes.constant(1)])
        # Of each position of the capacity, whether it is filled or new.
        self.filled = self._put("Less", [numbers, self.whole])

    def _size(self, dim: Dim) -> ir.Value:
        """A dimension of the inputs, as a number."""
        if isinstance(dim, int):
            return self._nodes.constant(dim)
        for value in self._graph.inputs:
            for axis, other in enumerate(value.shape or ()):
                if not isinstance(other, int) and same(other, dim):
                    return self._put("Gather", [self._put("Shape", [value]), self._nodes.constant(axis)])
        raise DeclinedError(f"no input has a dimension of '{dim}', the number of new positions")

    def _put(self, op_type: str, inputs: Sequence[ir.Value | None]) -> ir.Value:
        node = self._nodes.make(op_type, inputs)
        stamp([node], NAME, [])
        self._graph.insert_before(self._first, node)
        return node.outputs[0]
