"""Ranges that lose the least information: the divergence of Kullback and Leibler between values as they are and as
they are after clipping and rounding to a number of levels (Migacz, 8-bit inference with TensorRT, 2017)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sardonyx.quantization.calibration.histograms import Histogram

Array = np.ndarray[Any, Any]

_CANDIDATES = 128
# The share of values that are strays: clipping them is what the method is for.
_STRAY = 2e-5
# The share of a quantised distribution that is spread evenly, so that a value which it lacks has a finite price.
_SPREAD = 1e-4


def entropy_range(histogram: Histogram, levels: int) -> tuple[float, float]:
    """Of the ranges that clip absolute values, the one with the least divergence.

    `levels` is how many absolute values the range is rounded to. The candidates divide the largest absolute value
    evenly; the narrowest has a bin for each level. Of equal ones the widest is taken. The range never goes beyond the
    smallest and the largest value.

    A candidate that clips more than stray values has no more noise than the range of all values: the divergence knows
    how many values are clipped alike, not how far. Without that bound, a few distinct values (pixels of 16 greys) lose
    nothing in a range that ends below nearly all of them, and the few large states on which a transformer depends are
    clipped.
    """
    if not histogram.total:
        return 0.0, 0.0
    counts, first = without_zeros(histogram), histogram.first
    farthest = max(-first, first + counts.size)  # the largest absolute value, in bins
    allowed = noise(histogram, histogram.low, histogram.high, levels)
    best, chosen = math.inf, farthest
    for place in range(_CANDIDATES, 0, -1):
        bound = -(-farthest * place // _CANDIDATES)
        start, end = max(0, -bound - first), min(counts.size, bound - first)
        if end - start < levels and place < _CANDIDATES:
            break
        limit = bound * histogram.width
        low, high = max(histogram.low, -limit), min(histogram.high, limit)
        lost = counts.sum() - counts[start:end].sum()
        if end <= start or (lost > _STRAY * histogram.total and noise(histogram, low, high, levels) > allowed):
            continue
        found = divergence(counts, start, end, levels)
        if found < best:
            best, chosen = found, bound
    limit = chosen * histogram.width
    return max(histogram.low, -limit), min(histogram.high, limit)


def noise(histogram: Histogram, low: float, high: float, levels: int) -> float:
    """The mean square of what clipping to a range, and rounding to `levels` numbers of either sign, changes."""
    middles = (histogram.edges[:-1] + histogram.edges[1:]) / 2
    low, high = min(low, 0.0), max(high, 0.0)
    clipped = histogram.counts @ np.square(middles - np.clip(middles, low, high)) / histogram.total
    return float(clipped + ((high - low) / (2 * levels - 1)) ** 2 / 12)


def without_zeros(histogram: Histogram) -> Array:
    """The counts, float64, without the zeros that stand out, as those of Relu do: zero is stored exactly in any range.

    The bin that holds zero gets no more than the larger of the bins beside it.
    """
    counts = histogram.counts.astype(np.float64)
    zero = -histogram.first
    if 0 <= zero < counts.size and counts.size > 1:
        beside = [counts[place] for place in (zero - 1, zero + 1) if 0 <= place < counts.size]
        counts[zero] = min(counts[zero], max(beside))
    return counts


def divergence(counts: Array, start: int, end: int, levels: int) -> float:
    """How much information is lost, in nats, if values outside of the bins from `start` up to `end` are clipped, and
    the others are rounded to `levels` numbers.

    Rounded values are spread evenly over those bins of a level in which there were any.
    """
    inside = counts[start:end]
    real = inside.copy()
    real[0] += counts[:start].sum()
    real[-1] += counts[end:].sum()
    used = real > 0
    level = np.arange(inside.size) * min(levels, inside.size) // inside.size
    sums = np.bincount(level, inside)
    bins = np.maximum(np.bincount(level, used), 1)
    rounded = (sums / bins)[level][used]
    total = rounded.sum()
    p = real[used] / real.sum()
    q = np.full(p.size, 1 / p.size) if not total else (1 - _SPREAD) * rounded / total + _SPREAD / p.size
    return float((p * np.log(p / q)).sum())
