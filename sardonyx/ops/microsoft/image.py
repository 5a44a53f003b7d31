"""Sampling and pooling of images: crops, grids, masked maxima, transposed convolution with pads at run time."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx.kernel.program import Kernel, Template
from sardonyx.ops import convolution, pooling
from sardonyx.ops.framework.facts import Fact, unknown_dim
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, expect_rank, like, wide
from sardonyx.runtime.memory import memory

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


@operator("CropAndResize", domain=DOMAIN)
class CropAndResize(Operator):
    """Boxes [y1, x1, y2, x2] of the batch's images, in relative corner coordinates, resized to one size.

    Samples outside of the image are `extrapolation_value`.
    """

    inputs: ClassVar[str] = "X, rois, batch_indices, crop_size"
    outputs: ClassVar[str] = "Y"
    extrapolation_value: float = 0.0
    mode: str = "bilinear"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        self._check_mode()
        parameters = {"nearest": self.mode == "nearest", "outside": self.extrapolation_value}
        return Template("crop_and_resize", parameters, self.run)

    def _check_mode(self) -> None:
        if self.mode not in ("bilinear", "nearest"):
            raise ValueError(f"attribute 'mode' must be bilinear or nearest, not '{self.mode}'")

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, rois, images, size = inputs
        self._check_mode()
        if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 4 or size.size != 2:
            raise ValueError(
                f"'X' {x.shape}, 'rois' {rois.shape} and 'crop_size' {size.shape} must be NCHW, (n, 4), (2)"
            )
        if images.size and (images.min() < 0 or images.max() >= x.shape[0]):
            raise ValueError(f"input 'batch_indices' must be between 0 and {x.shape[0] - 1}")
        values = wide(x)
        fill = values.dtype.type(self.extrapolation_value)
        shape = (len(rois), x.shape[1], *(int(count) for count in size))
        memory.require(math.prod(shape) * (len(rois) + 6) // max(1, len(rois)) * values.itemsize, "the crops of images")
        crops = np.empty(shape, values.dtype)
        for index, (box, image) in enumerate(zip(wide(rois), images, strict=True)):
            ys = positions(box[0], box[2], x.shape[2], crops.shape[2])
            xs = positions(box[1], box[3], x.shape[3], crops.shape[3])
            crops[index] = self.sampled(values[int(image)], ys, xs)
            outside = ((ys < 0) | (ys > x.shape[2] - 1))[:, None] | ((xs < 0) | (xs > x.shape[3] - 1))
            crops[index][:, outside] = fill
        return (crops.astype(x.dtype),)

    def sampled(self, image: Array, ys: Array, xs: Array) -> Array:
        """The image (C, H, W) at every pair of places, as (C, ys, xs)."""
        height, width = image.shape[1:]
        if self.mode == "nearest":
            rows = np.clip(_rounded(ys), 0, height - 1)
            columns = np.clip(_rounded(xs), 0, width - 1)
            return np.asarray(image[:, rows[:, None], columns])
        top, left = (
            np.clip(np.floor(places), 0, size - 1).astype(np.int64) for places, size in ((ys, height), (xs, width))
        )
        bottom = np.clip(np.ceil(ys), 0, height - 1).astype(np.int64)
        right = np.clip(np.ceil(xs), 0, width - 1).astype(np.int64)
        down, across = (ys - top)[:, None].astype(image.dtype), (xs - left).astype(image.dtype)
        above = image[:, top[:, None], left] * (1 - across) + image[:, top[:, None], right] * across
        below = image[:, bottom[:, None], left] * (1 - across) + image[:, bottom[:, None], right] * across
        return np.asarray(above * (1 - down) + below * down)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, rois, _, size = inputs
        expect_rank(x, (4,), "X")
        expect_rank(rois, (2,), "rois")
        sizes = size.integers() if size is not None else None
        height, width = sizes if sizes is not None and len(sizes) == 2 else (unknown_dim(), unknown_dim())
        return [like(x, (dim(rois, 0), dim(x, 1), height, width))]


def positions(first: Any, last: Any, size: int, count: int) -> Array:
    """`count` places from `first` to `last`, fractions of the distance between the corner pixels; one is the middle."""
    if count == 1:
        return np.asarray([np.float32(0.5) * (first + last) * (size - 1)])
    step = (last - first) * (size - 1) / np.float32(count - 1)
    return np.asarray(first * (size - 1) + np.arange(count, dtype=np.float32) * step)


def _rounded(places: Array) -> Array:
    """The nearest whole numbers, halves away from zero."""
    return (np.sign(places) * np.floor(np.abs(places) + 0.5)).astype(np.int64)


@operator("GridSample", domain=DOMAIN)
class GridSample(Operator):
    """The images at the places of a grid (N, H, W, 2) of x, y from -1 to 1."""

    inputs: ClassVar[str] = "X, Grid"
    outputs: ClassVar[str] = "Y"
    align_corners: int = 0
    mode: str = "bilinear"
    padding_mode: str = "zeros"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        self.check_modes()
        neighbours = {"bilinear": "linear", "bicubic": "cubic"}.get(self.mode, self.mode)
        parameters = {"neighbours": neighbours, "padding": self.padding_mode, "aligned": bool(self.align_corners)}
        return Template("grid_sample", parameters, self.run)

    def check_modes(self) -> None:
        """ValueError for a mode that there is not."""
        if self.padding_mode not in ("zeros", "border", "reflection"):
            raise ValueError(f"attribute 'padding_mode' must be zeros, border or reflection, not '{self.padding_mode}'")
        if self.mode not in ("nearest", "bilinear", "linear", "bicubic", "cubic"):
            raise ValueError(f"attribute 'mode' must be bilinear, nearest or bicubic, not '{self.mode}'")

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, grid = inputs
        if x.ndim != 4 or grid.ndim != 4 or grid.shape[3] != 2 or grid.shape[0] != x.shape[0]:
            raise ValueError(f"'X' {x.shape} and 'Grid' {grid.shape} must be (N, C, H, W) and (N, H_out, W_out, 2)")
        self.check_modes()
        height, width = x.shape[2:]
        columns, rows = self.places(grid[..., 0], width), self.places(grid[..., 1], height)
        values = wide(x)
        if self.mode == "nearest":
            return (self.pixels(values, np.rint(rows), np.rint(columns)).astype(x.dtype),)
        taps = linear_taps if self.mode in ("bilinear", "linear") else cubic_taps
        total = np.zeros((*x.shape[:2], *rows.shape[1:]), values.dtype)
        across = taps(columns)
        for row, row_weight in taps(rows):
            for column, column_weight in across:
                total += self.pixels(values, row, column) * (row_weight * column_weight)[:, None].astype(values.dtype)
        return (total.astype(x.dtype),)

    def places(self, grid: Array, size: int) -> Array:
        """Coordinates in pixels, folded back into the image where the padding says so."""
        half = (wide(grid) + 1) / 2
        pixels = half * (size - 1) if self.align_corners else half * size - np.float32(0.5)
        if self.mode in ("bicubic", "cubic") or self.padding_mode == "zeros":
            return np.asarray(pixels)
        return self.folded(pixels, size)

    def folded(self, pixels: Array, size: int) -> Array:
        """Places outside of the image moved into it: to its edge, or mirrored there."""
        if self.padding_mode == "border":
            return np.clip(pixels, 0, size - 1)
        low, high = (0.0, size - 1.0) if self.align_corners else (-0.5, size - 0.5)
        span = high - low
        if span == 0:
            return np.zeros_like(pixels)
        turns = np.mod(pixels - low, 2 * span)
        return low + np.where(turns > span, 2 * span - turns, turns)

    def pixels(self, x: Array, rows: Array, columns: Array) -> Array:
        """The elements at whole coordinates (N, H, W), for all channels."""
        height, width = x.shape[2:]
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        if self.padding_mode != "zeros":
            rows, columns = self.folded(rows, height), self.folded(columns, width)
        row = np.clip(np.nan_to_num(np.rint(rows)), 0, height - 1).astype(np.int64)
        column = np.clip(np.nan_to_num(np.rint(columns)), 0, width - 1).astype(np.int64)
        image = np.arange(x.shape[0]).reshape(-1, 1, 1)
        found = np.moveaxis(x[image, :, row, column], -1, 1)
        return np.where(inside[:, None], found, x.dtype.type(0)) if self.padding_mode == "zeros" else found

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, grid = inputs
        expect_rank(x, (4,), "X")
        expect_rank(grid, (4,), "Grid")
        return [like(x, (dim(x, 0), dim(x, 1), dim(grid, 1), dim(grid, 2)))]


def linear_taps(places: Array) -> list[tuple[Array, Array]]:
    """The two neighbours of each place and their weights."""
    low = np.floor(places)
    share = places - low
    return [(low, 1 - share), (low + 1, share)]


def cubic_taps(places: Array) -> list[tuple[Array, Array]]:
    """The four neighbours of each place and their weights (Keys 1981, a = -0.75)."""
    a, low = -0.75, np.floor(places)
    share = places - low
    far, near = share + 1, share
    outer = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (far, 3 - far)]
    inner = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (near, 1 - near)]
    return [(low - 1, outer[0]), (low, inner[0]), (low + 1, inner[1]), (low + 2, outer[1])]


@operator("MaxpoolWithMask", domain=DOMAIN)
class MaxpoolWithMask(pooling.Pool):
    """The largest element of each window of those that come before the first masked one in their row of the window.

    All of this was observed in onnxruntime, whose documentation says only "for internal use": a row of a window ends
    at its first masked element, the first element of a map is never masked, and the mask of map c of P maps of S
    elements begins at element c * S mod P of the mask (so one map has a mask of its own, several nearly share one).
    """

    inputs: ClassVar[str] = "X, M"
    outputs: ClassVar[str] = "Y"
    storage_order: int = 0

    def run(self, x: Array, mask: Array) -> Sequence[Array]:
        if mask.shape != x.shape:
            raise ValueError(f"input 'M' is expected to have the shape of 'X', {x.shape}, got {mask.shape}")
        windows = self.windows(x)
        lowest = np.finfo(x.dtype).min
        values, allowed = windows.pad(x, lowest), windows.pad(shared_masks(mask), True)
        best = np.full((*x.shape[:2], *windows.output), lowest, x.dtype)
        open_row = np.ones(best.shape, bool)
        for tap in windows.taps():
            if tap[-1] == 0:
                open_row[...] = True
            open_row &= windows.read(allowed, tap)
            np.maximum(best, windows.read(values, tap), out=best, where=open_row)
        return (best,)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return super().infer(inputs[:1], inference)


def shared_masks(mask: Array) -> Array:
    """Which elements of each map may be read."""
    maps, size = mask.shape[0] * mask.shape[1], int(np.prod(mask.shape[2:]))
    begins = np.arange(maps) * size % max(maps, 1)
    allowed: Array = (mask.reshape(-1) != 0)[begins[:, None] + np.arange(size)]
    allowed[:, :1] = True
    return allowed.reshape(mask.shape)


@operator("ConvTransposeWithDynamicPads", domain=DOMAIN)
class ConvTransposeWithDynamicPads(convolution.ConvTranspose):
    """ConvTranspose whose pads are an input."""

    inputs: ClassVar[str] = "X, W, Pads?, B?"
    outputs: ClassVar[str] = "Y"

    def with_pads(self, pads: Sequence[int]) -> ConvTransposeWithDynamicPads:
        """The same operator with its pads known."""
        known = copy.copy(self)
        known.pads = tuple(int(size) for size in pads)
        return known

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parameters = {"group": self.group, "attributes": self.attributes, "place": self.place}
        return Template("transposed_convolution_with_pads", {**parameters, "with_pads": self.with_pads}, self.run)

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, w, pads, bias = padded(inputs, 4)
        chosen = self if pads is None else self.with_pads(pads.reshape(-1))
        return convolution.ConvTranspose.run(chosen, x, w, bias)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, pads = inputs[0], inputs[2] if len(inputs) > 2 else None
        if pads is None:
            return super().infer(inputs[:2], inference)
        numbers = pads.integers()
        if numbers is not None:
            return convolution.ConvTranspose.infer(self.with_pads(numbers), inputs[:2], inference)
        (y,) = super().infer(inputs[:2], inference)
        rank = None if x is None else x.rank
        return [
            like(x, None)
            if rank is None
            else like(x, (dim(y, 0), dim(y, 1), *(unknown_dim() for _ in range(rank - 2))))
        ]


@operator("CDist", domain=DOMAIN)
class CDist(Operator):
    """The distances between the rows of A and the rows of B."""

    inputs: ClassVar[str] = "A, B"
    outputs: ClassVar[str] = "C"
    metric: str = "sqeuclidean"
    host_reason: ClassVar[str] = "distances by NumPy"

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, b = inputs
        if self.metric not in ("euclidean", "sqeuclidean"):
            raise ValueError(f"attribute 'metric' must be euclidean or sqeuclidean, not '{self.metric}'")
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
            raise ValueError(f"inputs 'A' {a.shape} and 'B' {b.shape} must be matrices with rows of one length")
        # In float64, where the squares minus twice the product keep what float32 would cancel.
        left, right = a.astype(np.float64), b.astype(np.float64)
        squares = (left * left).sum(1)[:, None] + (right * right).sum(1) - 2 * (left @ right.T)
        squares = np.maximum(squares, 0)
        return ((np.sqrt(squares) if self.metric == "euclidean" else squares).astype(a.dtype),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        a, b = inputs
        expect_rank(a, (2,), "A")
        expect_rank(b, (2,), "B")
        return [like(a, (dim(a, 0), dim(b, 0)))]
