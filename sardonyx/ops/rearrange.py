"""Parts of a tensor kept, moved or replaced by place: Trilu, ReverseSequence, CenterCropPad, TensorScatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.kernel.program import Kernel
from sardonyx.ops.framework.facts import UNKNOWN, Dim, Fact, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator, template_unless_text
from sardonyx.ops.shape import axes_of, axis_of


class _SameShape(Operator):
    """An operator whose output has the type and shape of its first input."""

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data = inputs[0] or UNKNOWN
        return [Fact(data.type, data.shape)]


@operator("Trilu", since=14)
class Trilu(_SameShape):
    """The upper or lower triangle of each matrix from diagonal k on, zeros elsewhere."""

    upper: int = 1

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return template_unless_text("triangle", {"upper": self.upper}, self.run, inputs)

    def run(self, data: Array, k: Array | None = None) -> Sequence[Value]:
        if data.ndim < 2:
            raise ValueError(f"the input must have at least 2 dimensions, not {data.ndim}")
        if k is not None and k.size != 1:
            raise ValueError(f"k must have one element, not shape {list(k.shape)}")
        rows, columns = data.shape[-2:]
        # A diagonal beyond the corners is none; so large a number must not overflow.
        diagonal = 0 if k is None else min(max(int(k.reshape(-1)[0]), -rows - 1), columns + 1)
        offset = np.arange(columns) - np.arange(rows)[:, None]
        kept = offset >= diagonal if self.upper else offset <= diagonal
        return (np.where(kept, data, np.zeros((), data.dtype)),)


def sequence_axes(shape: Sequence[int], lengths: Sequence[int], batch: int, time: int) -> tuple[int, int]:
    """The batch and the time axis; ValueError where they are not the first two or the lengths not the batch's."""
    if len(shape) < 2:
        raise ValueError(f"the input must have at least 2 dimensions, not {len(shape)}")
    batch, time = axis_of(batch, len(shape)), axis_of(time, len(shape))
    if {batch, time} != {0, 1}:
        raise ValueError(f"batch_axis and time_axis must be 0 and 1 or 1 and 0, not {batch} and {time}")
    if tuple(lengths) != (shape[batch],):
        raise ValueError(f"sequence_lens must have shape [{shape[batch]}], the batch's, not {list(lengths)}")
    return batch, time


def length_out_of_range(length: int, steps: int) -> str:
    """The message for a sequence that cannot be so long."""
    return f"a length of sequence_lens, {length}, must lie in [0, {steps}], the time axis's size"


@operator("ReverseSequence", since=10)
class ReverseSequence(_SameShape):
    """The first sequence_lens[b] elements along the time axis of each batch entry b in reverse order."""

    batch_axis: int = 1
    time_axis: int = 0

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parameters = {"batch_axis": self.batch_axis, "time_axis": self.time_axis}
        return template_unless_text("reverse_sequence", parameters, self.run, inputs)

    def run(self, data: Array, sequence_lens: Array) -> Sequence[Value]:
        _, time = sequence_axes(data.shape, sequence_lens.shape, self.batch_axis, self.time_axis)
        steps = data.shape[time]
        wrong = sequence_lens[(sequence_lens < 0) | (sequence_lens > steps)]
        if wrong.size:
            raise ValueError(length_out_of_range(int(wrong[0]), steps))
        place = np.arange(steps)[:, None]
        source = np.where(place < sequence_lens, sequence_lens - 1 - place, place)
        entry = np.arange(sequence_lens.size)
        if time == 0:
            return (data[source, entry],)
        return (data[entry[:, None], source.T],)


Widths = tuple[tuple[int, int], ...]


