"""Data that only moves: Transpose, Slice, Split, Concat, Tile."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.kernel.program import Kernel, View
from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import MAXIMUM_ELEMENTS, UNKNOWN, Dim, Fact, known, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator, template_unless_text
from sardonyx.ops.shape import Viewing, axes_of, axis_of, unknown_shape


@operator("Transpose")
class Transpose(Viewing):
    """Axes in the order of `perm`, reversed where none is given."""

    perm: tuple[int, ...] | None = None

    def _order(self, rank: int) -> tuple[int, ...]:
        order = tuple(range(rank - 1, -1, -1)) if self.perm is None else self.perm
        if sorted(order) != list(range(rank)):
            raise ValueError(f"perm {list(order)} is no permutation of the {rank} axes of the input")
        return order

    def view(self, data: Array) -> Array:
        return data.transpose(self._order(data.ndim))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data = inputs[0] or UNKNOWN
        if data.shape is None:
            return [Fact(data.type, None if self.perm is None else unknown_shape(len(self.perm)))]
        shape = data.shape
        return [Fact(data.type, tuple(shape[axis] for axis in self._order(len(shape))), data.elements)]


class Slicing(Viewing):
    """What both forms of Slice share."""

    def sliced(
        self, data: Array, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None, steps: Sequence[int]
    ) -> Array:
        chosen: list[slice] = [slice(None)] * data.ndim
        places = axes_of(range(len(starts)) if axes is None else axes, data.ndim)
        _check_counts(starts, ends, places, steps)
        for axis, start, end, step in zip(places, starts, ends, steps, strict=True):
            chosen[axis] = _bounds(data.shape[axis], start, end, step)
        return data[tuple(chosen)]

    def inferred(
        self, data: Fact, starts: Sequence[Dim], ends: Sequence[Dim], axes: Sequence[int] | None, steps: Sequence[int]
    ) -> Fact:
        if data.shape is None:
            return Fact(data.type, None)
        places = axes_of(range(len(starts)) if axes is None else axes, len(data.shape))
        _check_counts(starts, ends, places, steps)
        shape = list(data.shape)
        for axis, start, end, step in zip(places, starts, ends, steps, strict=True):
            shape[axis] = sliced_size(shape[axis], start, end, step)
        contents = None
        if data.elements is not None and len(data.shape) == 1 and len(places) == 1:
            start, end = starts[0], ends[0]
            if isinstance(start, int) and isinstance(end, int):
                contents = data.elements[_bounds(len(data.elements), start, end, steps[0])]
        elif data.elements is not None and not places:
            contents = data.elements
        return Fact(data.type, tuple(shape), contents)


def _check_counts(*given: Sequence[Any]) -> None:
    """ValueError unless there are as many starts as ends, axes and steps."""
    counts = [len(one) for one in given]
    if min(counts) != max(counts):
        names = "starts", "ends", "axes", "steps"
        told = ", ".join(f"{count} {name}" for count, name in zip(counts, names, strict=True))
        raise ValueError(f"Slice needs as many of each, not {told}")


def _bounds(size: int, start: int, end: int, step: int) -> slice:
    """The Python slice of an ONNX one: negative bounds count from the end, all are clamped."""
    if step == 0:
        raise ValueError("a step of Slice must not be 0")
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    if size == 0:
        return slice(0, 0, step)
    start = min(max(start, 0), size - 1)
    end = min(max(end, -1), size - 1)
    return slice(start, None if end < 0 else end, step)


def sliced_size(size: Dim, start: Dim, end: Dim, step: int) -> Dim:
    """How many elements a slice takes of an axis; exact where bounds are symbols, unknown where their sign is."""
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(*_bounds(size, start, end, step).indices(size)))
    if not (known(size) and known(start) and known(end)):
        return unknown_dim()
    if step < 0:
        whole = isinstance(start, int) and start in (-1, 2**31 - 1, 2**63 - 1)
        return size if step == -1 and whole and isinstance(end, int) and end < -(2**31) + 2 else unknown_dim()
    first, last = _clamped(size, start), _clamped(size, end)
    if not (known(first) and known(last)):
        return unknown_dim()
    count = dims.ceil_divide(dims.subtract(last, first), step) if step > 1 else dims.subtract(last, first)
    if isinstance(count, int):
        return max(count, 0)
    return count if dims.at_least(count, 0) or first == 0 or _ordered(start, end) else dims.maximum(count, 0)


def _clamped(size: Dim, bound: Dim) -> Dim:
    """A bound counted from the front and kept inside the axis; unknown where a symbol's sign is."""
    if isinstance(bound, int):
        if bound >= 2**31 - 1:
            return size
        if bound < -(2**31) + 2:
            return 0
        if bound < 0:
            shifted = dims.add(size, bound)
            return shifted if dims.at_least(shifted, 0) else dims.maximum(shifted, 0)
        return dims.minimum(size, bound) if not dims.at_least(size, bound) else bound
    if dims.add(size, bound) == 0:
        return 0  # as many from the end as there are; 0 as well where there are none
    if not dims.at_least(bound, 0):
        return unknown_dim()
    if dims.at_least(size, bound):
        return bound
    return size if dims.at_least(bound, size) else dims.minimum(size, bound)


