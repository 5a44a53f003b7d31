"""Parts and repetitions of values, without copies."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.binding import Binder, Tensor, row_major
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.view import reshaped_strides
from sardonyx.compiler.native.rows.rows import memory_order


def part_of(tensor: Tensor, axis: int, first: int, size: int, step: int = 1) -> Tensor:
    """`size` elements along an axis, from `first` on by `step`, which may be negative."""
    shape = (*tensor.shape[:axis], size, *tensor.shape[axis + 1 :])
    stride = tensor.strides[axis]
    strides = (*tensor.strides[:axis], stride * step, *tensor.strides[axis + 1 :])
    return tensor.reshaped(shape, strides, first * stride * tensor.dtype.itemsize)


def inside(tensor: Tensor, ranges: Sequence[tuple[int, int]]) -> Tensor:
    """The elements in the range (first, size) of every axis."""
    for axis, (first, size) in enumerate(ranges):
        if (first, size) != (0, tensor.shape[axis]):
            tensor = part_of(tensor, axis, first, size)
    return tensor


def spread(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """One element everywhere in a shape."""
    return tensor.reshaped(shape, (0,) * len(shape))


def transposed(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """The axes in another order."""
    return tensor.reshaped([tensor.shape[axis] for axis in order], [tensor.strides[axis] for axis in order])


def stored_order(tensor: Tensor) -> tuple[int, ...]:
    """The axes in the order in which the elements lie in memory, slowest first; as they are where elements repeat."""
    if any(size > 1 and stride <= 0 for size, stride in zip(tensor.shape, tensor.strides, strict=True)):
        return tuple(range(len(tensor.shape)))
    return memory_order([tensor], tensor.shape)


def reshaped(binder: Binder, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The elements in row order under another shape of the same size; a copy where no strides express it."""
    if tensor.is_contiguous:
        return tensor.reshaped(shape, row_major(shape))
    strides = reshaped_strides(tensor.shape, tensor.strides, shape)
    return contiguous(binder, tensor).reshaped(shape) if strides is None else tensor.reshaped(shape, strides)
