"""The ways to choose a range from the values that a tensor had."""

from __future__ import annotations

from enum import Enum


class CalibrationMethod(Enum):
    """MinMax takes the extremes, Entropy the bound that loses the least information, Percentile one that keeps a share
    of the values, Distribution the mean and the deviation (for float8)."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3
