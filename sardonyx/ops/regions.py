"""Pooling of regions of interest: RoiAlign, MaxRoiPool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.program import Kernel, Template
from sardonyx.ops.framework.facts import Dim, Fact, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator
from sardonyx.runtime.memory import memory

# Bytes for a sample along an axis, and values beside the samples of a region.
_BYTES_PER_SAMPLE, _CORNERS = 80, 6

# Samples along a bin, however long it is.
MOST_SAMPLES = 1024


def _pooled(inputs: Sequence[Fact | None], height: int, width: int) -> Sequence[Fact]:
    """The fact of (regions, channels, height, width)."""
    x, regions = inputs[0], inputs[1]
    assert x is not None
    count: Dim = regions.shape[0] if regions is not None and regions.shape else unknown_dim()
    channels: Dim = x.shape[1] if x.shape is not None and len(x.shape) == 4 else unknown_dim()
    return [Fact(x.type, (count, channels, height, width))]


def no_such_item(item: int, items: int) -> ValueError:
    """The error for a region of an item that the batch does not have."""
    return ValueError(f"a region is of item {item}, but the batch has {items}")


class RegionAlign(Operator):
    """Bilinear samples on a grid in each bin of each region, reduced to their mean or maximum.

    As in onnxruntime, `max` takes the largest of the four weighted neighbours of all samples, not of their sums.
    """

    mode: str = "avg"
    output_height: int = 1
    output_width: int = 1
    sampling_ratio: int = 0
    spatial_scale: float = 1.0

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        self._check_mode()
        parameters = {
            "rows": self.output_height,
            "columns": self.output_width,
            "scale": self.spatial_scale,
            "maximum": self.mode == "max",
            "half_pixel": self.half_pixel(),
            "samples": self._ratio(),
        }
        return Template("roi_align", parameters, self.run)

    def _check_mode(self) -> None:
        if self.mode not in ("avg", "max"):
            raise ValueError(f"mode must be avg or max, not '{self.mode}'")

    def _ratio(self) -> int:
        """Samples along a bin; 0 for as many as it is long."""
        if self.sampling_ratio > MOST_SAMPLES:
            raise ValueError(
                f"sampling_ratio {self.sampling_ratio} is more than {MOST_SAMPLES}, the most that is taken"
            )
        return max(0, self.sampling_ratio)

    def half_pixel(self) -> bool:
        """Whether coordinates are those of pixel centres."""
        raise NotImplementedError

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return _pooled(inputs, self.output_height, self.output_width)

    def run(self, x: Array, regions: Array, batch_indices: Array) -> Sequence[Value]:
        if x.ndim != 4 or regions.ndim != 2 or regions.shape[1] != 4 or batch_indices.shape != regions.shape[:1]:
            raise ValueError(f"shapes {x.shape}, {regions.shape}, {batch_indices.shape} are not (N,C,H,W), (R,4), (R,)")
        self._check_mode()
        for item in batch_indices.tolist():
            if not 0 <= item < len(x):
                raise no_such_item(item, len(x))
        wide = x.astype(working_dtype(x.dtype), copy=False)
        shape = (len(regions), x.shape[1], self.output_height, self.output_width)
        result = np.zeros(shape, wide.dtype)
        offset = 0.5 if self.half_pixel() else 0.0
        for number, (region, item) in enumerate(zip(regions.astype(np.float64), batch_indices, strict=True)):
            left, top, right, bottom = (region * self.spatial_scale - offset).tolist()
            width, height = right - left, bottom - top
            if not self.half_pixel():
                width, height = max(width, 1.0), max(height, 1.0)
            rows = self._samples(top, height, self.output_height, x.shape[2])
            columns = self._samples(left, width, self.output_width, x.shape[3])
            if rows is not None and columns is not None:
                result[number] = self._reduce(wide[int(item)], rows, columns)
        return (result.astype(x.dtype, copy=False),)

    def _samples(self, start: float, extent: float, bins: int, length: int) -> tuple[Array, ...] | None:
        """The two neighbours of every sample along one axis and their weights, (bins * samples,) each."""
        long = extent / bins if extent > 0 else 0.0  # 0 for NaN, too
        count = self._ratio() or math.ceil(min(long, MOST_SAMPLES))
        if count <= 0:
            return None
        memory.require_tables(_BYTES_PER_SAMPLE * bins * count, "the samples of regions")
        places = start + (np.arange(bins * count) // count + (np.arange(bins * count) % count + 0.5) / count) * (
            extent / bins
        )
        inside = (places >= -1) & (places <= length)
        places = np.maximum(places, 0)
        low = np.minimum(places.astype(np.intp), length - 1)
        high = np.minimum(low + 1, length - 1)
        fraction = np.where(low >= length - 1, 0.0, places - low)
        return low, high, np.where(inside, 1 - fraction, 0.0), np.where(inside, fraction, 0.0)

    def _reduce(self, maps: Array, rows: tuple[Array, ...], columns: tuple[Array, ...]) -> Array:
        samples = len(maps) * len(rows[0]) * len(columns[0])
        memory.require(_CORNERS * samples * maps.itemsize, "the samples of regions")
        corners = [
            maps[:, rows[i]][:, :, columns[j]] * (rows[2 + i][:, None] * columns[2 + j]).astype(maps.dtype)
            for i in (0, 1)
            for j in (0, 1)
        ]
        shape = (maps.shape[0], self.output_height, len(rows[0]) // self.output_height, self.output_width, -1)
        if self.mode == "avg":
            return np.asarray(sum(corners[1:], corners[0]).reshape(shape).mean(axis=(2, 4)))
        return np.asarray(np.maximum.reduce(corners).reshape(shape).max(axis=(2, 4)))


@operator("RoiAlign", since=10)
class OldRoiAlign(RegionAlign):
    """RoiAlign whose coordinates are those of pixel corners."""

    def half_pixel(self) -> bool:
        return False


@operator("RoiAlign", since=16)
class RoiAlign(RegionAlign):
    """RoiAlign with the choice of coordinates."""

    coordinate_transformation_mode: str = "half_pixel"

    def half_pixel(self) -> bool:
        if self.coordinate_transformation_mode not in ("half_pixel", "output_half_pixel"):
            raise ValueError(f"unknown coordinate_transformation_mode '{self.coordinate_transformation_mode}'")
        return self.coordinate_transformation_mode == "half_pixel"


@operator("MaxRoiPool")
class MaxRoiPool(Operator):
    """The maximum of each bin of each region (batch, x1, y1, x2, y2); an empty bin gives 0.

    The rounding of bins is that of Girshick, "Fast R-CNN", 2015, which onnxruntime shares.
    """

    pooled_shape: tuple[int, ...]
    spatial_scale: float = 1.0

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        rows, columns = self.pooled_shape
        return Template("max_roi_pool", {"rows": rows, "columns": columns, "scale": self.spatial_scale}, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return _pooled(inputs, self.pooled_shape[0], self.pooled_shape[1])

    def run(self, x: Array, regions: Array) -> Sequence[Value]:
        if x.ndim != 4 or regions.ndim != 2 or regions.shape[1] != 5:
            raise ValueError(f"shapes {x.shape} and {regions.shape} are not (N, C, H, W) and (R, 5)")
        height, width = self.pooled_shape
        result = np.zeros((len(regions), x.shape[1], height, width), x.dtype)
        for number, (item, *corners) in enumerate(regions.astype(np.float64).tolist()):
            left, top, right, bottom = (_rounded(corner * self.spatial_scale) for corner in corners)
            if not 0 <= int(item) < len(x):
                raise no_such_item(int(item), len(x))
            rows = _bins(top, bottom, height, x.shape[2])
            columns = _bins(left, right, width, x.shape[3])
            for i, (first, last) in enumerate(rows):
                for j, (begin, end) in enumerate(columns):
                    if first < last and begin < end:
                        result[number, :, i, j] = x[int(item), :, first:last, begin:end].max(axis=(1, 2))
        return (result,)


def _rounded(x: float) -> int:
    """The nearest whole number, halves away from zero."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def _bins(start: int, end: int, count: int, length: int) -> list[tuple[int, int]]:
    """First and last position (exclusive) of each bin along one axis."""
    size = max(end - start + 1, 1) / count
    return [
        (min(max(math.floor(i * size) + start, 0), length), min(max(math.ceil((i + 1) * size) + start, 0), length))
        for i in range(count)
    ]
