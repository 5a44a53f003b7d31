"""GridSample: interpolation at given places, in any number of spatial dimensions; AffineGrid, which makes places."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.program import Kernel, Template
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Dim, Fact, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Cost, Operator, Value, elements, operator, template_unless_text
from sardonyx.ops.resize import cubic, linear
from sardonyx.runtime.memory import memory

# For each mode: the neighbours that are read on each side, as offsets from the place rounded down.
OFFSETS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}
KEYS_COEFFICIENT = -0.75


@dataclass(frozen=True)
class AxisTaps:
    """Along one axis, the positions that each of P places reads and their weights: (taps, P) each."""

    positions: Array
    weights: Array


def axis_taps(places: Array, length: int, mode: str, padding: str, align_corners: bool) -> AxisTaps:
    """The taps of real `places` along an axis of that length.

    `padding` says what a position outside is: nothing (`zeros`), the edge (`border`) or the mirrored one (`reflection`,
    around the centres of the edge elements if `align_corners`, else around their outer edges).
    """
    mirror = (0.0, length - 1.0) if align_corners else (-0.5, length - 0.5)
    places = np.rint(places) if mode == "nearest" else places
    outside = (places < mirror[0]) | (places > mirror[1]) | np.isnan(places)
    if padding == "border" and mode != "cubic":
        places = np.where(outside, np.clip(places, 0, length - 1), places)
    if padding == "reflection":
        places = np.where(outside, _reflected(places, *mirror), places)
    # Far places are far enough at one length away; beyond int64 they could not be converted.
    places = np.clip(np.nan_to_num(places, nan=-4.0), -4, length + 4)
    low = np.floor(places)
    positions = low + np.array(OFFSETS[mode]).reshape(-1, *(1,) * low.ndim)
    weights = _kernel(mode)(places - positions)
    inside = (positions >= 0) & (positions < length)
    if padding == "zeros":
        weights = np.where(inside, weights, 0)
    elif padding == "reflection":
        positions = np.where(inside, positions, _reflected(positions, *mirror))
    return AxisTaps(np.clip(positions, 0, length - 1).astype(np.intp), weights)


def _kernel(mode: str) -> Any:
    if mode == "cubic":
        return partial(cubic, a=KEYS_COEFFICIENT)
    return linear if mode == "linear" else np.ones_like


def _reflected(places: Array, low: float, high: float) -> Array:
    """Places mirrored at both ends, as often as it takes, into the range from `low` to `high`."""
    extent = high - low
    if extent <= 0:
        return np.full_like(places, low)
    with np.errstate(invalid="ignore"):
        distance = np.fmod(np.abs(places - low), 2 * extent)
    return np.asarray(low + np.where(distance > extent, 2 * extent - distance, distance), places.dtype)


def interpolate(maps: Array, axes: Sequence[AxisTaps]) -> Array:
    """The values of maps (C, D1, ..., Dk) at P places, given their taps along each of the k axes: (C, P)."""
    sizes = maps.shape[1:]
    flat = maps.reshape(maps.shape[0], math.prod(sizes))
    result = np.zeros((maps.shape[0], axes[0].positions.shape[1]), maps.dtype)
    for choice in itertools.product(*(range(len(axis.positions)) for axis in axes)):
        place = np.ravel_multi_index([axis.positions[i] for axis, i in zip(axes, choice, strict=True)], sizes)
        weight = axes[0].weights[choice[0]]
        for axis, index in zip(axes[1:], choice[1:], strict=True):
            weight = weight * axis.weights[index]
        result += np.take(flat, place, axis=1) * weight.astype(maps.dtype, copy=False)
    return result


class Sampling(Operator):
    """Samples of X (N, C, D1, ..., Dk) at a grid (N, ..., k) of places between -1 and 1, the last axis first."""

    align_corners: int = 0
    mode: str = "linear"
    padding_mode: str = "zeros"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parameters = {"neighbours": self.neighbours(), "padding": self.padding(), "aligned": bool(self.align_corners)}
        return template_unless_text("grid_sample", parameters, self.run, inputs)

    def padding(self) -> str:
        """What there is outside; ValueError for an unknown mode."""
        if self.padding_mode not in ("zeros", "border", "reflection"):
            raise ValueError(f"padding_mode must be zeros, border or reflection, not '{self.padding_mode}'")
        return self.padding_mode

    def neighbours(self) -> str:
        """The mode by the name that it has since opset 20; ValueError for an unknown one."""
        raise NotImplementedError

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, grid = inputs[0], inputs[1]
        assert x is not None
        assert grid is not None
        if x.shape is None:
            return [Fact(x.type, None)]
        if len(x.shape) < 3 or (grid.shape is not None and len(grid.shape) != len(x.shape)):
            raise ValueError(f"X {x.shape} and the grid {grid.shape} need the same rank, at least 3")
        size: Sequence[Dim] = [unknown_dim() for _ in x.shape[2:]] if grid.shape is None else grid.shape[1:-1]
        return [Fact(x.type, (*x.shape[:2], *size))]

    def run(self, x: Array, grid: Array) -> Sequence[Value]:
        rank = x.ndim - 2
        if rank < 1 or grid.ndim != x.ndim or grid.shape[0] != x.shape[0] or grid.shape[-1] != rank:
            raise ValueError(f"a grid of shape {grid.shape} does not fit X {x.shape}: expected (N, ..., {rank})")
        mode, padding = self.neighbours(), self.padding()
        wide = x.astype(working_dtype(x.dtype) if x.dtype.kind not in "iub" else np.float64, copy=False)
        result = np.zeros((*x.shape[:2], *grid.shape[1:-1]), wide.dtype)
        if result.size and 0 not in x.shape:
            places = grid.astype(working_dtype(grid.dtype), copy=False).reshape(len(grid), -1, rank)
            for item in range(len(x)):
                taps = [
                    axis_taps(
                        self._place(places[item, :, rank - 1 - axis], length),
                        length,
                        mode,
                        padding,
                        bool(self.align_corners),
                    )
                    for axis, length in enumerate(x.shape[2:])
                ]
                result[item] = interpolate(wide[item], taps).reshape(result.shape[1:])
        return (result.astype(x.dtype, copy=False),)

    def _place(self, normalized: Array, length: int) -> Array:
        """Places from -1 to 1 as positions: between the centres of the edge elements, or between their outer edges."""
        if self.align_corners:
            return np.asarray((normalized + 1) / 2 * (length - 1))
        return np.asarray(((normalized + 1) * length - 1) / 2)

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        """A multiplication and an addition for each neighbour."""
        x, count = inputs[0], elements(outputs[0])
        moved = super().cost(inputs, outputs).bytes
        if x is None or x.shape is None or count is None:
            return Cost(None, moved)
        return Cost(2.0 * count * len(OFFSETS[self.neighbours()]) ** (len(x.shape) - 2), moved)


@operator("GridSample", since=16)
class OldGridSample(Sampling):
    """GridSample of images, with the older names of the modes."""

    mode: str = "bilinear"

    def neighbours(self) -> str:
        names = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
        if self.mode not in names:
            raise ValueError(f"mode must be bilinear, nearest or bicubic, not '{self.mode}'")
        return names[self.mode]


@operator("GridSample", since=20)
class GridSample(Sampling):
    """GridSample in any number of dimensions."""

    def neighbours(self) -> str:
        if self.mode not in OFFSETS:
            raise ValueError(f"mode must be linear, nearest or cubic, not '{self.mode}'")
        return self.mode


def grid_places(size: int, align_corners: bool) -> Array:
    """The places of `size` elements between -1 and 1 (F64): with corners aligned, the first and the last lie there."""
    if align_corners:
        return np.linspace(-1.0, 1.0, size) if size > 1 else np.zeros(size)
    return (2 * np.arange(size) + 1) / max(size, 1) - 1


def grid_sizes(theta: Sequence[int], size: Sequence[int]) -> tuple[int, ...]:
    """The spatial sizes of the grid for matrices of shape `theta`; ValueError where they do not fit."""
    count = len(size) - 2
    if count not in (2, 3) or len(theta) != 3 or tuple(theta[1:]) != (count, count + 1) or theta[0] != size[0]:
        raise ValueError(
            f"theta of shape {tuple(theta)} and size {list(size)} do not fit: expected (N, 2, 3) and (N, C, H, W), or "
            "(N, 3, 4) and (N, C, D, H, W)"
        )
    return tuple(size[2:])


@operator("AffineGrid", since=20)
class AffineGrid(Operator):
    """The grid (N, ..., k) of places that matrices theta (N, k, k + 1) make of the places of an image's elements."""

    align_corners: int = 0

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        theta, size = inputs[0], inputs[1]
        assert theta is not None
        sizes = None if size is None else size.elements
        if sizes is None or len(sizes) not in (4, 5):
            return inference.by_onnx(self.node, inputs, self.version)
        return [Fact(theta.type, (sizes[0], *sizes[2:], len(sizes) - 2))]

    def run(self, theta: Array, size: Array) -> Sequence[Value]:
        sizes = grid_sizes(theta.shape, size.ravel().tolist())
        wide = theta.astype(working_dtype(theta.dtype), copy=False)
        # The places, as arrays and side by side, and what becomes of them.
        numbers = math.prod(sizes) * (2 * (len(sizes) + 1) + 2 * len(theta) * len(sizes))
        memory.require((numbers + 4 * sum(sizes)) * wide.itemsize, "the places of a grid")
        axes = [grid_places(length, bool(self.align_corners)).astype(wide.dtype) for length in sizes]
        *places, ones = *np.meshgrid(*axes, indexing="ij")[::-1], np.ones(sizes, wide.dtype)
        grid = np.stack([*places, ones], axis=-1).reshape(-1, len(sizes) + 1) @ wide.swapaxes(1, 2)
        return (grid.reshape(len(theta), *sizes, len(sizes)).astype(theta.dtype, copy=False),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return Template("affine_grid", {"align_corners": bool(self.align_corners)}, self.run)


__all__ = [
    "AffineGrid",
    "AxisTaps",
    "GridSample",
    "OldGridSample",
    "Sampling",
    "axis_taps",
    "grid_places",
    "grid_sizes",
    "interpolate",
]
