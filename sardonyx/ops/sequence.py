"""Sequences of tensors: SequenceConstruct, SequenceAt, SequenceInsert, SequenceErase, SplitToSequence…

A sequence is a list. Shapes and types are ONNX's own rules.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx import errors
from sardonyx.ops.framework.operator import Array, Operator, Value, operator
from sardonyx.ops.movement import joined
from sardonyx.ops.shape import axis_of


def position_of(position: Array, low: int, high: int, size: int) -> int:
    """A position that counts from the end where it is negative; errors.InvalidArgument outside [low, high]."""
    if position.size != 1:
        raise ValueError(f"a position in a sequence must be one number, not of shape {list(position.shape)}")
    index = int(position.reshape(-1)[0])
    if not low <= index <= high:
        raise errors.InvalidArgument(f"Invalid sequence index ({index}) specified for sequence of size ({size})")
    return index + size if index < 0 else index


class _Sequences(Operator):
    host_reason = "a sequence is a Python list"


@operator("SequenceConstruct", since=11)
class SequenceConstruct(_Sequences):
    """The inputs as a sequence."""

    def run(self, *items: Value) -> Sequence[Value]:
        return (list(items),)


@operator("SequenceEmpty", since=11)
class SequenceEmpty(_Sequences):
    """A sequence without elements, of tensors of type `dtype`."""

    dtype: int = 1

    def run(self) -> Sequence[Value]:
        return ([],)


@operator("SequenceLength", since=11)
class SequenceLength(_Sequences):
    """The number of elements, a scalar."""

    def run(self, items: Value) -> Sequence[Value]:
        return (np.array(len(items), np.int64),)


@operator("SequenceAt", since=11)
class SequenceAt(_Sequences):
    """The element at a position in [-n, n - 1]."""

    def run(self, items: Value, position: Array) -> Sequence[Value]:
        return (items[position_of(position, -len(items), len(items) - 1, len(items))],)


@operator("SequenceInsert", since=11)
class SequenceInsert(_Sequences):
    """The sequence with a tensor before the element at a position in [-n, n], at its end without one."""

    def run(self, items: Value, item: Array, position: Array | None = None) -> Sequence[Value]:
        if items and items[0].dtype != item.dtype:
            raise errors.InvalidArgument(
                f"a tensor of type {item.dtype} does not go into a sequence of tensors of type {items[0].dtype}"
            )
        count = len(items)
        place = count if position is None else position_of(position, -count, count, count)
        return ([*items[:place], item, *items[place:]],)


@operator("SequenceErase", since=11)
class SequenceErase(_Sequences):
    """The sequence without the element at a position in [-n, n - 1], without the last one where none is given."""

    def run(self, items: Value, position: Array | None = None) -> Sequence[Value]:
        count = len(items)
        place = position_of(np.array(-1) if position is None else position, -count, count - 1, count)
        return ([*items[:place], *items[place + 1 :]],)


@operator("SplitToSequence", since=11)
class SplitToSequence(_Sequences):
    """A tensor cut along an axis: into slices of 1, into pieces of one size (the last may be less), or of given sizes.

    Without `split`, `keepdims` = 0 drops the axis.
    """

    axis: int = 0
    keepdims: int = 1

    def run(self, data: Array, split: Array | None = None) -> Sequence[Value]:
        axis = axis_of(self.axis, data.ndim)
        size = data.shape[axis]
        if split is None:
            pieces = np.split(data, size, axis) if size else []
            return ([piece.copy() if self.keepdims else np.squeeze(piece, axis).copy() for piece in pieces],)
        if split.ndim > 1:
            raise ValueError(f"split must be a number or a vector, not of shape {list(split.shape)}")
        if split.ndim == 0:
            piece = int(split)
            if piece <= 0:
                raise ValueError(f"split must be positive, not {piece}")
            if size == 0:
                return ([],)
            ends = np.arange(piece, size, piece)
        else:
            if (split < 0).any() or int(split.sum()) != size:
                raise ValueError(
                    f"Cannot split using values in 'split' attribute: the sizes {split.tolist()} must not be negative "
                    f"and add up to {size}, the size of axis {axis}"
                )
            if split.size == 0:
                return ([],)
            ends = np.cumsum(split)[:-1]
        return ([piece.copy() for piece in np.split(data, ends, axis)],)


@operator("ConcatFromSequence", since=11)
class ConcatFromSequence(_Sequences):
    """The elements joined along an axis, a new one where `new_axis` is 1."""

    axis: int
    new_axis: int = 0

    def run(self, items: Value) -> Sequence[Value]:
        if not items:
            raise errors.InvalidArgument("ConcatFromSequence needs at least one tensor in the sequence")
        if self.new_axis not in (0, 1):
            raise ValueError(f"new_axis must be 0 or 1, not {self.new_axis}")
        if self.new_axis:
            return (np.stack(items, axis_of(self.axis, items[0].ndim + 1)),)
        return (joined(items, self.axis),)