def _ordered(start: Dim, end: Dim) -> bool:
    return dims.at_least(end, start)


@operator("Slice")
class OldSlice(Slicing):
    """Slice before opset 10, with bounds as attributes."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    axes: tuple[int, ...] | None = None

    def view(self, data: Array) -> Array:
        return self.sliced(data, self.starts, self.ends, self.axes, [1] * len(self.starts))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [self.inferred(inputs[0] or UNKNOWN, self.starts, self.ends, self.axes, [1] * len(self.starts))]


@operator("Slice", since=10)
class Slice(Slicing):
    """From starts up to ends by steps along the given axes."""

    def view(
        self, data: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
    ) -> Array:
        first, last = starts.ravel().tolist(), ends.ravel().tolist()
        strides = [1] * len(first) if steps is None else steps.ravel().tolist()
        return self.sliced(data, first, last, None if axes is None else axes.ravel().tolist(), strides)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data, starts, ends = (fact or UNKNOWN for fact in inputs[:3])
        axes = inputs[3].integers() if len(inputs) > 3 and inputs[3] is not None else None
        steps = inputs[4].integers() if len(inputs) > 4 and inputs[4] is not None else None
        axes_given = len(inputs) > 3 and inputs[3] is not None
        steps_given = len(inputs) > 4 and inputs[4] is not None
        if data.shape is None or (axes_given and axes is None):
            return [Fact(data.type, None if data.shape is None else unknown_shape(len(data.shape)))]
        if starts.elements is None or ends.elements is None or (steps_given and steps is None):
            count = starts.shape[0] if starts.shape else None
            places = axes if axes is not None else range(count) if isinstance(count, int) else range(len(data.shape))
            cut = axes_of(places, len(data.shape))
            return [Fact(data.type, tuple(unknown_dim() if i in cut else dim for i, dim in enumerate(data.shape)))]
        strides = steps if steps is not None else [1] * len(starts.elements)
        return [self.inferred(data, starts.elements, ends.elements, axes, strides)]


class Splitting(Operator):
    """What all forms of Split share: parts along one axis, each a view of the input."""

    axis: int = 0

    def parts(self, data: Array, sizes: Sequence[int]) -> tuple[Array, ...]:
        axis = axis_of(self.axis, data.ndim)
        if sum(sizes) != data.shape[axis] or any(size < 0 for size in sizes):
            raise ValueError(f"the parts {list(sizes)} of Split do not add up to dimension {axis}, {data.shape[axis]}")
        ends = np.cumsum([0, *sizes]).tolist()
        lead = (slice(None),) * axis
        return tuple(data[(*lead, slice(start, end))] for start, end in itertools.pairwise(ends))

    def equal_sizes(self, size: int, count: int) -> list[int]:
        """Parts of equal size, the last one smaller where they do not divide the axis."""
        part = -(-size // count)
        return [min(part, max(size - index * part, 0)) for index in range(count)]

    def inferred(self, data: Fact, sizes: Sequence[Dim] | None, count: int) -> Sequence[Fact]:
        if data.shape is None:
            return [Fact(data.type, None)] * count
        axis = axis_of(self.axis, len(data.shape))
        size = data.shape[axis]
        if sizes is None:
            sizes = self.equal_sizes(size, count) if isinstance(size, int) else self._symbolic_sizes(size, count)
        elif isinstance(size, int) and all(isinstance(part, int) for part in sizes) and dims.total(sizes) != size:
            raise ValueError(f"the parts {list(sizes)} of Split do not add up to dimension {axis}, {size}")
        facts = []
        start = 0
        for part in sizes:
            contents = None
            if data.elements is not None and isinstance(part, int):
                contents = data.elements[start : start + part]
                start += part
            facts.append(Fact(data.type, (*data.shape[:axis], part, *data.shape[axis + 1 :]), contents))
        return facts

    def _symbolic_sizes(self, size: Dim, count: int) -> list[Dim]:
        part = dims.ceil_divide(size, count)
        exact = dims.floor_divide(size, count)
        if count == 1 or dims.multiply(exact, count) == size:
            return [exact] * count
        return [*[part] * (count - 1), dims.subtract(size, dims.multiply(part, count - 1))]


@operator("Split")
class OldSplit(Splitting):
    """Split before opset 13, with sizes as an attribute."""

    split: tuple[int, ...] | None = None

    def run(self, data: Array, sizes: Array | None = None) -> Sequence[Value]:
        given = self.split if sizes is None else sizes.ravel().tolist()
        if given is None:
            count = len(self.node.outputs)
            size = data.shape[axis_of(self.axis, data.ndim)]
            if size % count:
                raise ValueError(f"dimension {self.axis} of size {size} does not split into {count} equal parts")
            given = [size // count] * count
        return self.parts(data, given)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return View(self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return self.inferred(inputs[0] or UNKNOWN, self.split, len(self.node.outputs))


@operator("Split", since=13)
class Split(Splitting):
    """Parts of the sizes that the second input holds, or `num_outputs` equal ones."""

    num_outputs: int | None = None

    def run(self, data: Array, sizes: Array | None = None) -> Sequence[Value]:
        if sizes is not None:
            return self.parts(data, sizes.ravel().tolist())
        count = self._count()
        size = data.shape[axis_of(self.axis, data.ndim)]
        if self.version < 18 and size % count:
            raise ValueError(f"dimension {self.axis} of size {size} does not split into {count} equal parts")
        return self.parts(data, self.equal_sizes(size, count))

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return View(self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data = inputs[0] or UNKNOWN
        count = self._count()
        if len(inputs) < 2 or inputs[1] is None:
            return self.inferred(data, None, count)
        if inputs[1].elements is not None:
            return self.inferred(data, inputs[1].elements, count)
        return self.inferred(data, [unknown_dim()] * count, count)

    def _count(self) -> int:
        count = len(self.node.outputs)
        if self.num_outputs not in (None, count):
            raise ValueError(f"num_outputs is {self.num_outputs}, but the node has {count} outputs")
        return count


def joinable(shapes: Sequence[Sequence[int]], axis: int) -> Sequence[int]:
    """Which of these tensors Concat joins: all of them, unless some have other dimensions than the first one that has
    elements (or the first of all). Where such a one has no size along the axis, it is left out, as in onnxruntime.

    ValueError for other dimensions of what has a size along the axis.
    """
    if all(_fits(shape, shapes[0], axis) for shape in shapes):
        return range(len(shapes))
    first = next((shape for shape in shapes if 0 not in shape), shapes[0])
    for shape in shapes:
        if not _fits(shape, first, axis) and (len(shape) != len(first) or shape[axis] != 0):
            raise ValueError(
                f"Concat needs equal dimensions except on axis {axis}, not {tuple(first)} and {tuple(shape)}"
            )
    return [place for place, shape in enumerate(shapes) if _fits(shape, first, axis)]


def _fits(shape: Sequence[int], first: Sequence[int], axis: int) -> bool:
    return len(shape) == len(first) and all(
        place == axis or here == there for place, (here, there) in enumerate(zip(shape, first, strict=True))
    )


def joined(arrays: Sequence[Array], axis: int) -> Array:
    """The arrays one after the other along an axis, which may count from the end."""
    axis = axis_of(axis, arrays[0].ndim)
    return np.concatenate([arrays[place] for place in joinable([array.shape for array in arrays], axis)], axis)


class Concatenation(Operator):
    """What both forms of Concat share."""

    axis: int

    def run(self, *inputs: Value) -> Sequence[Value]:
        return (joined(inputs, self.axis),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if len(inputs) == 1:
            return View(self._alone)
        return template_unless_text("concat", {"axis": self.axis}, self.run, inputs)

    def _alone(self, data: Array) -> Array:
        axis_of(self.axis, data.ndim)
        return data

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        facts = [fact or UNKNOWN for fact in inputs]
        kind = next((fact.type for fact in facts if fact.type is not None), None)
        ranks = {fact.rank for fact in facts if fact.rank is not None}
        if len(ranks) > 1:
            raise ValueError(f"Concat needs inputs of one rank, not {sorted(ranks)}")
        if not ranks:
            return [Fact(kind, None)]
        (rank,) = ranks
        axis = axis_of(self.axis, rank)
        shapes = [fact.shape if fact.shape is not None else unknown_shape(rank) for fact in facts]
        result: list[Dim] = []
        for place in range(rank):
            column = [shape[place] for shape in shapes]
            if place == axis:
                result.append(dims.total(column))
                continue
            numbers = {dim for dim in column if isinstance(dim, int)}
            if len(numbers) > 1:
                raise ValueError(f"Concat needs equal dimensions except on axis {axis}; {place} has {sorted(numbers)}")
            result.append(numbers.pop() if numbers else next((dim for dim in column if known(dim)), column[0]))
        return [Fact(kind, tuple(result), self._contents(facts, rank))]

    def _contents(self, facts: Sequence[Fact], rank: int) -> tuple[Dim, ...] | None:
        if rank != 1:
            return None
        joined: list[Dim] = []
        for fact in facts:
            if fact.elements is not None:
                joined.extend(fact.elements)
            elif fact.shape is not None and isinstance(fact.shape[0], int) and fact.shape[0] <= MAXIMUM_ELEMENTS:
                joined.extend(unknown_dim() for _ in range(fact.shape[0]))
            else:
                return None
        return tuple(joined) if len(joined) <= MAXIMUM_ELEMENTS else None


@operator("Concat")
class OldConcat(Concatenation):
    """Concat before opset 4, along axis 1 unless it says otherwise."""

    axis: int = 1


@operator("Concat", since=4)
class Concat(Concatenation):
    """The inputs one after the other along an axis."""

    axis: int


def repeat_counts(repeats: Array, rank: int) -> list[int]:
    """How often each axis is repeated; ValueError where there is no count for one, or a negative one."""
    times: list[int] = repeats.ravel().tolist()
    if len(times) != rank or any(count < 0 for count in times):
        raise ValueError(f"Tile needs one count for each of {rank} axes, none negative, not {times}")
    return times


@operator("Tile", since=6)
class Tile(Operator):
    """The input repeated along each axis as often as the second input says."""

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return template_unless_text("tile", {}, self.run, inputs)

    def run(self, data: Array, repeats: Array) -> Sequence[Value]:
        return (np.tile(data, repeat_counts(repeats, data.ndim)),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data, repeats = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
        if data.shape is None:
            return [Fact(data.type, None)]
        if repeats.elements is None:
            return [Fact(data.type, unknown_shape(len(data.shape)))]
        if len(repeats.elements) != len(data.shape):
            raise ValueError(f"Tile needs {len(data.shape)} counts, one for each axis, not {len(repeats.elements)}")
        shape = tuple(dims.multiply(dim, count) for dim, count in zip(data.shape, repeats.elements, strict=True))
        return [Fact(data.type, shape)]
