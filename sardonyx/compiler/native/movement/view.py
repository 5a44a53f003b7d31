"""Views while binding: the strides and the place of a result that is its first input's memory.

An operator states its view as a NumPy function. Here it is applied to arrays that lie over a room of memory nobody
reads or writes, and what comes back tells the strides and the offset. Shapes of row-major elements are worked out
without that, so that a reshape of a strided value costs no copy that strides can avoid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Buffer, Tensor, row_major
from sardonyx.compiler.native.movement.copy import contiguous, copy
from sardonyx.compiler.traced import computed
from sardonyx.kernel.program import View
from sardonyx.runtime import memory
from sardonyx.runtime.array_address import address_of

_FIRST_ROOM = 64 << 20


class _Room:
    """A range of addresses as large as any buffer; its pages are never touched, so it takes no memory."""

    def __init__(self) -> None:
        self._reserve(_FIRST_ROOM)

    def _reserve(self, nbytes: int) -> None:
        try:
            room = np.empty(nbytes, np.uint8)
        except MemoryError:
            memory.require(nbytes, "a view")  # says it in the words of every other buffer
            raise
        self._held = room, address_of(room)

    def array(self, tensor: Tensor) -> tuple[Array, int]:
        """An array that lies in the room as the tensor lies in its buffer, and the address of the buffer's start."""
        room, address = self._large_enough(tensor.buffer.nbytes)
        item = tensor.dtype.itemsize
        strides = tuple(stride * item for stride in tensor.strides)
        return np.ndarray(tensor.shape, tensor.dtype, room, tensor.offset, strides), address

    def contiguous(self, tensor: Tensor) -> Array:
        """An array of the tensor's shape in row-major order."""
        return np.ndarray(tensor.shape, tensor.dtype, self._large_enough(tensor.nbytes)[0])

    def _large_enough(self, nbytes: int) -> tuple[Array, int]:
        if nbytes > self._held[0].nbytes:
            self._reserve(max(nbytes, 2 * self._held[0].nbytes))
        return self._held


_ROOM = _Room()


def apply_view(binder: Binder, kernel: View, inputs: Sequence[Tensor | None]) -> Sequence[Tensor]:
    """The results of a view whose other inputs are known; copied first where no strides can express it.

    ValueError where a shape breaks the operator's rule, as `kernel.apply` raises it.
    """
    data = inputs[0]
    if data is None:
        raise ValueError("a view needs its first input")
    others = [None if tensor is None else _contents(index, tensor) for index, tensor in enumerate(inputs[1:], 1)]
    if data.array is not None:
        return [binder.constant(np.asarray(array)) for array in _results(kernel, data.array, others)]
    if kernel.is_reshape:
        return [_reshaped(binder, kernel, data, others)]
    found = _over(kernel, data, others)
    return apply_view(binder, kernel, [contiguous(binder, data), *inputs[1:]]) if found is None else found


def _over(kernel: View, data: Tensor, others: Sequence[Array | None]) -> Sequence[Tensor] | None:
    """The results over the input's buffer; None where one of them cannot be expressed by strides."""
    rank = len(data.shape)

    def apply(nbytes: int, offset: int, *look: int) -> Sequence[int]:
        """How many axes each result has, its offset, shape and strides; nothing where one has no strides."""
        given = Tensor(data.dtype, look[:rank], look[rank:], Buffer(nbytes), offset)
        array, start = _ROOM.array(given)
        numbers: list[int] = []
        for result in _results(kernel, array, others):
            placed = _placed(given, result, start)
            if placed is None:
                return ()
            numbers += (len(placed.shape), placed.offset, *placed.shape, *placed.strides)
        return numbers

    numbers = computed(apply, (data.buffer.nbytes, data.offset, *data.shape, *data.strides))
    found: list[Tensor] = []
    at = 0
    while at < len(numbers):
        count, offset = int(numbers[at]), numbers[at + 1]
        shape, strides = (tuple(numbers[at + 2 + part * count : at + 2 + (part + 1) * count]) for part in (0, 1))
        found.append(Tensor(data.dtype, shape, strides, data.buffer, offset))
        at += 2 + 2 * count
    return found or None


def _results(kernel: View, data: Array, others: Sequence[Array | None]) -> tuple[Any, ...]:
    found = kernel.apply(data, *others)
    return found if isinstance(found, tuple) else (found,)


def _contents(index: int, tensor: Tensor) -> Array:
    if tensor.array is None:
        raise ValueError(f"input {index} decides about the shape of the result, so its contents must be known before")
    return tensor.array


def _placed(data: Tensor, result: Array, start: int) -> Tensor | None:
    """The result as a tensor over the input's buffer; None where it lies elsewhere."""
    if result.size == 0:
        return Tensor(data.dtype, result.shape, row_major(result.shape), data.buffer, data.offset)
    offset = result.__array_interface__["data"][0] - start
    if not 0 <= offset < max(1, data.buffer.nbytes):
        return None
    item = data.dtype.itemsize
    return Tensor(data.dtype, result.shape, tuple([stride // item for stride in result.strides]), data.buffer, offset)


def _reshaped(binder: Binder, kernel: View, data: Tensor, others: Sequence[Array | None]) -> Tensor:
    """A view that gives the elements in row order another shape; a copy only where strides cannot express it."""

    def apply(nbytes: int, *look: int) -> Sequence[int]:
        given = Tensor(data.dtype, look, row_major(look), Buffer(nbytes))
        found: tuple[int, ...] = _results(kernel, _ROOM.contiguous(given), others)[0].shape
        return found

    shape = computed(apply, (data.nbytes, *data.shape))
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
