"""Blocks between channels and the plane: DepthToSpace, SpaceToDepth."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import UNKNOWN, Dim, Dims, Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator

# The axes of (n, c, rows, b, columns, b) that SpaceToDepth joins.
_ORDERS = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}


class _Blocks(Operator):
    """What both directions share: input (n, c, h, w) and the size of a block."""

    host_reason = "NumPy's transpose is a copy at memory speed"
    blocksize: int

    def checked(self, shape: Sequence[Dim]) -> Sequence[Dim]:
        """The shape itself; ValueError where it cannot be split into blocks."""
        if self.blocksize < 1:
            raise ValueError(f"blocksize must be at least 1, not {self.blocksize}")
        if len(shape) != 4:
            raise ValueError(f"the input must have 4 dimensions (n, c, h, w), not {len(shape)}")
        return shape


@operator("DepthToSpace")
class DepthToSpace(_Blocks):
    """(n, c, h, w) to (n, c / b², h·b, w·b): each pixel's channels become a block of b by b pixels.

    Mode DCR counts channels as (row, column, depth), CRD as (depth, row, column).
    """

    mode: str = "DCR"

    def run(self, data: Array) -> Sequence[Value]:
        self.checked(data.shape)
        n, c, h, w = data.shape
        b = self.blocksize
        depth, rest = divmod(c, b * b)
        if rest:
            raise ValueError(f"{c} channels do not divide by the square of blocksize {b}")
        if self.mode == "DCR":
            blocks = data.reshape(n, b, b, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
        elif self.mode == "CRD":
            blocks = data.reshape(n, depth, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
        else:
            raise ValueError(f"mode must be DCR or CRD, not '{self.mode}'")
        return (blocks.reshape(n, depth, h * b, w * b).copy() if b == 1 else blocks.reshape(n, depth, h * b, w * b),)

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

    mode: str = "DCR"

    def run(self, data: Array) -> Sequence[Value]:
        self.checked(data.shape)
        n, c, h, w = data.shape
        b = self.blocksize
        if h % b or w % b:
            raise ValueError(f"a plane of {h} by {w} does not divide into blocks of {b} by {b}")
        if self.mode not in _ORDERS:
            raise ValueError(f"mode must be DCR or CRD, not '{self.mode}'")
        blocks = data.reshape(n, c, h // b, b, w // b, b).transpose(_ORDERS[self.mode])
        result = blocks.reshape(n, c * b * b, h // b, w // b)
        return (result.copy() if b == 1 else result,)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data = inputs[0] or UNKNOWN
        if data.shape is None:
            return [Fact(data.type, None)]
        n, c, h, w = self.checked(data.shape)
        b = self.blocksize
        if any(isinstance(size, int) and size % b for size in (h, w)):
            raise ValueError(f"a plane of {h} by {w} does not divide into blocks of {b} by {b}")
        return [Fact(data.type, (n, dims.multiply(c, b * b), dims.floor_divide(h, b), dims.floor_divide(w, b)))]
