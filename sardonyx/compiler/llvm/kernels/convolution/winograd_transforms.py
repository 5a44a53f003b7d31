"""The linear transforms of Winograd's minimal filtering F(m, 3): of inputs, of filters, and back to outputs.

m outputs of a correlation with three taps are m + 2 products: inputs and taps are taken for polynomials, evaluated at
the points 0, +-p for each p of `pairs`, and infinity, multiplied there, and the product is interpolated (A. Toom 1963,
S. Cook 1966; S. Winograd, "Arithmetic complexity of computations", 1980). Transposed, as here, it is the inputs that
are interpolated:

    outputs = A^T ((G taps) * (B^T inputs))

Points of both signs share sums, even and odd parts. In two dimensions each transform is applied along both (A. Lavin,
S. Gray, "Fast algorithms for convolutional neural networks", 2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from sardonyx.compiler.llvm.builder import Function, Value

TAPS = 3

Line = list[Value]


@dataclass(frozen=True)
class Transforms:
    """F(`outputs`, 3) at 0, +-p for every p of `pairs`, and infinity; as many products as there are points.

    All coefficients of the transforms of inputs and of outputs must be exact in float32, so that they only round.
    """

    outputs: int
    pairs: tuple[Fraction, ...]

    @property
    def size(self) -> int:
        """Inputs, products and points along one dimension."""
        return self.outputs + TAPS - 1

    @property
    def points(self) -> tuple[Fraction, ...]:
        """The finite points, in order of the products; infinity is the last."""
        return (Fraction(0), *(signed for p in self.pairs for signed in (p, -p)))

    def of_inputs(self, k: Function, d: Sequence[Value]) -> Line:
        """B^T d: the coefficients of d as a functional at the Lagrange polynomials of the points."""
        even = _product_of_squares(self.pairs)
        result = [_combined(k, even, d[0::2])]
        for p in self.pairs:
            others = _product_of_squares([q for q in self.pairs if q != p])
            result.extend(_both(k, _combined(k, others, d[2::2]), _combined(k, others, d[1::2]), p))
        return [*result, _combined(k, even, d[1::2])]

    def of_outputs(self, k: Function, m: Sequence[Value]) -> Line:
        """A^T m: the values at the points, weighted by their powers."""
        sums = [m[1 + 2 * i] + m[2 + 2 * i] for i in range(len(self.pairs))]
        differences = [m[1 + 2 * i] - m[2 + 2 * i] for i in range(len(self.pairs))]
        result = []
        for power in range(self.outputs):
            ends = [m[0]] if power == 0 else [m[-1]] if power == self.outputs - 1 else []
            total = ends[0] if ends else None
            for p, value in zip(self.pairs, differences if power % 2 else sums, strict=True):
                total = _scaled_and_added(k, p**power, value, total)
            assert total is not None
            result.append(total)
        return result

    def of_taps(self, k: Function, g: Sequence[Value]) -> Line:
        """G g: the values of the taps' polynomial, each divided by the product of the point's distances to others."""
        result = [g[0] * float(1 / self._distances(Fraction(0)))]
        for p in self.pairs:
            share = float(1 / self._distances(p))  # the same for p and -p: there is an even number of other factors
            even, odd = k.fma(g[2], _number(k, p * p, g[2]), g[0]), g[1] * float(p)
            result.extend(((even + odd) * share, (even - odd) * share))
        return [*result, g[2]]

    def _distances(self, point: Fraction) -> Fraction:
        return math.prod((point - other for other in self.points if other != point), start=Fraction(1))


# Of all pairs of sixteenths those with the least error, half of that at the integers 1 and 2.
F4 = Transforms(4, (Fraction(11, 16), Fraction(3, 2)))
F2 = Transforms(2, (Fraction(1),))
BY_OUTPUTS = {4: F4, 2: F2}


def along_both(transform: Callable[[Sequence[Value]], Line], square: Sequence[Sequence[Value]]) -> list[Line]:
    """A transform applied to the columns and then to the rows of a square of values, given and returned as rows."""
    columns = [transform([row[j] for row in square]) for j in range(len(square[0]))]
    return [transform([column[i] for column in columns]) for i in range(len(columns[0]))]


def _product_of_squares(points: Sequence[Fraction]) -> list[Fraction]:
    """The coefficients in x^2, lowest first, of the product of all x^2 - p^2."""
    result = [Fraction(1)]
    for p in points:
        higher, lower = [Fraction(0), *result], [*(p * p * c for c in result), Fraction(0)]
        result = [a - b for a, b in zip(higher, lower, strict=True)]
    return result


def _combined(k: Function, coefficients: Sequence[Fraction], values: Sequence[Value]) -> Value:
    """The sum of products; the last coefficient is 1."""
    total: Value | None = None
    for coefficient, value in reversed(list(zip(coefficients, values, strict=False))):
        total = _scaled_and_added(k, coefficient, value, total)
    assert total is not None
    return total


def _both(k: Function, even: Value, odd: Value, p: Fraction) -> tuple[Value, Value]:
    """even + p odd and even - p odd."""
    if p == 1:
        return even + odd, even - odd
    return k.fma(odd, _number(k, p, odd), even), k.fma(odd, _number(k, -p, odd), even)


def _scaled_and_added(k: Function, factor: Fraction, value: Value, total: Value | None) -> Value:
    """total + factor * value."""
    if total is None:
        return value if factor == 1 else value * float(factor)
    if factor == 1:
        return total + value
    return total - value if factor == -1 else k.fma(value, _number(k, factor, value), total)


def _number(k: Function, number: Fraction, like: Value) -> Value:
    return k.constant(like.type, float(number))
