"""Mean and deviation of values, from which scales of 8-bit floats follow."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# What the statistics are of, by the name of the scenario: x, or its cube root with the sign of x.
SCENARIOS = {"same": 1.0, "p3": 1 / 3}


def mean_and_deviation(counts: Array, edges: Array, scenario: str) -> tuple[float, float]:
    """The mean and the standard deviation of values counted in bins, each value taken for the middle of its bin."""
    middles = (edges[:-1].astype(np.float64) + edges[1:]) / 2
    power = SCENARIOS[scenario]
    numbers = middles if power == 1 else np.sign(middles) * np.abs(middles) ** power
    total = counts.sum()
    mean = (counts * numbers).sum() / total
    return float(mean), float(np.sqrt(max((counts * numbers**2).sum() / total - mean**2, 0.0)))
