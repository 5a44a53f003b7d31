"""Iteration spaces of loops over elements: dimensions dropped, joined and ordered for kernels that go row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sardonyx.compiler.binding import SMALL_STEP_NS, Binder, Tensor
from sardonyx.compiler.choice.tuned import tuned
from sardonyx.compiler.llvm.kernels.rows.row_access import Access
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.traced import computed
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class Rates:
    """Rough figures by which a step is cut into chunks.

    bytes_per_ns, operations_per_ns   bytes that a core moves, and vector operations on elements that it does
    chunk_ns       how long a chunk takes: the threads meet at its counter not too often, and it is small enough to
                   balance
    small_step_ns  half of what a step takes that is not worth a second thread
    """

    bytes_per_ns: float = 24.0
    operations_per_ns: float = 120.0
    chunk_ns: float = 2500.0
    small_step_ns: float = float(SMALL_STEP_NS)


def rates() -> Rates:
    """The figures of this machine."""
    return tuned("rows", Rates)


# Elements farther apart than this share no cache line worth the name; copying less than this many is not worth a step.
_CLOSE_BYTES = 32
_WORTH_COPYING = 4096


class Axis(NamedTuple):
    """A dimension of an iteration space: its size, and each operand's step in bytes."""

    size: int
    steps: tuple[int, ...]


def broadcast_steps(tensor: Tensor, rank: int) -> tuple[int, ...]:
    """Byte steps of a tensor along the dimensions of a space of that rank, 0 where it is broadcast."""
    item = tensor.dtype.itemsize
    own = [0 if size == 1 else stride * item for size, stride in zip(tensor.shape, tensor.strides, strict=True)]
    return (*(0,) * (rank - len(own)), *own)


def common_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape to which all of these broadcast; ValueError where there is none."""
    rank = max(map(len, shapes), default=0)
    longest = max(shapes, key=len, default=())
    if all(shape == longest[rank - len(shape) :] for shape in shapes):
        return longest
    result = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if result[axis] not in (1, size):
                    raise ValueError(f"the shapes {', '.join(map(str, shapes))} do not broadcast to one shape")
                result[axis] = size
    return tuple(result)


def memory_order(tensors: Sequence[Tensor], shape: Sequence[int]) -> tuple[int, ...]:
    """The dimensions of a space, slowest first, in the order in which tensors of its size lie in memory.

    Row-major where one of them does, or where none has that size: a loop in this order reads and writes memory in
    sequence, and a permuted value stays permuted.
    """
    natural = tuple(range(len(shape)))
    long = [axis for axis in natural if shape[axis] > 1]
    size, found = math.prod(shape), natural
    for tensor in tensors:
        if tensor.size != size:
            continue
        steps = [abs(step) for step in broadcast_steps(tensor, len(shape))]
        order = sorted(long, key=steps.__getitem__, reverse=True)
        if order == long:
            return natural
        if found == natural:
            found = (*(axis for axis in natural if shape[axis] <= 1), *order)
    return found


def laid_out(binder: Binder, dtype: np.dtype[Any], shape: Sequence[int], order: Sequence[int]) -> Tensor:
    """A new value whose elements lie in memory in the given order of its dimensions, slowest first."""
    tensor = binder.new(dtype, [shape[axis] for axis in order])
    if tuple(order) == tuple(range(len(shape))):
        return tensor
    return permuted(tensor, [list(order).index(axis) for axis in range(len(shape))])


def permuted(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """The same value with its dimensions in another order."""
    shape, strides = [tensor.shape[axis] for axis in order], [tensor.strides[axis] for axis in order]
    return tensor.reshaped(shape, strides)


def in_order(binder: Binder, tensor: Tensor, shape: Sequence[int], order: Sequence[int]) -> Tensor:
    """A tensor of the space's size whose elements a loop in this order finds close together.

    A copy where they are far apart: a copy moves blocks, where the loop would fetch a cache line for each element.
    """
    if not order or tensor.shape != tuple(shape) or shape[order[-1]] == 1:
        return tensor
    fastest = order[-1]
    if abs(tensor.strides[fastest]) * tensor.dtype.itemsize <= _CLOSE_BYTES or tensor.size < _WORTH_COPYING:
        return tensor
    if tensor.array is not None:
        moved = binder.constant(np.ascontiguousarray(tensor.array.transpose(order)))
    else:
        moved = contiguous(binder, permuted(tensor, order))
    return permuted(moved, [list(order).index(axis) for axis in range(len(shape))])


def joined_axes(shape: Sequence[int], steps: Sequence[Sequence[int]]) -> list[Axis]:
    """The axes of a space without those of size 1, neighbours joined where they are one run for every operand."""
    axes: list[Axis] = []
    for index, size in enumerate(shape):
        if size == 1:
            continue
        axis = Axis(size, tuple([one[index] for one in steps]))
        if axes and all(outer == axis.size * inner for outer, inner in zip(axes[-1].steps, axis.steps, strict=True)):
            axes[-1] = Axis(axes[-1].size * size, axis.steps)
        else:
            axes.append(axis)
    return axes


def access_of(step: int, itemsize: int) -> Access:
    """How an operand with this byte step along the row is read."""
    if step == 0:
        return "broadcast"
    return "contiguous" if step == itemsize else "strided"


def elements_per_chunk(elements: int, bytes_per_element: float, operations: float) -> int:
    """How many of a step's elements one chunk should take, 1 at least: all where it is not worth a second thread."""
    known = rates()
    each = max(bytes_per_element / known.bytes_per_ns, operations / known.operations_per_ns, 1e-3)
    (found,) = computed(partial(_chunk_elements, known), (elements, each))
    return found


def _chunk_elements(known: Rates, elements: int, each: float) -> tuple[int]:
    """The same for elements that take `each` so many nanoseconds."""
    if elements * each < 2 * known.small_step_ns:
        return (max(1, elements),)
    return (max(1, math.floor(known.chunk_ns / each)),)


def table_words(axes: Sequence[Axis]) -> list[int]:
    """Rank and rows of a kernel's table of dimensions, the fastest one first."""
    words = [len(axes)]
    for axis in reversed(axes):
        words += [axis.size, *axis.steps]
    return words


def space_size(axes: Sequence[Axis]) -> int:
    return math.prod([axis.size for axis in axes])
