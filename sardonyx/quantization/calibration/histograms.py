"""Histograms that widen: counts of values in bins of equal width, of any number of arrays, exact in bounded memory.

The width of a bin is a power of two and zero is an edge. So the bin of a float32 is exact arithmetic, and a histogram
of wider bins follows from one of narrower bins by adding counts. What comes out depends on the values alone, not on how
they were given or in which order: the narrowest bins of which `most` hold all values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_BLOCK = 1 << 16  # elements that are counted at once: their indices stay in the second cache
_LEAST_EXPONENT = -126  # so that the reciprocal of a width is a float32
_PRECISION = 24  # bits of a float32's significand: a bin need not be narrower than its last one


class Histogram:
    """Counts of values; `counts[i]` is the number of those from ``(first + i) * width`` up to the next edge."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.exponent = _LEAST_EXPONENT
        self.first = 0
        self.counts: Array = np.zeros(0, np.int64)
        self.low, self.high = math.inf, -math.inf

    @property
    def width(self) -> float:
        """The width of a bin."""
        return math.ldexp(1.0, self.exponent)

    @property
    def edges(self) -> Array:
        """The edges of the bins, float64 [bins + 1]."""
        return np.arange(self.first, self.first + self.counts.size + 1) * self.width

    @property
    def is_infinite(self) -> bool:
        """Whether some values are infinite, which no histogram counts."""
        return self.low == -math.inf or self.high == math.inf

    @property
    def total(self) -> int:
        """How many values there are."""
        return int(self.counts.sum())

    def add(self, values: Array, low: float, high: float) -> None:
        """Count finite values, float32 or float16 of any shape; `low` and `high` are their extremes."""
        if not values.size:
            return
        self._widen(low, high)
        scale, first = np.float32(math.ldexp(1.0, -self.exponent)), np.float32(self.first)
        flat = values.reshape(-1)
        scaled, places = np.empty(min(_BLOCK, flat.size), np.float32), np.empty(min(_BLOCK, flat.size), np.intp)
        for start in range(0, flat.size, _BLOCK):
            block = flat[start : start + _BLOCK]
            numbers, indices = scaled[: block.size], places[: block.size]
            np.multiply(block, scale, out=numbers)
            np.floor(numbers, out=numbers)
            np.subtract(numbers, first, out=numbers)
            np.copyto(indices, numbers, casting="unsafe")
            self.counts += np.bincount(indices, minlength=self.counts.size)

    def _widen(self, low: float, high: float) -> None:
        """Make room for values from `low` to `high`."""
        self.low, self.high = min(self.low, low), max(self.high, high)
        largest = max(abs(self.low), abs(self.high))
        exponent = max(self.exponent, math.frexp(largest)[1] - _PRECISION)
        while self._place(self.high, exponent) - self._place(self.low, exponent) >= self.most:
            exponent += 1
        counts, first = coarser(self.counts, self.first, exponent - self.exponent)
        self.exponent, self.first = exponent, self._place(self.low, exponent)
        grown = np.zeros(self._place(self.high, exponent) - self.first + 1, np.int64)
        if counts.size:
            grown[first - self.first : first - self.first + counts.size] = counts
        self.counts = grown

    @staticmethod
    def _place(value: float, exponent: int) -> int:
        return math.floor(math.ldexp(value, -exponent))

    def clipped(self, low: float, high: float) -> Histogram:
        """The histogram of the values, clipped to a range."""
        if self.is_infinite or not self.counts.size:
            return self  # of infinite values not even the others were counted
        made = Histogram(self.most)
        made.exponent = self.exponent
        made.low, made.high = float(np.clip(self.low, low, high)), float(np.clip(self.high, low, high))
        made.first, last = self._place(made.low, self.exponent), self._place(made.high, self.exponent)
        places = np.clip(np.arange(self.first, self.first + self.counts.size), made.first, last) - made.first
        made.counts = _sums(places, self.counts, last - made.first + 1)
        return made

    def at_most(self, bins: int) -> Histogram:
        """The histogram with the narrowest bins of which there are at most so many."""
        exponent = self.exponent
        while self._place(self.high, exponent) - self._place(self.low, exponent) >= bins:
            exponent += 1
        made = Histogram(self.most)
        made.exponent, made.low, made.high = exponent, self.low, self.high
        made.counts, made.first = coarser(self.counts, self.first, exponent - self.exponent)
        return made

    def magnitudes(self) -> tuple[Array, int]:
        """Counts of the absolute values in bins of the same width, and the place of the first of them."""
        places = np.arange(self.first, self.first + self.counts.size)
        places = np.where(places < 0, -places - 1, places)
        first = int(places.min())
        return _sums(places - first, self.counts, int(places.max()) - first + 1), first

    def arrays(self) -> dict[str, Array]:
        """All of it as arrays by name."""
        ints = np.array([self.most, self.exponent, self.first], np.int64)
        return {"counts": self.counts, "place": ints, "ends": np.array([self.low, self.high])}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array]) -> Histogram:
        """The histogram of which these are the arrays."""
        most, exponent, first = map(int, arrays["place"])
        made = cls(most)
        made.exponent, made.first, made.counts = exponent, first, arrays["counts"]
        made.low, made.high = map(float, arrays["ends"])
        return made


def coarser(counts: Array, first: int, doublings: int) -> tuple[Array, int]:
    """Counts in bins that are wider by a power of two, and the place of the first of them."""
    if not counts.size or not doublings:
        return counts, first
    start = first >> doublings
    places = (np.arange(first, first + counts.size) >> doublings) - start
    return _sums(places, counts, int(places[-1]) + 1), start


def _sums(places: Array, counts: Array, size: int) -> Array:
    """The sums of the counts that go to each place; `places` may have any order."""
    sums = np.zeros(size, np.int64)
    np.add.at(sums, places, counts)
    return sums
