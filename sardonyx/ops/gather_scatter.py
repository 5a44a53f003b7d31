"""Elements by index: Gather, GatherElements, GatherND, ScatterElements, Scatter, ScatterND."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.kernel.program import Kernel
from sardonyx.ops.framework.facts import MAXIMUM_ELEMENTS, UNKNOWN, Dim, Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator, template_unless_text
from sardonyx.ops.shape import axis_of


def out_of_bounds(index: int, size: int, axis: int | None = None) -> errors.InvalidArgument:
    """The error for an index that is none of an axis."""
    where = "" if axis is None else f" on axis {axis}"
    return errors.InvalidArgument(
        f"indices element out of data bounds, idx={index} must be within the inclusive range "
        f"[{-size},{size - 1}]{where}"
    )


def checked(indices: Array, size: int, axis: int | None = None) -> Array:
    """Indices counted from the front; InvalidArgument where one is out of bounds."""
    if indices.size:
        low, high = int(indices.min()), int(indices.max())
        if low < -size or high >= size:
            raise out_of_bounds(low if low < -size else high, size, axis)
        if low < 0:
            return np.where(indices < 0, indices + size, indices)
    return indices


@operator("Gather")
class Gather(Operator):
    """Slices of the data along an axis, in the order and shape of the indices."""

    axis: int = 0

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return template_unless_text("gather", {"axis": self.axis}, self.run, inputs)

    def run(self, data: Array, indices: Array) -> Sequence[Value]:
        axis = axis_of(self.axis, data.ndim)
        try:
            return (np.asarray(data.take(indices, axis)),)
        except IndexError:
            checked(indices, data.shape[axis], axis)
            raise

    def part(self, data: Array, indices: Array) -> Array | None:
        """What `run` gives as a part of the data, without a copy; None where the indices do not follow each other."""
        count = indices.size
        first = int(indices.flat[0]) if count else -1
        if axis_of(self.axis, data.ndim) or first < 0 or first + count > data.shape[0]:
            return None
        if (indices.reshape(-1) != np.arange(first, first + count)).any():
            return None
        return data[first : first + count].reshape((*indices.shape, *data.shape[1:]))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data, indices = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
        if data.shape is None or indices.shape is None:
            return [Fact(data.type, None)]
        axis = axis_of(self.axis, len(data.shape))
        shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
        size = data.shape[axis]
        numbers = indices.integers()
        if numbers is not None and isinstance(size, int):
            wrong = next((index for index in numbers if not -size <= index < size), None)
            if wrong is not None:
                raise ValueError(f"index {wrong} is out of bounds for axis {axis} of size {size}")
        return [Fact(data.type, shape, self._contents(data, indices, shape))]

    def _contents(self, data: Fact, indices: Fact, shape: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
        numbers = indices.integers()
        if data.elements is None or data.rank != 1 or len(shape) > 1 or numbers is None:
            return None
        return tuple(data.elements[index] for index in numbers) if len(numbers) <= MAXIMUM_ELEMENTS else None


def _along(indices: Array, axis: int, size: int, data_shape: tuple[int, ...]) -> tuple[Array, ...]:
    """The index of each element of `indices`, which replaces the coordinate on `axis`."""
    for place, (have, want) in enumerate(zip(indices.shape, data_shape, strict=True)):
        if place != axis and have > want:
            raise ValueError(f"indices have size {have} on axis {place}, more than the data's {want}")
    grid = list(np.ogrid[tuple(slice(dim) for dim in indices.shape)])
    grid[axis] = checked(indices, size, axis).astype(np.intp, copy=False)
    return tuple(grid)


@operator("GatherElements", since=11)
class GatherElements(Operator):
    """For each index, the element of the data at its place with the coordinate on the axis replaced."""

    axis: int = 0

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return template_unless_text("gather_elements", {"axis": self.axis}, self.run, inputs)

    def run(self, data: Array, indices: Array) -> Sequence[Value]:
        if data.ndim != indices.ndim:
            raise ValueError(f"data has {data.ndim} dimensions and indices have {indices.ndim}")
        axis = axis_of(self.axis, data.ndim)
        return (data[_along(indices, axis, data.shape[axis], data.shape)],)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data, indices = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
        return [Fact(data.type, indices.shape)]


@operator("GatherND", since=11)
class GatherND(Operator):
    """Slices of the data whose leading coordinates, behind the batch axes, the last axis of the indices holds."""

    batch_dims: int = 0

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return template_unless_text("gather_nd", {"batch_dims": self.batch_dims}, self.run, inputs)

    def run(self, data: Array, indices: Array) -> Sequence[Value]:
        batch, depth = self.batch_dims, indices.shape[-1]
        if batch + depth > data.ndim:
            raise ValueError(f"indices address {batch + depth} axes, but the data has {data.ndim}")
        grid = np.ogrid[tuple(slice(dim) for dim in indices.shape[:-1])] if batch else []
        place = [
            *grid[:batch],
            *(checked(indices[..., i], data.shape[batch + i], batch + i).astype(np.intp) for i in range(depth)),
        ]
        return (data[tuple(place)] if place else np.broadcast_to(data, (*indices.shape[:-1], *data.shape)).copy(),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data, indices = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
        if data.shape is None or not indices.shape or not isinstance(indices.shape[-1], int):
            return [Fact(data.type, None)]
        used = self.batch_dims + indices.shape[-1]
        if used > len(data.shape):
            raise ValueError(f"indices address {used} axes, but the data has {len(data.shape)}")
        return [Fact(data.type, (*indices.shape[:-1], *data.shape[used:]))]


_REDUCTIONS: dict[str, Callable[[Array, tuple[Any, ...], Array], None]] = {
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def scatter(data: Array, place: tuple[Any, ...], updates: Array, reduction: str) -> Array:
    """A copy of the data with the updates at their places, combined as `reduction` says; later ones win."""
    result = np.array(data)
    if reduction == "none":
        result[place] = updates
    elif reduction in _REDUCTIONS:
        _REDUCTIONS[reduction](result, place, updates)
    else:
        raise ValueError(f"reduction '{reduction}' is none of none, {', '.join(_REDUCTIONS)}")
    return result


class SameAsData(Operator):
    """An operator whose output looks like its first input."""

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data = inputs[0] or UNKNOWN
        return [Fact(data.type, data.shape)]


class ScatterAlong(SameAsData):
    """What Scatter and ScatterElements share."""

    axis: int = 0
    reduction: str = "none"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parameters = {"axis": self.axis, "reduction": self.reduction}
        return template_unless_text("scatter_elements", parameters, self.run, inputs)

    def run(self, data: Array, indices: Array, updates: Array) -> Sequence[Value]:
        if not data.ndim == indices.ndim == updates.ndim or indices.shape != updates.shape:
            raise ValueError(
                f"data {data.shape}, indices {indices.shape} and updates {updates.shape} must have one rank, "
                "and the last two one shape"
            )
        axis = axis_of(self.axis, data.ndim)
        place = _along(indices, axis, data.shape[axis], data.shape)
        return (scatter(data, place, updates, self.reduction),)


@operator("Scatter", since=9)
class Scatter(ScatterAlong):
    """ScatterElements under its old name."""


@operator("ScatterElements", since=11)
class ScatterElements(ScatterAlong):
    """The data with each update at its place, the coordinate on the axis replaced by the index."""


@operator("ScatterND", since=11)
class ScatterND(SameAsData):
    """The data with slices replaced whose leading coordinates the last axis of the indices holds."""

    reduction: str = "none"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return template_unless_text("scatter_nd", {"reduction": self.reduction}, self.run, inputs)

    def run(self, data: Array, indices: Array, updates: Array) -> Sequence[Value]:
        depth = indices.shape[-1]
        expected = (*indices.shape[:-1], *data.shape[depth:])
        if depth > data.ndim or updates.shape != expected:
            raise ValueError(f"updates must have the shape {expected} for these indices, not {updates.shape}")
        place = tuple(checked(indices[..., i], data.shape[i], i).astype(np.intp) for i in range(depth))
        return (scatter(data, place or (np.s_[...],), updates, self.reduction),)
