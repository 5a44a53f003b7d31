"""Concat: each part is copied to its place, or was computed there."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.native.movement.copy import copy_into
from sardonyx.compiler.native.movement.slices import part_of
from sardonyx.compiler.native.template import NativeKernel, template
from sardonyx.ops.shape import axis_of


@template("concat")
class Concat(NativeKernel):
    """The inputs one after the other along ``axis``.

    Parts that are contiguous in the result (nothing is in front of the axis) are not copied where they are the whole
    of a value that earlier steps compute: those steps then write to the result.
    """

    def bind(self, binder: Binder, inputs: Sequence[Tensor | None]) -> Sequence[Tensor]:
        parts = [tensor for tensor in inputs if tensor is not None]
        first = parts[0]
        axis = axis_of(self.parameters["axis"], len(first.shape))
        for tensor in parts:
            if len(tensor.shape) != len(first.shape) or any(
                here != there
                for place, (here, there) in enumerate(zip(tensor.shape, first.shape, strict=True))
                if place != axis
            ):
                raise ValueError(
                    f"Concat needs equal dimensions except on axis {axis}, not {first.shape} and {tensor.shape}"
                )
        length = sum(tensor.shape[axis] for tensor in parts)
        result = binder.new(first.dtype, (*first.shape[:axis], length, *first.shape[axis + 1 :]))
        at = 0
        with binder.together():
            for tensor in parts:
                size = tensor.shape[axis]
                room = part_of(result, axis, at, size)
                if not binder.settle(tensor, room):
                    copy_into(binder, tensor, room)
                at += size
        return [result]
