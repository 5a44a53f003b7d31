"""DeformConv: a convolution whose taps are moved by offsets (Dai et al., "Deformable Convolutional Networks", 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.program import Kernel, Template
from sardonyx.ops.convolution import Convolution
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Cost, Value, operator
from sardonyx.ops.grid_sample import axis_taps, interpolate
from sardonyx.ops.windows import Windows
from sardonyx.runtime.memory import memory

Shape = tuple[int, ...]


@operator("DeformConv", since=19)
class DeformConv(Convolution):
    """Conv of samples: each tap reads, by linear interpolation, at its place plus an offset, times a mask.

    The offsets are (N, offset_group * taps * dimensions, ...) and the mask (N, offset_group * taps, ...), of the
    output's size; places outside the input read 0.
    """

    offset_group: int = 1

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        assert x is not None
        return [Fact(x.type, self.infer_convolution(x, inputs[1]))]

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parameters = {
            "group": self.group,
            "offset_group": self.offset_group,
            "attributes": self.attributes,
            "check": self.check_shapes,
        }
        return Template("deformable_convolution", parameters, self.run)

    def run(
        self, x: Array, w: Array, offset: Array, bias: Array | None = None, mask: Array | None = None
    ) -> Sequence[Value]:
        windows = self.attributes(w.shape[2:]).windows(x.shape[2:])
        self.check_shapes(x.shape, w.shape, offset.shape, None if mask is None else mask.shape, windows)
        wide = working_dtype(x.dtype)
        batch, taps, rank = len(x), math.prod(windows.kernel), x.ndim - 2
        points = math.prod(windows.output)
        moves = offset.astype(wide, copy=False).reshape(batch, self.offset_group, taps, rank, points)
        factors = (
            None if mask is None else mask.astype(wide, copy=False).reshape(batch, self.offset_group, taps, points)
        )
        grouped = x.astype(wide, copy=False).reshape(batch, self.offset_group, -1, *x.shape[2:])
        matrix = w.astype(wide, copy=False).reshape(self.group, len(w) // self.group, -1)
        columns_bytes = x[:1].size // max(1, math.prod(x.shape[2:])) * taps * points * np.dtype(wide).itemsize
        memory.require(columns_bytes, "the windows of a convolution")
        result = np.zeros((batch, self.group, len(w) // self.group, points), wide)
        for item in range(batch if result.size and x.size else 0):
            columns = np.empty((self.offset_group, grouped.shape[2], taps, points), wide)
            for group in range(self.offset_group):
                columns[group] = _sampled(grouped[item, group], moves[item, group], windows)
                if factors is not None:
                    columns[group] *= factors[item, group]
            np.matmul(matrix, columns.reshape(self.group, -1, points), out=result[item])
        y = result.reshape(batch, len(w), *windows.output)
        if bias is not None:
            y += bias.astype(wide, copy=False).reshape(-1, *(1,) * rank)
        return (y.astype(x.dtype, copy=False),)

    def check_shapes(self, x: Shape, w: Shape, offset: Shape, mask: Shape | None, windows: Windows) -> None:
        """ValueError where the shapes contradict each other."""
        if len(x) != len(w) or len(x) < 3 or w[1] * self.group != x[1] or w[0] % self.group:
            raise ValueError(f"input {x} and weights {w} with group {self.group} do not fit")
        if x[1] % self.offset_group:
            raise ValueError(f"{x[1]} channels do not divide into {self.offset_group} offset groups")
        taps = math.prod(windows.kernel) * self.offset_group
        wanted = (x[0], taps * (len(x) - 2), *windows.output)
        if offset != wanted:
            raise ValueError(f"the offset has shape {offset}, expected {wanted}")
        if mask is not None and mask != (x[0], taps, *windows.output):
            raise ValueError(f"the mask has shape {mask}, expected {(x[0], taps, *windows.output)}")

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        return self.convolution_cost(inputs, outputs, 1)


def _sampled(maps: Array, moves: Array, windows: Windows) -> Array:
    """Maps (C, ...) read at every tap of every window, moved by (taps, dimensions, points): (C, taps, points)."""
    starts = np.indices(windows.output).reshape(len(windows.output), -1)
    columns = np.empty((len(maps), *moves.shape[::2]), maps.dtype)
    for number, tap in enumerate(windows.taps()):
        axes = []
        for axis, length in enumerate(windows.size):
            begin = tap[axis] * windows.dilations[axis] - windows.begin[axis]
            places = (starts[axis] * windows.strides[axis] + begin).astype(maps.dtype) + moves[number, axis]
            axes.append(axis_taps(places, length, "linear", "zeros", True))
        columns[:, number] = interpolate(maps, axes)
    return columns


__all__ = ["DeformConv"]
