"""The linear transforms of Winograd's minimal filtering F(m, r): of inputs, of filters, and back to outputs.

m outputs of a correlation with r taps are m + r - 1 products: taps and outputs are taken for polynomials, evaluated at
points, zero and +-p and infinity, and multiplied there (A. Toom 1963, S. Cook 1966; S. Winograd, "Arithmetic complexity
of computations", 1980). Transposed, as here, it is the inputs that are interpolated:

    outputs = A^T ((G taps) * (B^T inputs))

Points of both signs share sums, even and odd parts. In two dimensions each transform is applied along both (A. Lavin,
S. Gray, "Fast algorithms for convolutional neural networks", 2015). A correlation of stride 2 is the sum of one of the
even inputs with the even taps and one of the odd inputs with the odd taps, of stride 1 each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.forks import cached_property

TAPS = 3

Line = list[Value]
Transform = Callable[[Function, Sequence[Value]], Line]


@dataclass(frozen=True)
class Transforms:
    """F(`outputs`, `taps`) at 0 if `zero`, +-p for every p of `pairs`, and infinity: as many products as points.

    All coefficients of the transforms of inputs and of outputs must be exact in float32, so that they only round. With
    one tap there is nothing to gain: products are those of the tap with each input.
    """

    outputs: int
    taps: int
    pairs: tuple[Fraction, ...] = ()
    zero: bool = False

    @property
    def size(self) -> int:
        """Inputs, and products."""
        return self.outputs + self.taps - 1

    @property
    def filters(self) -> int:
        """Different transformed filters: one for each product, or the same for all."""
        return self.size if self.taps > 1 else 1

    @property
    def points(self) -> tuple[Fraction, ...]:
        """The finite points, in order of the products; infinity is the last."""
        return (*([Fraction(0)] if self.zero else []), *(signed for p in self.pairs for signed in (p, -p)))

    def of_inputs(self, k: Function, d: Sequence[Value]) -> Line:
        """B^T d: the coefficients of d as a functional at the Lagrange polynomials of the points."""
        if self.taps == 1:
            return list(d)
        every, result = _product_of_squares(self.pairs), []
        if self.zero:
            result.append(_combined(k, every, d[0::2]))
            d = d[1:]
        for p in self.pairs:
            others = _product_of_squares([q for q in self.pairs if q != p])
            result.extend(_both(k, _combined(k, others, d[1::2]), _combined(k, others, d[0::2]), p))
        return [*result, _combined(k, every, d[0::2])]

    def of_outputs(self, k: Function, m: Sequence[Value]) -> Line:
        """A^T m: the values at the points, weighted by their powers."""
        if self.taps == 1:
            return list(m)
        signed = m[int(self.zero) : -1]
        sums = [plus + minus for plus, minus in zip(signed[0::2], signed[1::2], strict=True)]
        differences = [plus - minus for plus, minus in zip(signed[0::2], signed[1::2], strict=True)]
        result = []
        for power in range(self.outputs):
            total = m[0] if self.zero and power == 0 else m[-1] if power == self.outputs - 1 else None
            for p, value in zip(self.pairs, differences if power % 2 else sums, strict=True):
                total = _scaled_and_added(k, p**power, value, total)
            assert total is not None
            result.append(total)
        return result

    def of_taps(self, k: Function, g: Sequence[Value]) -> Line:
        """G g: the values of the taps' polynomial, each divided by the product of the point's distances to others."""
        if self.taps == 1:
            return list(g)
        result = [g[0] * float(1 / self._distances(Fraction(0)))] if self.zero else []
        for p in self.pairs:
            even, odd = g[0], g[1] * float(p)
            if self.taps == TAPS:
                even = k.fma(g[2], _number(k, p * p, g[2]), even)
            result.append((even + odd) * float(1 / self._distances(p)))
            result.append((even - odd) * float(1 / self._distances(-p)))
        return [*result, g[-1]]

    def tap_at(self, k: Function, g: Sequence[Value], number: int) -> Value:
        """The value of three taps' polynomial at one point: the transform but for a factor, its `scale`."""
        if number == len(self.points):
            return g[-1]
        point = self.points[number]
        return k.fma(k.fma(g[2], _number(k, point, g[2]), g[1]), _number(k, point, g[1]), g[0]) if point else g[0]

    def taps_at_all(self, k: Function, g: Sequence[Value]) -> Line:
        """The same at every point, with few operations: the points are 0 and pairs."""
        result = [g[0]]
        for p in self.pairs:
            result.extend(_both(k, k.fma(g[2], _number(k, p * p, g[2]), g[0]), g[1], p))
        return [*result, g[2]]

    def scale(self, number: int) -> Fraction:
        """What a point's value of the taps' polynomial is multiplied by."""
        return 1 / self._distances(self.points[number]) if number < len(self.points) else Fraction(1)

    def _distances(self, point: Fraction) -> Fraction:
        return math.prod((point - other for other in self.points if other != point), start=Fraction(1))


