"""Ranges that keep a share of the values."""

from __future__ import annotations

import numpy as np

from sardonyx.quantization.calibration.histograms import Histogram


def percentile_range(histogram: Histogram, percentile: float, symmetric: bool) -> tuple[float, float]:
    """A range that holds at least `percentile` percent of the values, as narrow as whole bins allow.

    `symmetric` bounds absolute values; else as many values may lie below as above. The range never goes beyond the
    smallest and the largest value, which are its ends at 100 percent.
    """
    total, width = histogram.total, histogram.width
    if not total:
        return 0.0, 0.0
    if symmetric:
        counts, first = histogram.magnitudes()
        bound = (first + _first_that_keeps(np.cumsum(counts), total, percentile / 100) + 1) * width
        return max(histogram.low, -bound), min(histogram.high, bound)
    share = 1 - (100 - percentile) / 200
    above = histogram.first + _first_that_keeps(np.cumsum(histogram.counts), total, share) + 1
    last = histogram.first + histogram.counts.size
    below = last - _first_that_keeps(np.cumsum(histogram.counts[::-1]), total, share) - 1
    return max(histogram.low, below * width), min(histogram.high, above * width)


def _first_that_keeps(kept: np.ndarray[tuple[int], np.dtype[np.int64]], total: int, share: float) -> int:
    """The first bin up to which there is that share of the values, and one of them at least."""
    wanted = max(np.ceil(share * total - 1e-9 * total), 1)
    return min(int(np.searchsorted(kept, wanted)), kept.size - 1)
