"""Concat: each part is copied to its place, or was computed there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.movement.interleave import MOST_ROWS, ZipSpec, emit_weave
from sardonyx.compiler.native.movement.copy import CHUNK_BYTES, copy_into
from sardonyx.compiler.native.movement.slices import part_of
from sardonyx.compiler.native.rows.rows import laid_out, memory_order, permuted
from sardonyx.ops.movement import joinable
from sardonyx.ops.shape import axis_of


@template("concat")
class Concat(NativeKernel):
    """The inputs one after the other along ``axis``.

    Parts that are contiguous in the result (nothing is in front of the axis) are not copied where they are the whole
    of a value that earlier steps compute: those steps then write to the result. Nor are parts that were written to
    their slices of it, see `joint_results`. Where most of the parts have their
    channels last in memory, so has the result. A few columns of single elements become one table in one step.
    """

    hands_on = True
    writes_slices = reads_slices = True

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.joins: int = parameters["axis"]

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        parts = [tensor for tensor in inputs if tensor is not None]
        first = parts[0]
        axis = axis_of(self.parameters["axis"], len(first.shape))
        parts = [parts[place] for place in joinable([tensor.shape for tensor in parts], axis)]
        first = parts[0]
        length = sum(tensor.shape[axis] for tensor in parts)
        shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
        written = _written(binder, first, shape)
        order = _order(parts) if written is None else memory_order([written], shape)
        result = laid_out(binder, first.dtype, shape, order) if written is None else written
        if order == tuple(range(len(shape))) and _take_turns(parts, axis):
            _weave(binder, parts, result, axis)
            return [result]
        at = 0
        with binder.together():
            for tensor in parts:
                size = tensor.shape[axis]
                room = part_of(result, axis, at, size)
                if not _lies_in(tensor, room) and not binder.settle(permuted(tensor, order), permuted(room, order)):
                    copy_into(binder, tensor, room)
                at += size
        return [result]


def _written(binder: Binder, first: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """The result where what makes the parts wrote to it; `first` is one of them."""
    if binder.whole is None or len(shape) < 3 or binder.slices[0] is None:
        return None
    last = (shape[0], *shape[2:], shape[1])
    if binder.slices[0].nbytes(first.dtype, last) != binder.whole.nbytes:
        return None
    found = binder.slices[0].within(binder.whole, first.dtype, last)
    return permuted(found, (0, len(shape) - 1, *range(1, len(shape) - 1)))


def _lies_in(part: Tensor, room: Tensor) -> bool:
    """Whether a part was written to its place."""
    (own, start), (whole, begin) = part.buffer.settled(), room.buffer.settled()
    return own is whole and start + part.offset == begin + room.offset and part.strides == room.strides


def _take_turns(parts: Sequence[Tensor], axis: int) -> bool:
    """Whether the result takes one element, or a few that are moved as one, from each part in turn."""
    first = parts[0]
    blob = math.prod(first.shape[axis:]) * first.dtype.itemsize
    return (
        1 < len(parts) <= MOST_ROWS
        and math.prod(first.shape[:axis]) > 1
        and blob in (1, 2, 4, 8)
        and all(tensor.shape == first.shape and tensor.is_contiguous for tensor in parts)
    )


def _weave(binder: Binder, parts: Sequence[Tensor], result: Tensor, axis: int) -> None:
    """Add the step that makes all of the result."""
    size = math.prod(result.shape[:axis])
    blob = parts[0].nbytes // size
    per_chunk = CHUNK_BYTES // (len(parts) * blob)
    binder.step(
        emit_weave,
        ZipSpec(blob, len(parts)),
        [result, size, per_chunk, *parts],
        reads=tuple(parts),
        writes=(result,),
        chunks=-(-size // per_chunk),
        detail=lambda: f"{size} times {len(parts)} elements of {blob} bytes",
    )


def _order(parts: Sequence[Tensor]) -> tuple[int, ...]:
    """The axes of the result in the order in which they lie in memory: row-major, or with axis 1 as the fastest."""
    natural = tuple(range(len(parts[0].shape)))
    last = (0, *natural[2:], 1)
    if len(natural) < 3:
        return natural
    among = sum(tensor.nbytes for tensor in parts if memory_order([tensor], tensor.shape) == last)
    return last if 2 * among > sum(tensor.nbytes for tensor in parts) else natural
