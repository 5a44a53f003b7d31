"""Functions by a polynomial for each of 32 segments, whose coefficients two registers of AVX-512 hold for each power.

Where a rational function needs eleven terms and a division, four terms are left, and as many lookups.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.lookup import lookup
from sardonyx.compiler.llvm.types import F32, I32

_COUNT = 32
_TERMS = 4
# Segments of the error function, which is 1 in float32 where the last one ends.
_ERF_WIDTH = 1 / 8
_ERF_END = 3.937
_MAGIC = 12582912.0  # 1.5 * 2^23: adding it rounds a float32 to an integer, which the low bits then hold


def erf_by_segments(k: Function, x: Value) -> Value:
    """The error function of a register of float32: x times a function of |x|."""
    magnitude = k.faster_smaller(k.constant(x.type, _ERF_END), k.unary("fabs", x))  # NaN stays NaN
    shifted = magnitude + _MAGIC * _ERF_WIDTH
    distance = magnitude - (shifted - _MAGIC * _ERF_WIDTH)
    indices = shifted.bits_as(I32)
    total, *others = (_looked_up(k, power, indices) for power in reversed(_erf_coefficients()))
    for coefficient in others:
        total = k.fma(total, distance, coefficient)
    # Where the polynomial ends, x times it is above 1.
    bounded = k.faster_smaller(k.constant(x.type, 1.0), x * total)
    return k.faster_larger(k.constant(x.type, -1.0), bounded)


def _looked_up(k: Function, numbers: Sequence[float], indices: Value) -> Value:
    half = indices.type.lanes
    return lookup(k, (k.numbers(F32, numbers[:half]), k.numbers(F32, numbers[half:])), indices)


@functools.cache
def _erf_coefficients() -> tuple[tuple[float, ...], ...]:
    """erf(x) / x in the distance from the middle of each segment: for each power, lowest first, all coefficients.

    The first segment begins at its middle, where the smallest numbers are.
    """
    rows = []
    for number in range(_COUNT):
        begin, end = (0.0 if number == 0 else -_ERF_WIDTH / 2), _ERF_WIDTH / 2
        rows.append(_interpolant(lambda x: math.erf(x) / x, number * _ERF_WIDTH, begin, end))
    return tuple(zip(*rows, strict=True))


def _interpolant(function: Callable[[float], float], middle: float, begin: float, end: float) -> list[float]:
    """The polynomial in the distance from `middle` that agrees with a function at Chebyshev's points, lowest power
    first."""
    angles = (math.pi * (index + 0.5) / _TERMS for index in range(_TERMS))
    points = [(begin + end) / 2 + (end - begin) / 2 * math.cos(angle) for angle in angles]
    # Newton's divided differences, then from products of distances to powers.
    differences = [function(middle + point) for point in points]
    for order in range(1, _TERMS):
        for index in range(_TERMS - 1, order - 1, -1):
            step = points[index] - points[index - order]
            differences[index] = (differences[index] - differences[index - 1]) / step
    coefficients = [0.0] * _TERMS
    for difference, point in zip(reversed(differences), reversed(points), strict=True):
        shifted = [0.0, *coefficients[:-1]]
        coefficients = [high - point * low for high, low in zip(shifted, coefficients, strict=True)]
        coefficients[0] += difference
    return coefficients
