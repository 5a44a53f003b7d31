"""Boxes: the places of a slice of a value, told by where it begins and how it steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Array, Tensor
from sardonyx.light_dataclass import dataclass

# Coordinates of values of more axes are left as they are.
_MOST_AXES = 8


@dataclass(frozen=True)
class Box:
    """Places of a slice of a value: along each of its axes `sizes` elements, of which the axis `along` of the value
    takes the next ones, by `steps`. `begins` are the coordinates of the first element, from the end where negative, as
    those of the last one are then."""

    sizes: tuple[int, ...]
    along: tuple[int, ...]
    steps: tuple[int, ...]
    begins: tuple[int, ...]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Box:
        """The box that these numbers tell of; see `numbers`."""
        rank, rest = numbers[0], tuple(numbers[1:])
        return cls(rest[:rank], rest[rank : 2 * rank], rest[2 * rank : 3 * rank], rest[3 * rank :])

    @property
    def numbers(self) -> list[int]:
        """All that there is to know of it."""
        return [len(self.sizes), *self.sizes, *self.along, *self.steps, *self.begins]

    def last(self, axis: int) -> int:
        """The coordinate of the last element along an axis of the value."""
        reach = zip(self.sizes, self.along, self.steps, strict=True)
        return self.begins[axis] + sum((size - 1) * step for size, along, step in reach if along == axis)

    def within(self, tensor: Tensor) -> Tensor:
        """The elements of a value in these places, whose coordinates it has; behind them those of its further axes."""
        depth = len(self.begins)
        shape, strides = tensor.shape, tensor.strides
        firsts = [begin + (shape[axis] if begin < 0 else 0) for axis, begin in enumerate(self.begins)]
        offset = sum([first * stride for first, stride in zip(firsts, strides, strict=False)]) * tensor.dtype.itemsize
        steps = [step * strides[axis] for axis, step in zip(self.along, self.steps, strict=True)]
        return tensor.reshaped((*self.sizes, *shape[depth:]), (*steps, *strides[depth:]), offset)


def find_box(coordinates: Sequence[Array]) -> Box | None:
    """The box in which elements have these coordinates, an array of the same shape for each axis; None where they are
    no box, or there are none."""
    if not coordinates or not coordinates[0].size or coordinates[0].ndim > _MOST_AXES >= len(coordinates):
        return None
    shape = coordinates[0].shape
    along, steps, begins = [0] * len(shape), [0] * len(shape), []
    for axis, given in enumerate(coordinates):
        # What is expanded is the same along an axis without a step there.
        array = given[tuple([slice(1 if not stride else None) for stride in given.strides])]
        begin = int(array.flat[0])
        moving = [place for place, size in enumerate(array.shape) if size > 1]
        moving = [place for place in moving if int(array[_second(place, array.ndim)]) != begin]
        if len(moving) > 1 or any(steps[place] for place in moving):
            return None
        numbers: int | Array = begin
        for place in moving:
            along[place], steps[place] = axis, int(array[_second(place, array.ndim)]) - begin
            line = begin + steps[place] * np.arange(shape[place])
            if (line[-1] < 0) != (begin < 0):
                return None  # from the end to the beginning
            numbers = line.reshape([-1 if other == place else 1 for other in range(array.ndim)])
        if not (array == numbers).all():
            return None
        begins.append(begin)
    if any(size > 1 and not step for size, step in zip(shape, steps, strict=True)):
        return None  # several of a place
    return Box(shape, tuple(along), tuple(steps), tuple(begins))


def _second(axis: int, rank: int) -> tuple[int, ...]:
    """The place of the second element along an axis."""
    return tuple([1 if other == axis else 0 for other in range(rank)])