def centred(shape: Sequence[int], axes: Sequence[int], wanted: Sequence[int]) -> tuple[Widths, Widths]:
    """What is cut from each axis before and after, and what is added, so that the axes get the wanted sizes.

    ValueError where there is no size for each axis, or a negative one.
    """
    if len(wanted) != len(axes):
        raise ValueError(f"shape must have one size for each of {len(axes)} axes, got {list(wanted)}")
    if any(size < 0 for size in wanted):
        raise ValueError(f"shape must not hold a negative size, got {list(wanted)}")
    cut, added = [(0, 0)] * len(shape), [(0, 0)] * len(shape)
    for axis, size in zip(axes, wanted, strict=True):
        excess = abs(size - shape[axis])
        sides = (excess // 2, excess - excess // 2)
        if size < shape[axis]:
            cut[axis] = sides
        else:
            added[axis] = sides
    return tuple(cut), tuple(added)


@operator("CenterCropPad", since=18)
class CenterCropPad(Operator):
    """The middle of the input with the given sizes, zeros around it where they are larger.

    An odd excess leaves one element more at the end: cut from it or padded onto it.
    """

    axes: tuple[int, ...] | None = None

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return template_unless_text("center_crop_pad", {"axes": self.axes}, self.run, inputs)

    def run(self, data: Array, shape: Array) -> Sequence[Value]:
        cut, added = centred(data.shape, self._places(data.ndim), shape.ravel().tolist())
        sizes = [size - sum(less) + sum(more) for size, less, more in zip(data.shape, cut, added, strict=True)]
        source = [slice(before, size - after) for size, (before, after) in zip(data.shape, cut, strict=True)]
        target = [slice(before, size - after) for size, (before, after) in zip(sizes, added, strict=True)]
        result = np.zeros(sizes, data.dtype)
        result[tuple(target)] = data[tuple(source)]
        return (result,)

    def _places(self, rank: int) -> tuple[int, ...]:
        return axes_of(range(rank) if self.axes is None else self.axes, rank)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data, shape = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
        if data.shape is None:
            return [Fact(data.type, None)]
        places = self._places(len(data.shape))
        wanted: Sequence[Dim] | None = shape.integers() or shape.elements
        if wanted is None:
            wanted = [unknown_dim() for _ in places]
        if len(wanted) != len(places):
            raise ValueError(f"shape must have one size for each of {len(places)} axes, got {len(wanted)}")
        sizes = list(data.shape)
        for axis, size in zip(places, wanted, strict=True):
            sizes[axis] = size
        return [Fact(data.type, tuple(sizes))]


def sequence_axis(
    cache: Sequence[int], update: Sequence[int], firsts: Sequence[int] | None, axis: int, mode: str
) -> int:
    """The axis of TensorScatter counted from the front; ValueError where mode or shapes do not fit."""
    axis = axis_of(axis, len(cache))
    if axis == 0:
        raise ValueError("axis must not be 0, the batch axis")
    if mode not in ("linear", "circular"):
        raise ValueError(f"mode must be linear or circular, not '{mode}'")
    expected = (*cache[:axis], *update[axis : axis + 1], *cache[axis + 1 :])
    if tuple(update) != expected or update[axis] > cache[axis]:
        raise ValueError(
            f"update of shape {list(update)} does not fit past_cache of shape {list(cache)}: "
            f"they may differ on axis {axis} alone, where the update must not be longer"
        )
    if firsts is not None and tuple(firsts) != (cache[0],):
        raise ValueError(f"write_indices must have shape [{cache[0]}], the batch's, not {list(firsts)}")
    return axis


def no_room(start: int, length: int, room: int, mode: str) -> str:
    """The message for a write index that cannot be."""
    if start < 0 or mode == "circular":
        return f"write_indices must not be negative, as {start} is"
    return f"write_indices leave no room for {length} of {room} places from {start} on"


@operator("TensorScatter", since=24)
class TensorScatter(_SameShape):
    """A cache with an update written along the sequence axis of each batch entry, from its write index on.

    `past_cache` is (batch, …, max, …), `update` the same but for its sequence's size; mode "circular" wraps around.
    """

    axis: int = -2
    mode: str = "linear"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return template_unless_text("tensor_scatter", {"axis": self.axis, "mode": self.mode}, self.run, inputs)

    def run(self, past_cache: Array, update: Array, write_indices: Array | None = None) -> Sequence[Value]:
        given = None if write_indices is None else write_indices.shape
        axis = sequence_axis(past_cache.shape, update.shape, given, self.axis, self.mode)
        room, length, batch = past_cache.shape[axis], update.shape[axis], past_cache.shape[0]
        starts = np.zeros(batch, np.int64) if write_indices is None else write_indices
        for start in starts.tolist():
            if start < 0 or (self.mode == "linear" and start + length > room):
                raise ValueError(no_room(start, length, room, self.mode))
        places = starts[:, None].astype(np.int64) + np.arange(length)
        if self.mode == "circular":
            places %= max(room, 1)
        result = past_cache.copy()
        moved, source = np.moveaxis(result, axis, 1), np.moveaxis(update, axis, 1)
        moved[np.arange(batch)[:, None], places] = source
        return (result,)
