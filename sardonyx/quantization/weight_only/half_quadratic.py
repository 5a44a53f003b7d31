"""Half-quadratic quantisation ("HQQ"): zero points that leave a sparse error, without any data.

Source: H. Badri and A. Shaji, "Half-Quadratic Quantization of Large Machine Learning Models" (Mobius Labs, 2023). The
scale of a block is that of its range; the zero point minimises the p-norm of the error, p < 1, which few large elements
spoil less than a square. Splitting halves the problem: a shrinkage step takes out what is sparse of the error, then the
zero point is the mean that fits the rest; the penalty of the split grows from turn to turn.
"""

from __future__ import annotations

import numpy as np

from sardonyx.api.building.block_rounding import largest_at_the_end
from sardonyx.quantization.weight_only.blocks import Array, Form, Rounded
from sardonyx.quantization.weight_only.rounding import bounds

_NORM = 0.7
_PENALTY, _GROWTH = 10.0, 1.01
_TURNS = 20


def half_quadratic(groups: Array, mask: Array | None, form: Form) -> Rounded:
    """Blocks with the parameters of the least error that was met.

    Where the form allows no real zero points, they are integers in each turn, and the scale is fitted beside them.
    """
    low, high = bounds(groups, mask)
    if not form.real_zeros:
        low, high = np.minimum(low, 0), np.maximum(high, 0)  # an integer zero point stands for zero
    present = np.float32(1) if mask is None else mask.astype(np.float32)
    count = groups.shape[2] if mask is None else mask.sum(axis=1)
    width = np.where(high == low, np.float32(1), high - low)
    scales = form.stored(width / np.float32(form.top))
    scales = _without_zeros(scales)
    zeros = np.rint(-low / scales)
    if form.symmetric:
        scales, middle = largest_at_the_end(groups, form.bits)
        scales, zeros = _without_zeros(form.stored(scales)), middle.astype(np.float32)
    kept_scales, kept_zeros, least = scales, zeros, np.full(zeros.shape, np.inf, np.float32)
    penalty = _PENALTY
    for _ in range(_TURNS):
        codes = _codes(groups, scales, zeros, form)
        steps = codes - zeros[..., None]
        error = groups - steps * scales[..., None]
        size = (np.abs(error) * present).sum(axis=2)
        better = size < least
        least = np.where(better, size, least)
        kept_scales, kept_zeros = np.where(better, scales, kept_scales), np.where(better, zeros, kept_zeros)
        if not better.any():
            break
        fitted = groups - _shrunk(error, penalty)
        if not form.real_zeros:
            scales = form.stored(_ratio((fitted * steps * present).sum(axis=2), (steps * steps * present).sum(axis=2)))
            scales = np.where(scales == 0, kept_scales, scales)
        if not form.symmetric:
            zeros = ((codes - fitted / scales[..., None]) * present).sum(axis=2) / count
            if not form.real_zeros:
                zeros = np.clip(np.rint(zeros), 0, form.top)
        penalty *= _GROWTH
    zeros = form.stored(kept_zeros) if form.real_zeros else kept_zeros.astype(np.uint8)
    return Rounded(_codes(groups, kept_scales, zeros, form).astype(np.uint8), kept_scales, zeros)


def _codes(groups: Array, scales: Array, zeros: Array, form: Form) -> Array:
    return np.clip(np.rint(groups / scales[..., None] + zeros[..., None]), 0, form.top)


def _shrunk(error: Array, penalty: float) -> Array:
    """The generalised soft threshold of the p-norm."""
    size = np.abs(error)
    with np.errstate(divide="ignore"):
        threshold = np.power(size, np.float32(_NORM - 1)) / np.float32(penalty)
    return np.asarray(np.sign(error) * np.maximum(size - threshold, 0))


def _ratio(one: Array, other: Array) -> Array:
    return np.divide(one, other, out=np.zeros_like(one), where=other != 0)


def _without_zeros(scales: Array) -> Array:
    return np.where(scales == 0, np.float32(1), scales)
