"""How strong a signal is beside the noise of rounding it: what says whether a few bits can hold a tensor.

A few values that lie far from all others take most of the steps of a type, and too few are left for the rest: the
states of transformers are such tensors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sardonyx.quantization.quantized_numbers import Parameters, type_range


def signal_to_noise(known: Any, parameters: Parameters) -> float | None:
    """The mean square of a tensor over that of what storing it adds, in decibels.

    `known` is what calibration found: with counts of values, the noise is that of these values, of rounding and of
    clipping; with mean and standard deviation alone it is that of rounding to steps, which no value is too small for
    (the square of a step over 12). None where neither is known, or the tensor was always zero.
    """
    try:
        mean, deviation = (float(one) for one in known.avg_std)
    except (AttributeError, TypeError, ValueError):
        return None
    step = float(parameters.scale)
    counted = _counted(known)
    if counted is None:
        signal, noise = mean**2 + deviation**2, step**2 / 12
    else:
        counts, middles = counted
        least, largest = (bound - int(parameters.zero_point) for bound in type_range(parameters.dtype))
        stored = np.clip(np.rint(middles / step), least, largest) * step
        signal, noise = float(counts @ middles**2), float(counts @ (stored - middles) ** 2)
    if not (math.isfinite(signal) and math.isfinite(noise)) or signal <= 0:
        return None
    return math.inf if noise == 0 else 10 * math.log10(signal / noise)


def _counted(known: Any) -> tuple[Any, Any] | None:
    """Counts, and the values that they stand for: the middles of bins, and zero for the bin that holds it."""
    counts = getattr(known, "hist", None)
    edges = getattr(known, "bins", None)
    edges = getattr(known, "hist_edges", None) if edges is None else edges
    if counts is None or edges is None or np.size(edges) != np.size(counts) + 1 or not np.any(counts):
        return None
    edges = np.asarray(edges, np.float64)
    return np.asarray(counts, np.float64), (edges[:-1] + edges[1:]) / 2
