"""Blocks between channels and the plane: DepthToSpace, SpaceToDepth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from sardonyx.kernel.program import Kernel
from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import UNKNOWN, Dim, Dims, Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator, template_unless_text

# The axes of (n, c, rows, b, columns, b) that SpaceToDepth joins.
_ORDERS = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}


# What a rearrangement is: the shape that splits the axes, their order, and the shape of the result.
Rearrangement = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class _Blocks(Operator):
    """What both directions share: input (n, c, h, w) and the size of a block."""

    blocksize: int
    mode: str = "DCR"

    template: ClassVar[str]

    def axes(self, shape: tuple[int, ...]) -> Rearrangement:
        """How an input of this shape is rearranged."""
        raise NotImplementedError

    def run(self, data: Array) -> Sequence[Value]:
        split, order, shape = self.axes(data.shape)
        result = data.reshape(split).transpose(order).reshape(shape)
        return (result.copy() if np.may_share_memory(result, data) else result,)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parameters = {"blocksize": self.blocksize, "mode": self.mode}
        return template_unless_text(self.template, parameters, self.run, inputs)

    def checked(self, shape: Sequence[Dim]) -> Sequence[Dim]:
        """The shape itself; ValueError where it cannot be split into blocks."""
        check_blocks(len(shape), self.blocksize)
        return shape


def check_blocks(rank: int, blocksize: int) -> None:
    """ValueError where a tensor of this rank cannot be split into blocks of this size."""
    if blocksize < 1:
        raise ValueError(f"blocksize must be at least 1, not {blocksize}")
    if rank != 4:
        raise ValueError(f"the input must have 4 dimensions (n, c, h, w), not {rank}")


def depth_to_space_axes(shape: Sequence[int], b: int, mode: str) -> Rearrangement:
    """DepthToSpace with blocks of `b` by `b`; ValueError for a shape or a mode that it does not take."""
    check_blocks(len(shape), b)
    n, c, h, w = shape
    depth, rest = divmod(c, b * b)
    if rest:
        raise ValueError(f"{c} channels do not divide by the square of blocksize {b}")
    result = (n, depth, h * b, w * b)
    if mode == "DCR":
        return (n, b, b, depth, h, w), (0, 3, 4, 1, 5, 2), result
    if mode == "CRD":
        return (n, depth, b, b, h, w), (0, 1, 4, 2, 5, 3), result
    raise ValueError(f"mode must be DCR or CRD, not '{mode}'")


def space_to_depth_axes(shape: Sequence[int], b: int, mode: str) -> Rearrangement:
    """SpaceToDepth with blocks of `b` by `b`; ValueError for a shape or a mode that it does not take."""
    check_blocks(len(shape), b)
    n, c, h, w = shape
    if h % b or w % b:
        raise ValueError(f"a plane of {h} by {w} does not divide into blocks of {b} by {b}")
    if mode not in _ORDERS:
        raise ValueError(f"mode must be DCR or CRD, not '{mode}'")
    return (n, c, h // b, b, w // b, b), _ORDERS[mode], (n, c * b * b, h // b, w // b)


@operator("DepthToSpace")
class DepthToSpace(_Blocks):
    """(n, c, h, w) to (n, c / b², h·b, w·b): each pixel's channels become a block of b by b pixels.

    Mode DCR counts channels as (row, column, depth), CRD as (depth, row, column).
    """

    template = "depth_to_space"

    def axes(self, shape: tuple[int, ...]) -> Rearrangement:
        return depth_to_space_axes(shape, self.blocksize, self.mode)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data = inputs[0] or UNKNOWN
        if data.shape is None:
            return [Fact(data.type, None)]
        n, c, h, w = self.checked(data.shape)
        b = self.blocksize
        if isinstance(c, int) and c % (b * b):
            raise ValueError(f"{c} channels do not divide by the square of blocksize {b}")
        shape: Dims = (n, dims.floor_divide(c, b * b), dims.multiply(h, b), dims.multiply(w, b))
        return [Fact(data.type, shape)]


@operator("SpaceToDepth")
class SpaceToDepth(_Blocks):
    """(n, c, h, w) to (n, c·b², h / b, w / b): each block of b by b pixels becomes one pixel's channels.

    Channels count as (row, column, depth) in mode DCR, as (depth, row, column) in mode CRD, which opset 28 adds.
    """

    template = "space_to_depth"

    def axes(self, shape: tuple[int, ...]) -> Rearrangement:
        return space_to_depth_axes(shape, self.blocksize, self.mode)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data = inputs[0] or UNKNOWN
        if data.shape is None:
            return [Fact(data.type, None)]
        n, c, h, w = self.checked(data.shape)
        b = self.blocksize
        if any(isinstance(size, int) and size % b for size in (h, w)):
            raise ValueError(f"a plane of {h} by {w} does not divide into blocks of {b} by {b}")
        return [Fact(data.type, (n, dims.multiply(c, b * b), dims.floor_divide(h, b), dims.floor_divide(w, b)))]
