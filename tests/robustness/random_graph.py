"""A graph that grows by random nodes: its values with their shapes and readers, and the model that they make."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Dim = int | str
Shape = tuple[Dim, ...]
Array = NDArray[Any]

# The dimension whose size comes with the run.
N = "n"
_RECENT, _MOST_ELEMENTS, _LARGEST_BATCH = 8, 60_000, 6
_OPSET, _IR_VERSION = 20, 9


class RandomGraph:
    """Tensors of float32 unless their makers say otherwise, and what makes them."""

    def __init__(self, seed: int) -> None:
        self.choose, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[str] = []
        self.shapes: dict[str, Shape] = {}
        self._constants: list[onnx.TensorProto] = []
        self._others: set[str] = set()
        self._read: set[str] = set()
        self._names = 0

    def input(self) -> None:
        rank = self.choose.choice([2, 3, 3, 4, 4])
        shape: list[Dim] = [self.choose.choice([N, N, 1, 2])]
        sizes = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32)
        shape += [self.choose.choice(sizes) for _ in range(rank - 1)]
        if rank == 4:
            of_images = (1, 3, 4, 8, 16, 17, 32), (4, 5, 8, 9, 14), (4, 5, 9, 14, 20)
            shape[1:] = [self.choose.choice(sizes) for sizes in of_images]
        name = self._name("x")
        self.inputs.append(name)
        self.shapes[name] = tuple(shape)

    def constant(self, array: Any, dtype: Any = None) -> str:
        name = self._name("c")
        self._constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def integers(self, *values: int) -> str:
        """A constant vector."""
        return self.constant(values, np.int64)

    def number(self, value: float) -> str:
        return self.constant(value, np.float32)

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        return self.constant(self.numbers.standard_normal(shape) * scale, np.float32)

    def add(self, operator: str, inputs: Sequence[str], *shapes: Sequence[Dim], **attributes: Any) -> list[str]:
        """A node with results of these shapes, unless one would be too large; the names of its results."""
        if any(self.elements(shape) > _MOST_ELEMENTS for shape in shapes):
            raise DoesNotFitError
        outputs = [self._name("v") for _ in shapes]
        self.nodes.append(helper.make_node(operator, inputs, outputs, **attributes))
        self._read.update(inputs)
        self.shapes.update((name, tuple(shape)) for name, shape in zip(outputs, shapes, strict=True))
        return outputs

    def one(self, operator: str, inputs: Sequence[str], shape: Sequence[Dim], **attributes: Any) -> str:
        """A node with one result."""
        return self.add(operator, inputs, shape, **attributes)[0]

    def other(self, operator: str, inputs: Sequence[str], *shapes: Sequence[Dim], **attributes: Any) -> list[str]:
        """A node with results of another type, which no later node takes by chance."""
        found = self.add(operator, inputs, *shapes, **attributes)
        self._others.update(found)
        return found

    def best(self, operator: str, inputs: Sequence[str], shape: Sequence[Dim], **attributes: Any) -> None:
        """A node that gives values and, as a second result, where they were."""
        _, places = self.add(operator, inputs, shape, shape, **attributes)
        self._others.add(places)

    def pick(self, fits: Callable[[Shape], bool] = lambda _: True) -> str:
        """A value whose shape fits: rather one that nobody reads yet, else one of the last."""
        found = [name for name, shape in self.shapes.items() if name not in self._others and fits(shape)]
        fresh = [name for name in found if name not in self._read]
        if fresh and self.choose.random() < 0.6:
            return self.choose.choice(fresh)
        if not found:
            raise DoesNotFitError
        return self.choose.choice(found[-_RECENT:])

    def elements(self, shape: Sequence[Dim]) -> int:
        """How many there are in a tensor with the largest batch."""
        return int(np.prod([_LARGEST_BATCH if isinstance(dim, str) else dim for dim in shape]))

    def outputs(self) -> list[str]:
        """Results that nobody reads, and now and then some that others read too."""
        made = [name for name in self.shapes if name not in self.inputs and name not in self._others]
        ends = [name for name in made if name not in self._read]
        inner = [name for name in made if name in self._read]
        return ends[:10] + self.choose.sample(inner, min(len(inner), self.choose.choice([0, 0, 1, 2])))

    def model(self, outputs: Sequence[str]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name]) for name in self.inputs],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [constant for constant in self._constants if constant.name in self._read],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)

    def feeds(self, batch: int) -> Mapping[str, Array]:
        """Inputs with so many items."""
        return {
            name: self.numbers.standard_normal([batch if dim == N else int(dim) for dim in self.shapes[name]]).astype(
                np.float32
            )
            for name in self.inputs
        }

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"


class DoesNotFitError(Exception):
    """What was to be added does not fit the graph as it is."""