@dataclass(frozen=True)
class Phases:
    """The products of some lines and some columns of a tile: of one phase of the stride along each dimension."""

    rows: Transforms
    columns: Transforms
    first_row: int
    first_column: int
    stride: int

    @property
    def by_columns(self) -> bool:
        """Whether products count along columns fastest: those with the same filter always follow one another."""
        return self.rows.filters == 1 < self.columns.filters

    def part(self, size: int, value: Callable[[int, int], Value]) -> list[Line]:
        """The lines and columns of these phases, of a square of values that are given by row and column."""
        rows, columns = range(self.first_row, size, self.stride), range(self.first_column, size, self.stride)
        return [[value(i, j) for j in columns] for i in rows]


@dataclass(frozen=True)
class Scheme:
    """A convolution 3x3 by tiles of `outputs` x `outputs`: transforms for each phase of the `stride`.

    A tile of the input has `size` x `size` pixels, and as many products. These, and the transformed filters, count
    those of the first phases before those of others; `filter_numbers` tells which filter a product takes.
    """

    outputs: int
    stride: int
    along: tuple[Transforms, ...]

    @property
    def size(self) -> int:
        return sum(transforms.size for transforms in self.along)

    @property
    def points(self) -> int:
        """Products of a tile, each of all channels."""
        return self.size**2

    @property
    def filters(self) -> int:
        """Transformed filters for each filter."""
        return sum(transforms.filters for transforms in self.along) ** 2

    @cached_property
    def phases(self) -> tuple[Phases, ...]:
        numbered = list(enumerate(self.along))
        return tuple(Phases(rows, columns, i, j, self.stride) for i, rows in numbered for j, columns in numbered)

    @cached_property
    def filter_numbers(self) -> tuple[int, ...]:
        """The filter of each product; never less than that of the product before."""
        found: list[int] = []
        for each in self.phases:
            filters = each.rows.filters * each.columns.filters
            same = each.rows.size * each.columns.size // filters
            first = found[-1] + 1 if found else 0
            found.extend(first + number // same for number in range(filters * same))
        return tuple(found)

    def of_inputs(self, k: Function, pixel: Callable[[int, int], Value]) -> Iterator[Value]:
        """What pixels, loaded by row and column, are at the points; in the order of the products."""
        for each in self.phases:
            square = _along_both(k, each.rows.of_inputs, each.columns.of_inputs, each.part(self.size, pixel))
            yield from (value for line in (zip(*square, strict=True) if each.by_columns else square) for value in line)

    def of_outputs(self, k: Function, products: Iterable[Value]) -> list[Line]:
        """The outputs of a tile, as rows."""
        source, totals = iter(products), None
        for each in self.phases:
            high, wide = each.rows.size, each.columns.size
            if each.by_columns:
                columns = [[next(source) for _ in range(high)] for _ in range(wide)]
                square = [[column[i] for column in columns] for i in range(high)]
            else:
                square = [[next(source) for _ in range(wide)] for _ in range(high)]
            part = _along_both(k, each.rows.of_outputs, each.columns.of_outputs, square)
            if totals is not None:
                part = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(totals, part, strict=True)]
            totals = part
        assert totals is not None
        return totals

    def of_taps(self, k: Function, tap: Callable[[int, int], Value]) -> Iterator[Value]:
        """The transformed filters of 3x3 taps, loaded by row and column."""
        for each in self.phases:
            square = _along_both(k, each.rows.of_taps, each.columns.of_taps, each.part(TAPS, tap))
            yield from (value for line in square for value in line)


def _scheme(*along: Transforms) -> Scheme:
    return Scheme(along[0].outputs, len(along), along)


# Their points are those, of all pairs of sixteenths, with the least errors: half of those at the integers 1 and 2.
_ALL = (
    _scheme(Transforms(4, 3, (Fraction(11, 16), Fraction(3, 2)), zero=True)),
    _scheme(Transforms(2, 3, (Fraction(1),), zero=True)),
    _scheme(Transforms(4, 2, (Fraction(7, 16), Fraction(5, 4))), Transforms(4, 1)),
    _scheme(Transforms(2, 2, (Fraction(1),)), Transforms(2, 1)),
)
# By stride and outputs.
SCHEMES = {(scheme.stride, scheme.outputs): scheme for scheme in _ALL}


def _along_both(k: Function, down: Transform, across: Transform, square: Sequence[Sequence[Value]]) -> list[Line]:
    """A transform of the columns and one of the rows of values, given and returned as rows."""
    columns = [down(k, [row[j] for row in square]) for j in range(len(square[0]))]
    return [across(k, [column[i] for column in columns]) for i in range(len(columns[0]))]


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
