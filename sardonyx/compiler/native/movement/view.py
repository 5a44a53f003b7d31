"""Views while binding: the strides and the place of a result that is its first input's memory.

An operator states its view as a NumPy function. Here it is applied to arrays that lie over a room of memory nobody
reads or writes, and what comes back tells the strides and the offset. Shapes of row-major elements are worked out
without that, so that a reshape of a strided value costs no copy that strides can avoid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor, row_major
from sardonyx.compiler.native.movement.copy import contiguous, copy
from sardonyx.compiler.traced import computed
from sardonyx.kernel.program import View
from sardonyx.runtime.memory import memory
from sardonyx.runtime.native.array_address import address_of

_FIRST_ROOM = 1 << 20


class _Room:
    """A range of addresses as large as any buffer; its pages are never touched, so it takes no memory."""

    def __init__(self) -> None:
        self._reserve(_FIRST_ROOM)

    def _reserve(self, nbytes: int) -> None:
        room = np.empty(nbytes, np.uint8)
        self._held = room, address_of(room)

    def _reserve_exactly(self, nbytes: int) -> None:
        try:
            self._reserve(nbytes)
        except MemoryError:
            raise memory.unavailable(nbytes, "a view") from None

    def large_enough(self, nbytes: int) -> tuple[Array, int]:
        """An array of at least so many bytes, and where it begins."""
        if nbytes > self._held[0].nbytes:
            try:
                self._reserve(1 << (nbytes - 1).bit_length())  # a power of two, so that it seldom grows
            except MemoryError:
                self._reserve_exactly(nbytes)
        return self._held


_ROOM = _Room()


def apply_view(binder: Binder, kernel: View, inputs: Sequence[Tensor | None]) -> Sequence[Tensor]:
    """The results of a view whose other inputs are known; copied first where no strides can express it.

    ValueError where a shape breaks the operator's rule, as `kernel.apply` raises it.
    """
    data = inputs[0]
    if data is None:
        raise ValueError("a view needs its first input")
    others = inputs[1:]
    for index, tensor in enumerate(others, 1):
        if tensor is not None and not tensor.is_known:
            raise ValueError(
                f"input {index} decides about the shape of the result, so its contents must be known before"
            )
    if data.array is not None:
        arrays = [None if tensor is None else tensor.array for tensor in others]
        return [binder.constant(np.asarray(array)) for array in _results(kernel, data.array, arrays)]
    if kernel.is_reshape:
        return [_reshaped(binder, kernel, data, others)]
    found = _over(kernel, data, others)
    return apply_view(binder, kernel, [contiguous(binder, data), *inputs[1:]]) if found is None else found


def _over(kernel: View, data: Tensor, others: Sequence[Tensor | None]) -> Sequence[Tensor] | None:
    """The results over the input's buffer; None where one of them cannot be expressed by strides."""
    rank, item, forms = len(data.shape), data.dtype.itemsize, _forms(others)

    def apply(nbytes: int, offset: int, *rest: int) -> Sequence[int]:
        """How many axes each result has, its offset, shape and strides; nothing where one has no strides."""
        room, start = _ROOM.large_enough(nbytes)
        strides = tuple([step * item for step in rest[rank : 2 * rank]])
        array = np.ndarray(rest[:rank], data.dtype, room, offset, strides)
        numbers: list[int] = []
        for result in _results(kernel, array, _arrays(forms, rest[2 * rank :])):
            place, steps = offset, row_major(result.shape)
            if result.size:
                place, steps = address_of(result) - start, tuple([step // item for step in result.strides])
                if not 0 <= place < max(1, nbytes):
                    return ()
            numbers += (result.ndim, place, *result.shape, *steps)
        return numbers

    numbers = computed(apply, (data.buffer.nbytes, data.offset, *data.shape, *data.strides, *_elements(others)))
    found: list[Tensor] = []
    at = 0
    while at < len(numbers):
        count, offset = int(numbers[at]), numbers[at + 1]
        shape, strides = (tuple(numbers[at + 2 + part * count : at + 2 + (part + 1) * count]) for part in (0, 1))
        found.append(Tensor(data.dtype, shape, strides, data.buffer, offset))
        at += 2 + 2 * count
    return found or None


def _elements(others: Iterable[Tensor | None]) -> list[int]:
    """What the other inputs of a view contain, one after the other."""
    return [number for tensor in others if tensor is not None for number in tensor.elements]


# How an array looks: its dtype and its shape.
_Form = tuple[np.dtype[Any], tuple[int, ...]]


def _forms(others: Iterable[Tensor | None]) -> list[_Form | None]:
    return [None if one is None else (one.dtype, tuple(map(int, one.shape))) for one in others]


def _arrays(forms: Iterable[_Form | None], elements: Iterable[int]) -> list[Array | None]:
    """Arrays that look so, with these elements."""
    left = iter(elements)
    return [
        None if form is None else np.array([*itertools.islice(left, math.prod(form[1]))], form[0]).reshape(form[1])
        for form in forms
    ]


def _results(kernel: View, data: Array, others: Sequence[Array | None]) -> tuple[Any, ...]:
    found = kernel.apply(data, *others)
    return found if isinstance(found, tuple) else (found,)


def _reshaped(binder: Binder, kernel: View, data: Tensor, others: Sequence[Tensor | None]) -> Tensor:
    """A view that gives the elements in row order another shape; a copy only where strides cannot express it."""

    rank, forms = len(data.shape), _forms(others)

    def apply(nbytes: int, *rest: int) -> Sequence[int]:
        array = np.ndarray(rest[:rank], data.dtype, _ROOM.large_enough(nbytes)[0])
        found: tuple[int, ...] = _results(kernel, array, _arrays(forms, rest[rank:]))[0].shape
        return found

    shape = tuple(computed(apply, (data.nbytes, *data.shape, *_elements(others))))
    if data.is_contiguous:
        return data.reshaped(shape)
    strides = reshaped_strides(data.shape, data.strides, shape)
    return copy(binder, data).reshaped(shape) if strides is None else data.reshaped(shape, strides)


def reshaped_strides(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> tuple[int, ...] | None:
    """Strides under which the same elements, in the same order, have the shape `target`; None where there are none.

    Groups of axes with equal products are matched from the front; within a group the old axes must follow each other
    in memory. Both shapes hold the same number of elements, at least one.
    """
    old = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    result: list[int] = []
    at = 0
    group: list[tuple[int, int]] = []
    left = 1  # elements of the group that the target's axes have not used up yet
    for size in target:
        if size == 1:
            result.append(0)
            continue
        while left % size or left < size:
            if at == len(old):
                return None
            if group and group[-1][1] != old[at][0] * old[at][1]:
                return None
            group.append(old[at])
            left *= old[at][0]
            at += 1
        left //= size
        result.append(left * group[-1][1])
        if left == 1:
            group = []
    for axis in range(len(target) - 1, -1, -1):
        if target[axis] == 1:  # any stride would do: what it would be in row-major order
            result[axis] = result[axis + 1] * target[axis + 1] if axis + 1 < len(target) else 1
    return tuple(result)
