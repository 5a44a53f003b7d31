"""Between which numbers a polynomial lies, whatever sizes its symbols stand for: what decides comparisons."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from sardonyx.ops.framework.polynomial import Atom, Polynomial, evaluate, symbols

# A number, or an infinity.
Bound = int | float

# Larger than any product of the small numbers in shape arithmetic.
_LARGE = 2**40


@functools.lru_cache(maxsize=65536)
def bounds(a: Polynomial, least: int) -> tuple[Bound, Bound]:
    """The bounds of `a` rounded down, by interval arithmetic over symbols of at least `least`, which is 0 or more."""
    low: Bound = 0
    high: Bound = 0
    for monomial, coefficient in a.terms:
        interval: tuple[Bound, Bound] = (coefficient, coefficient)
        for one, exponent in monomial:
            for _ in range(exponent):
                interval = _product(interval, _atom_bounds(one, least))
        low, high = _plus(low, interval[0]), _plus(high, interval[1])
    return _over(low, a.divisor), _over(high, a.divisor)


def possible_signs(a: Polynomial, least: int) -> frozenset[int]:
    """-1, 0 and 1, as far as they are not ruled out."""
    low, high = bounds(a, least)
    return frozenset(one for one, holds in ((-1, low < 0), (0, low <= 0 <= high), (1, high > 0)) if holds)


@functools.lru_cache(maxsize=65536)
def certain_signs(a: Polynomial, least: int) -> frozenset[int]:
    """Signs that `a` certainly takes: those for a few telling sizes."""
    values = [evaluate(a, sizes) for sizes in _samples(sorted(symbols(a)), least)]
    return frozenset((value > 0) - (value < 0) for value in values)


def _samples(names: list[str], least: int) -> Iterator[dict[str, int]]:
    for number in (*range(least, least + 9), _LARGE):
        yield dict.fromkeys(names, number)
    for name in names:
        for one, others in ((least, least + 1), (least + 1, least), (least, _LARGE), (_LARGE, least)):
            yield dict.fromkeys(names, others) | {name: one}


@functools.lru_cache(maxsize=4096)
def _atom_bounds(one: Atom, least: int) -> tuple[Bound, Bound]:
    if isinstance(one, str):
        return least, math.inf
    lows, highs = zip(*(bounds(argument, least) for argument in one.arguments), strict=True)
    return (max(lows), max(highs)) if one.name == "Max" else (min(lows), min(highs))


def _product(a: tuple[Bound, Bound], b: tuple[Bound, Bound]) -> tuple[Bound, Bound]:
    corners = [_times(x, y) for x in a for y in b]
    return min(corners), max(corners)


def _plus(x: Bound, y: Bound) -> Bound:
    """The sum of numbers of any length and of infinities of one sign."""
    return x if isinstance(x, float) else y if isinstance(y, float) else x + y


def _times(x: Bound, y: Bound) -> Bound:
    if x == 0 or y == 0:
        return 0  # an infinite number of nothing is nothing
    if isinstance(x, int) and isinstance(y, int):
        return x * y
    return math.inf if (x > 0) == (y > 0) else -math.inf


def _over(bound: Bound, divisor: int) -> Bound:
    return bound // divisor if isinstance(bound, int) else bound
