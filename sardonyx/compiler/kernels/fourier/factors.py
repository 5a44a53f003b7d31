"""How Fourier transforms of a length are done: the radices of their passes, and the numbers that these need."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Array
from sardonyx.light_dataclass import dataclass

# A sum of this many terms for every element still costs less than a convolution of twice the length.
_LARGEST_RADIX = 64


def radices(length: int) -> tuple[int, ...] | None:
    """Radices whose product is the length, fours first; None where one would be too large for a sum."""
    found: list[int] = []
    rest = length
    for radix in (4, 2, 3, 5):
        while rest % radix == 0:
            found.append(radix)
            rest //= radix
    radix = 7
    while rest > 1 and radix <= _LARGEST_RADIX:
        while rest % radix == 0:
            found.append(radix)
            rest //= radix
        radix += 2
    return tuple(found) if rest == 1 else None


def split(length: int, most: int) -> int | None:
    """The divisor of a length that is next below its root, and at most `most`; None where there is none but 1."""
    found = radices(length)
    if found is None:
        return None
    divisors = {1}
    limit = min(most, math.isqrt(length))
    for radix in found:
        for prime in (2, 2) if radix == 4 else (radix,):
            divisors |= {divisor * prime for divisor in divisors if divisor * prime <= limit}
    best = max(divisors)
    return best if best > 1 else None


def roots(numerators: Array, denominator: int) -> Array:
    """exp(-2 pi i numerators / denominator), exactly reduced, as float64 pairs."""
    angles = (numerators % denominator) * (-2.0 * np.pi / denominator)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


@dataclass(frozen=True, eq=False)
class Passes:
    """The passes of a transform: argument words, and the numbers whose places those tell."""

    words: tuple[int, ...]
    count: int
    numbers: Array
    own: int  # where the numbers begin that take a real row's spectrum apart
    radices: Sequence[int]


@functools.lru_cache(maxsize=64)
def passes(length: int, written_out: tuple[int, ...], halves: int, dtype: str) -> Passes:
    """The passes of transforms of a length. `halves`: the length of the real rows whose spectra are taken apart, or 0.

    Radices in `written_out` need no factor for the first of their results, and no roots.
    """
    found = radices(length)
    assert found is not None
    tables: list[Array] = []
    words: list[int] = []
    size, left, stride = 0, length, 1

    def place(table: Array) -> int:
        nonlocal size
        tables.append(table.reshape(-1))
        size += table.size
        return size - table.size

    for radix in found:
        groups = left // radix
        first = 1 if radix in written_out else 0
        factors = roots(np.arange(groups)[:, None] * np.arange(first, radix), left)
        at = place(factors)
        words += [radix, groups, stride, at, 0 if radix in written_out else place(roots(np.arange(radix), radix))]
        left, stride = groups, stride * radix
    own = place(roots(np.arange(halves // 4 + 1), halves)) if halves else 0
    numbers = np.concatenate([*tables, np.zeros(1)]).astype(dtype)
    return Passes(tuple(words), len(found), numbers, own, found)
