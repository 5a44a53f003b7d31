"""A search for the scale and zero point of each block, as llama.cpp's k-quants make it.

Source: I. Kawrakow's k-quants of llama.cpp (2023), the search for asymmetric blocks. Elements count by their magnitude:
the weight of an error is the root mean square of its block plus the magnitude of the element. For each of some tried
steps the codes are fixed first; then the parameters that fit them best are the solution of weighted least squares.
"""

from __future__ import annotations

import numpy as np

from sardonyx.quantization.weight_only.blocks import Array, Form, Rounded
from sardonyx.quantization.weight_only.rounding import bounds, round_to_nearest

# Tried steps: the range over the number of codes plus these.
_OFFSETS = tuple(round(-1 + 0.1 * index, 1) for index in range(20))


def importance(groups: Array, mask: Array | None) -> Array:
    """What the error of each element counts."""
    count = groups.shape[2] if mask is None else mask.sum(axis=1)
    mean = np.sqrt(np.square(groups).sum(axis=2) / count)
    counts: Array = mean[..., None] + np.abs(groups)
    return counts if mask is None else counts * mask


def search(groups: Array, mask: Array | None, form: Form) -> Rounded:
    """Blocks with the tried parameters of the least weighted error.

    The zero point of each trial is an integer before the scale is fitted to its codes, so that what is compared is what
    is stored; rounding to the nearest is one of the trials, so that none is worse.
    """
    counts = importance(groups, mask)
    best = round_to_nearest(groups, mask, form)
    least = _error(groups, counts, best)
    starts = [best.scales] if form.symmetric else []
    low, high = (np.minimum(groups.min(axis=2), 0), np.maximum(groups.max(axis=2), 0))
    for offset in _OFFSETS:
        if form.symmetric:
            tried = starts[0] * np.float32(form.top / (form.top + offset))
            zeros = best.zeros.astype(np.float32)
        else:
            tried = (high - low) / np.float32(form.top + offset)
            zeros = np.clip(np.rint(_over(-low, tried)), 0, form.top)
        found = _fitted(groups, counts, tried, zeros, form)
        error = _error(groups, counts, found)
        better = error < least
        least = np.where(better, error, least)
        best = Rounded(
            np.where(better[..., None], found.codes, best.codes),
            np.where(better, found.scales, best.scales),
            np.where(better, found.zeros, best.zeros),
        )
    return best


def _fitted(groups: Array, counts: Array, scales: Array, zeros: Array, form: Form) -> Rounded:
    """The codes for a scale, the scale that fits these best, and the codes for that."""
    steps = _codes(groups, scales, zeros, form).astype(np.float32) - zeros[..., None]
    weighed = counts * steps
    fitted = _over((weighed * groups).sum(axis=2), (weighed * steps).sum(axis=2))
    stored = form.stored(np.where(fitted == 0, scales, fitted))
    return Rounded(_codes(groups, stored, zeros, form), stored, zeros.astype(np.uint8))


def _codes(groups: Array, scales: Array, zeros: Array, form: Form) -> Array:
    quotient = _over(groups, scales[..., None])
    quotient += zeros[..., None]
    np.rint(quotient, out=quotient)
    np.clip(quotient, 0, form.top, out=quotient)
    return quotient.astype(np.uint8)


def _error(groups: Array, counts: Array, found: Rounded) -> Array:
    return np.asarray((counts * np.square(found.real() - groups)).sum(axis=2))


def _over(one: Array, other: Array) -> Array:
    """The quotient, 0 where it has none."""
    shape = np.broadcast_shapes(one.shape, other.shape)
    return np.divide(one, other, out=np.zeros(shape, np.float32), where=other != 0)


def search_with_real_zeros(groups: Array, mask: Array | None, form: Form) -> Rounded:
    """The same as the known tool makes it: zero points are real while it searches, and are rounded at the end.

    A trial starts at the lower end of the best one before it. A symmetric form has zero points as well.
    """
    counts = importance(groups, mask)
    low, high = bounds(groups, mask)
    all_counts, all_weights = counts.sum(axis=2), (counts * groups).sum(axis=2)
    flat = high == low
    factor = np.where(flat, np.float32(1), np.float32(form.top) / np.where(flat, np.float32(1), high - low))
    scales = 1 / factor
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.clip(np.rint((groups - low[..., None]) * factor[..., None]), 0, form.top)
        least = (counts * np.square(scales[..., None] * codes + low[..., None] - groups)).sum(axis=2)
        lower = low
        for offset in _OFFSETS:
            width = high - lower
            factor = np.where(width == 0, np.float32(1), np.float32(form.top + offset) / width)
            codes = np.clip(np.rint((groups - lower[..., None]) * factor[..., None]), 0, form.top)
            weighed = counts * codes
            first, second, product = weighed.sum(axis=2), (weighed * codes).sum(axis=2), (weighed * groups).sum(axis=2)
            denominator = all_counts * second - first * first
            scale = (all_counts * product - all_weights * first) / denominator
            lowest = (second * all_weights - first * product) / denominator
            error = (counts * np.square(scale[..., None] * codes + lowest[..., None] - groups)).sum(axis=2)
            better = error < least
            least, scales = np.where(better, error, least), np.where(better, scale, scales)
            lower = np.where(better, lowest, lower)
        zeros = np.clip(np.rint(-lower / scales), 0, form.top)
        codes = np.clip(np.rint(groups / scales[..., None] + zeros[..., None]), 0, form.top)
    return Rounded(codes.astype(np.uint8), form.stored(scales), zeros.astype(np.uint8))
