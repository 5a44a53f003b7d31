"""Sizes that shape arithmetic only moves about: read where they are needed, not node by node.

Exported models take sizes out of shapes one at a time, wrap them and join them again. Which size each element is in
the end follows from the model alone. It is found by running those nodes on marks in the place of sizes, twice with
different marks, so that no number of the model can be taken for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compiler.binding import Array
from sardonyx.compiler.interpret import render
from sardonyx.compiler.lowering import Lowered
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Dims
from sardonyx.ops.shape import Shape
from sardonyx.runtime.context import RunContext

# Operators that move elements, whose first input holds them; all inputs of Concat do.
_MOVERS = frozenset({"Concat", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Unsqueeze"})
# The first mark of each of the two runs.
_BASES = (1 << 40, 1 << 41)
# Tensors of more elements are no sizes.
_MOST_ELEMENTS = 64

_QUIET = RunContext()


@dataclass(frozen=True, slots=True)
class PickedSizes:
    """An int64 tensor of `shape` whose elements are numbers, or sizes: pairs of a place in `sources` and an axis."""

    shape: tuple[int, ...]
    sources: tuple[ir.Value, ...]
    elements: tuple[int | tuple[int, int], ...]

    def read(self, shapes: Sequence[Sequence[int]]) -> Array:
        """The contents where the sources have these shapes."""
        numbers = [one if isinstance(one, int) else shapes[one[0]][one[1]] for one in self.elements]
        return np.array(numbers, np.int64).reshape(self.shape)


def picked_sizes(
    items: Sequence[Lowered],
    constant: Callable[[ir.Value], Array | None],
    shape_of: Callable[[ir.Value], Dims | None],
) -> dict[ir.Value, PickedSizes]:
    """The results of known nodes that are nothing but sizes of values and numbers; `items` are in order."""
    return _Search(constant, shape_of).run(items)


class _Search:
    def __init__(
        self, constant: Callable[[ir.Value], Array | None], shape_of: Callable[[ir.Value], Dims | None]
    ) -> None:
        self._constant = constant
        self._shape_of = shape_of
        self._marked: dict[ir.Value, tuple[Array, ...]] = {}  # the contents in both runs
        self._sizes: list[tuple[ir.Value, int]] = []  # what the marks stand for

    def run(self, items: Sequence[Lowered]) -> dict[ir.Value, PickedSizes]:
        for item in items:
            if item.role != "known" or item.node.domain != "":
                continue
            if isinstance(item.operator, Shape):
                self._read(item.node, item.operator)
            elif item.node.op_type in _MOVERS:
                self._move(item)
        return {value: self._picked(*marked) for value, marked in self._marked.items()}

    def _read(self, node: ir.Node, operator: Shape) -> None:
        """Give each size of a shape a mark; the shape of sizes is made of numbers."""
        (source,) = node.inputs
        if source in self._marked:
            numbers = np.array(self._marked[source][0].shape, np.int64)
            self._marked[node.outputs[0]] = (numbers[operator.bounds(len(numbers))],) * len(_BASES)
            return
        shape = None if source is None else self._shape_of(source)
        if source is None or shape is None:
            return
        first = len(self._sizes)
        self._sizes += [(source, axis) for axis in range(len(shape))]
        marks = np.arange(first, len(self._sizes), dtype=np.int64)[operator.bounds(len(shape))]
        self._marked[node.outputs[0]] = tuple([base + marks for base in _BASES])

    def _move(self, item: Lowered) -> None:
        """Move the marks as the node does, where nothing else than its elements depends on them."""
        node = item.node
        runs: list[list[Any]] = [[] for _ in _BASES]
        is_marked = False
        for place, value in enumerate(node.inputs):
            found = self._given(value)
            if found is None or (value in self._marked and place and node.op_type != "Concat"):
                return
            is_marked = is_marked or value in self._marked
            for arrays, array in zip(runs, found, strict=True):
                arrays.append(array)
        if not is_marked or item.kernel is None:
            return
        try:
            call = render(item.kernel)
            moved = [call(_QUIET, arrays) for arrays in runs]
        except Exception:  # the node is at fault, and will say so where it is bound
            return
        for value, *results in zip(node.outputs, *moved, strict=False):
            if all(array.dtype == np.int64 and array.size <= _MOST_ELEMENTS for array in results):
                self._marked[value] = tuple(results)

    def _given(self, value: ir.Value | None) -> tuple[Array | None, ...] | None:
        """The contents of an input in both runs; None where they are not known."""
        if value is None or value.name == "":
            return (None,) * len(_BASES)
        marked = self._marked.get(value)
        if marked is not None:
            return marked
        array = self._constant(value)
        return None if array is None or array.size > _MOST_ELEMENTS else (array,) * len(_BASES)

    def _picked(self, first: Array, second: Array) -> PickedSizes:
        sources: dict[ir.Value, int] = {}
        elements: list[int | tuple[int, int]] = []
        for one, other in zip(first.ravel().tolist(), second.ravel().tolist(), strict=True):
            if one == other:
                elements.append(one)
            else:
                value, axis = self._sizes[one - _BASES[0]]
                elements.append((sources.setdefault(value, len(sources)), axis))
        return PickedSizes(first.shape, tuple(sources), tuple(elements))
