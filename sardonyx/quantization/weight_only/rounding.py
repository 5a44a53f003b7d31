"""Rounding to the nearest integer ("RTN"), with the scale of each block taken from its own range.

Two ways to take it. That of the default configuration is MLAS's, the same as of `quantize_matmul_4bits`: the range with
zero in it, or, symmetric, the element of the largest magnitude at the lower end of the codes, whatever its sign. That
of the RTN configuration is Intel Neural Compressor's, which symmetric puts both ends at plus and minus half the codes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sardonyx.api.building.block_rounding import codes_of, largest_at_the_end, whole_range
from sardonyx.quantization.weight_only.blocks import Array, Form, Rounded


def round_to_nearest(groups: Array, mask: Array | None, form: Form) -> Rounded:
    """Blocks over their range; with a symmetric form the largest magnitude is exact."""
    scales, zeros = (largest_at_the_end if form.symmetric else whole_range)(groups, form.bits)
    scales = form.stored(scales)
    return Rounded(codes_of(groups, scales, zeros, form.bits), scales, zeros)


@dataclass(frozen=True)
class RangeRounding:
    """Blocks over `ratio` of their range, halves to the even code; blocks of zeros have the scale 1.

    The range has zero in it. `as_known_tool` takes that of the elements alone, so that what lies beyond it in blocks of
    one sign is cut off, and makes codes with scales that have not been rounded to float16.
    """

    ratio: float = 1.0
    as_known_tool: bool = False

    def __call__(self, groups: Array, mask: Array | None, form: Form) -> Rounded:
        if form.symmetric:
            exact = np.abs(groups).max(axis=2).astype(np.float64) * self.ratio * 2 / form.top
            low = np.zeros(exact.shape)
        else:
            low, high = self._ends(groups, mask)
            low, high = (ends.astype(form.dtype) * form.dtype.type(self.ratio) for ends in (low, high))
            exact = (high - low).astype(np.float64) / form.top
        exact = np.where(exact == 0, 1.0, exact)
        scales = form.stored(exact)
        rounded = form.dtype != np.float32 and not self.as_known_tool
        divisor = np.where(scales == 0, np.float32(1), scales) if rounded else exact
        if form.symmetric:
            zeros = np.full(exact.shape, form.middle, np.uint8)
        else:
            zeros = np.clip(np.rint(-low.astype(np.float64) / divisor), 0, form.top).astype(np.uint8)
        quotient = np.rint(groups / divisor[..., None] + zeros[..., None])
        return Rounded(np.clip(quotient, 0, form.top).astype(np.uint8), scales, zeros)

    def _ends(self, groups: Array, mask: Array | None) -> tuple[Array, Array]:
        if self.as_known_tool:
            return bounds(groups, mask)
        return np.minimum(groups.min(axis=2), 0), np.maximum(groups.max(axis=2), 0)


def bounds(groups: Array, mask: Array | None) -> tuple[Array, Array]:
    """The smallest and the largest element of each block."""
    if mask is None:
        return groups.min(axis=2), groups.max(axis=2)
    low = np.where(mask, groups, np.float32(np.inf)).min(axis=2)
    return low, np.where(mask, groups, np.float32(-np.inf)).max(axis=2)
