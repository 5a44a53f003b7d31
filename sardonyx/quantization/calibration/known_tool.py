"""The numbers of onnxruntime 1.31's histogram methods, for those who must compare.

It keeps every activation of a calibration in memory, and so does this. Its bins lie between the negative and the
positive largest absolute value; for percentiles of absolute values between the smallest and the largest of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx.quantization.calibration.distribution import SCENARIOS
from sardonyx.quantization.calibration.ranges import TensorData
from sardonyx.quantization.quant_utils import smooth_distribution

Array = np.ndarray[Any, Any]
# Counts, edges, the smallest, the largest and the largest absolute value.
_Histogram = tuple[Array, Array, Any, Any, Any]


class KnownTool:
    """The activations of a calibration, kept, and what onnxruntime makes of them with so many bins."""

    def __init__(self, num_bins: int, of_magnitudes: bool) -> None:
        self._num_bins = num_bins
        self._of_magnitudes = of_magnitudes
        self.kept: dict[str, list[Array]] = {}

    def keep(self, name: str, values: Array) -> None:
        """Keep an activation."""
        self.kept.setdefault(name, []).append(values.reshape(-1).copy())

    def histograms(self) -> dict[str, _Histogram]:
        """The histogram of each tensor."""
        return {name: self._histogram(np.concatenate(arrays)) for name, arrays in self.kept.items()}

    def _histogram(self, values: Array) -> _Histogram:
        low, high = values.min(), values.max()
        if self._of_magnitudes:
            counts, edges = np.histogram(np.abs(values), self._num_bins)
            return counts, edges.astype(values.dtype), low, high, edges[-1]
        bound = max(abs(low), abs(high))
        counts, edges = np.histogram(values, self._num_bins, range=(-bound, bound))
        return counts, edges.astype(values.dtype), low, high, bound

    def results(self, method: str, levels: int, percentile: float, scenario: str) -> dict[str, TensorData]:
        """What a method finds for each tensor."""
        choose: dict[str, Callable[[_Histogram], TensorData]] = {
            "entropy": lambda one: _with_range(one, _entropy(one, levels)),
            "percentile": lambda one: _with_range(one, self._percentile(one, percentile)),
            "distribution": lambda one: _distribution(one, scenario),
        }
        return {name: choose[method](one) for name, one in self.histograms().items()}

    def _percentile(self, histogram: _Histogram, percentile: float) -> tuple[Any, Any]:
        counts, edges = histogram[:2]
        kept = np.cumsum(counts / counts.sum())
        if self._of_magnitudes:
            bound = edges[np.searchsorted(kept, percentile / 100)]
            return -bound, bound
        cut = (100 - percentile) / 200
        return edges[np.searchsorted(kept, cut)], edges[np.searchsorted(kept, 1 - cut)]


def _with_range(histogram: _Histogram, found: tuple[Any, Any]) -> TensorData:
    """The data of a tensor with a range that ends at its smallest and largest value."""
    counts, edges, low, high, _ = histogram
    return TensorData(lowest=max(found[0], low), highest=min(found[1], high), hist=counts, bins=edges)


def _entropy(histogram: _Histogram, levels: int) -> tuple[Any, Any]:
    """The bins around the middle one, as many on either side, whose counts lose least when `levels` of them are kept.

    Levels take whole bins, the last one also those that are left over; means of counts are cut to whole numbers.
    """
    counts, edges = histogram[:2]
    middle = counts.size // 2
    losses, bounds = [], []
    for reach in range(levels // 2, middle + 1):
        start, end = middle - reach, min(middle + reach + 1, counts.size)
        inside = counts[start:end]
        real = inside.copy()
        real[0] += counts[:start].sum()
        real[-1] += counts[end:].sum()
        losses.append(_loss(inside, real, levels))
        bounds.append((edges[start], edges[end]))
    return bounds[int(np.argmin(losses))]


def _loss(inside: Array, real: Array, levels: int) -> float:
    merged = inside.size // levels
    whole = merged * levels
    sums = inside[:whole].reshape(levels, merged).sum(axis=1)
    sums[-1] += inside[whole:].sum()
    used = (real[:whole] != 0).reshape(levels, merged).sum(axis=1)
    means = np.where(used > 0, sums / np.maximum(used, 1), 0).astype(np.int64)
    rounded = np.zeros(real.size, np.int64)
    rounded[:whole] = np.repeat(means, merged)
    p, q = smooth_distribution(real), smooth_distribution(rounded)
    if p is None or q is None:
        return float("inf")
    p, q = p.astype(np.float32), q.astype(np.float32)
    p, q = p / p.sum(), q / q.sum()
    return float((p * np.log(p / q)).sum())


def _distribution(histogram: _Histogram, scenario: str) -> TensorData:
    counts, edges = histogram[:2]
    middles = (edges[:-1] + edges[1:]) * 0.5
    power = SCENARIOS[scenario]
    if power != 1:
        middles = np.sign(middles) * np.abs(middles) ** power
    mean = (counts * middles).sum() / counts.sum()
    deviation = ((counts * middles**2).sum() / counts.sum() - mean**2) ** 0.5
    return TensorData(
        avg=np.array(mean, edges.dtype),
        std=np.array(deviation, edges.dtype),
        hist=counts,
        hist_edges=edges,
        lowest=edges.min(),
        highest=edges.max(),
    )
