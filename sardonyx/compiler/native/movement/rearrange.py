"""Copies under another order of axes: Tile, DepthToSpace, SpaceToDepth."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.native.movement.copy import contiguous, copy_into
from sardonyx.compiler.native.movement.slices import reshaped, transposed
from sardonyx.ops.movement import repeat_counts
from sardonyx.ops.space_depth import Rearrangement, depth_to_space_axes, space_to_depth_axes


@template("tile")
class Tile(NativeKernel):
    """The data repeated along each axis as often as the second input says."""

    known_inputs = (1,)

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data, repeats = inputs
        assert data is not None
        assert repeats is not None
        assert repeats.array is not None
        times = repeat_counts(repeats.array, len(data.shape))
        if all(count == 1 for count in times):
            return [data]
        result = binder.new(data.dtype, [size * count for size, count in zip(data.shape, times, strict=True)])
        split = tuple(itertools.chain(*zip(times, data.shape, strict=True)))
        strides = tuple(itertools.chain(*((0, stride) for stride in data.strides)))
        copy_into(binder, data.reshaped(split, strides), result.reshaped(split))
        return [result]


@template("depth_to_space")
class DepthToSpace(NativeKernel):
    """(n, c, h, w) to (n, c / b², h·b, w·b), b being the ``blocksize``, channels counted as ``mode`` says."""

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        (data,) = inputs
        assert data is not None
        axes = depth_to_space_axes(data.shape, self.parameters["blocksize"], self.parameters["mode"])
        return [_moved(binder, data, axes, 1)]


@template("space_to_depth")
class SpaceToDepth(NativeKernel):
    """(n, c, h, w) to (n, c·b², h / b, w / b), b being the ``blocksize``, channels counted as ``mode`` says."""

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        (data,) = inputs
        assert data is not None
        axes = space_to_depth_axes(data.shape, self.parameters["blocksize"], self.parameters["mode"])
        return [_moved(binder, data, axes, 3)]


def _moved(binder: Binder, data: Tensor, axes: Rearrangement, channels: int) -> Tensor:
    """The data rearranged: of the axes in their new order, so many behind the first one become the channels.

    One copy; where the channels of a place lie together, they do so in the result, too.
    """
    split, order, shape = axes
    parts = reshaped(binder, data, split)
    if data.strides[1] != 1 or data.shape[1] == 1:
        return contiguous(binder, transposed(parts, order)).reshaped(shape)
    last = (order[0], *order[1 + channels :], *order[1 : 1 + channels])
    n, c, h, w = shape
    return transposed(contiguous(binder, transposed(parts, last)).reshaped((n, h, w, c)), (0, 3, 1, 2))
