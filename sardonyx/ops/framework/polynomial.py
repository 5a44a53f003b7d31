"""Dimensions as polynomials: the algebra that shapes of models need, without a computer algebra package.

A dimension is a sum of products of symbols and of roundings, minima and maxima of other such sums, over a common
divisor: ``(2*height + 3) / 4``. Every sum has one form (like terms joined, products multiplied out, no common factor
with the divisor, terms in the order in which sympy writes them), so that equal forms are equal sums, and the text of a
form is the text that sympy gives, with which it mixes. What has no such form is left to sympy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from sardonyx.light_dataclass import dataclass

FunctionName = Literal["floor", "Min", "Max"]


@dataclass(frozen=True, slots=True)
class Function:
    """A whole number: one polynomial rounded down, or the least or greatest of several."""

    name: FunctionName
    arguments: tuple[Polynomial, ...]


Atom = str | Function  # a symbol or a function

# Atoms with their exponents, in the order of `_atom_key`; empty for the number 1.
Monomial = tuple[tuple[Atom, int], ...]


@dataclass(frozen=True, slots=True)
class Polynomial:
    """Terms, each with its coefficient, over a divisor of at least 1; no terms for 0."""

    terms: tuple[tuple[Monomial, int], ...]
    divisor: int = 1

    @property
    def number(self) -> int | None:
        """The whole number that this is, if it is one."""
        if not self.terms:
            return 0
        (monomial, coefficient), *others = self.terms
        return None if others or monomial or self.divisor != 1 else coefficient


def constant(number: int) -> Polynomial:
    return Polynomial((((), number),) if number else ())


def atom(one: Atom) -> Polynomial:
    return Polynomial(((((one, 1),), 1),))


def joined(terms: Iterable[tuple[Monomial, int]], divisor: int = 1) -> Polynomial:
    """The polynomial of these terms, of which some may be alike."""
    sums: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        sums[monomial] = sums.get(monomial, 0) + coefficient
    common = math.gcd(divisor, *sums.values())
    return Polynomial(
        tuple(_ordered({monomial: coefficient // common for monomial, coefficient in sums.items() if coefficient})),
        divisor // common,
    )


def add(a: Polynomial, b: Polynomial) -> Polynomial:
    divisor = math.lcm(a.divisor, b.divisor)
    return joined(
        ((monomial, coefficient * (divisor // one.divisor)) for one in (a, b) for monomial, coefficient in one.terms),
        divisor,
    )


def scale(a: Polynomial, factor: int, divisor: int = 1) -> Polynomial:
    """a * factor / divisor, the divisor being at least 1."""
    return joined(((monomial, coefficient * factor) for monomial, coefficient in a.terms), a.divisor * divisor)


def subtract(a: Polynomial, b: Polynomial) -> Polynomial:
    return add(a, scale(b, -1))


def multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    return joined(
        ((_product(left, right), first * second) for left, first in a.terms for right, second in b.terms),
        a.divisor * b.divisor,
    )


def floor(a: Polynomial) -> Polynomial:
    """`a` rounded down: terms that are whole numbers whatever their atoms are stand outside."""
    whole = [(monomial, coefficient // a.divisor) for monomial, coefficient in a.terms if not coefficient % a.divisor]
    rest = joined(((monomial, coefficient) for monomial, coefficient in a.terms if coefficient % a.divisor), a.divisor)
    if all(not monomial for monomial, _ in rest.terms):
        whole += [((), coefficient // rest.divisor) for _, coefficient in rest.terms]
    else:
        whole.append((((Function("floor", (rest,)), 1),), 1))
    return joined(whole)


def divide(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """a / b, where that is a polynomial over a number; None for others, and for a divisor of 0.

    Division of polynomials in many variables by their leading terms (Cox, Little, O'Shea: Ideals, Varieties, and
    Algorithms, 2.3).
    """
    if not b.terms:
        return None
    atoms = _atoms_of((a, b))

    def rank(term: tuple[Monomial, int]) -> tuple[int, ...]:
        return _lexical(term[0], atoms)

    leading, below = max(b.terms, key=rank)
    quotient, rest = constant(0), a
    while rest.terms:
        monomial, above = max(rest.terms, key=rank)
        shared = _quotient(monomial, leading)
        if shared is None:
            return None
        number = above * b.divisor if below > 0 else -above * b.divisor
        part = joined([(shared, number)], rest.divisor * abs(below))
        quotient, rest = add(quotient, part), subtract(rest, multiply(part, b))
    return quotient


def extreme(name: Literal["Min", "Max"], *choices: Polynomial) -> Polynomial:
    """The least or the greatest of polynomials of which none is known to be that."""
    return atom(Function(name, tuple(sorted(choices, key=_key))))


def functions(a: Polynomial) -> Iterator[Function]:
    """The functions that a polynomial is made of."""
    for monomial, _ in a.terms:
        for one, _ in monomial:
            if isinstance(one, Function):
                yield one
                for argument in one.arguments:
                    yield from functions(argument)


@functools.lru_cache(maxsize=4096)
def symbols(a: Polynomial) -> frozenset[str]:
    """The symbols that a polynomial depends on."""
    found: set[str] = set()
    for monomial, _ in a.terms:
        for one, _ in monomial:
            found |= {one} if isinstance(one, str) else set().union(*map(symbols, one.arguments))
    return frozenset(found)


def evaluate(a: Polynomial, sizes: Mapping[str, int]) -> int:
    """The number that a polynomial is, rounded down; KeyError for a symbol that is not given."""
    total = 0
    for monomial, coefficient in a.terms:
        for one, exponent in monomial:
            coefficient *= (sizes[one] if isinstance(one, str) else _evaluate_function(one, sizes)) ** exponent
        total += coefficient
    return total // a.divisor


def _evaluate_function(function: Function, sizes: Mapping[str, int]) -> int:
    values = [evaluate(argument, sizes) for argument in function.arguments]
    return max(values) if function.name == "Max" else min(values)


def _product(a: Monomial, b: Monomial) -> Monomial:
    exponents = dict(a)
    for one, exponent in b:
        exponents[one] = exponents.get(one, 0) + exponent
    return tuple(sorted(exponents.items(), key=lambda item: _atom_key(item[0])))


def _quotient(a: Monomial, b: Monomial) -> Monomial | None:
    """a / b, where `b` divides `a`."""
    exponents = dict(a)
    for one, exponent in b:
        left = exponents.pop(one, 0) - exponent
        if left < 0:
            return None
        if left:
            exponents[one] = left
    return tuple(sorted(exponents.items(), key=lambda item: _atom_key(item[0])))


# The order in which sympy writes terms and factors: numbers, symbols by name, products, sums, roundings, extremes.
# A key is the rank of the kind, the parts, the exponent, the coefficient.
Number = tuple[int, float]  # the whole part of a coefficient, and the fraction above it
_ONE: Number = (1, 0.0)
_NUMBER, _SYMBOL, _PRODUCT, _SUM = (1, 0, ""), (2, 0, ""), (3, 0, ""), (3, 1, "")


@functools.lru_cache(maxsize=4096)
def _atom_key(one: Atom, exponent: int = 1, coefficient: Number = _ONE) -> Any:
    if isinstance(one, str):
        return _SYMBOL, (1, (one,)), exponent, coefficient
    kind = (4, 0, one.name) if one.name == "floor" else (5, 0, one.name)
    return kind, (len(one.arguments), tuple(map(_key, one.arguments))), exponent, coefficient


def _term_key(monomial: Monomial, coefficient: Number) -> Any:
    if not monomial:
        return _NUMBER, (0, ()), 1, coefficient
    if len(monomial) == 1:
        return _atom_key(*monomial[0], coefficient)
    return _PRODUCT, (len(monomial), tuple(_atom_key(*factor) for factor in monomial)), 1, coefficient


@functools.lru_cache(maxsize=4096)
def _key(a: Polynomial) -> Any:
    keys = [
        _term_key(monomial, (coefficient // a.divisor, coefficient % a.divisor / a.divisor))
        for monomial, coefficient in a.terms
    ]
    if not keys:
        return _term_key((), (0, 0.0))
    return keys[0] if len(keys) == 1 else (_SUM, (len(keys), tuple(keys)), 1, _ONE)


def _atoms_of(polynomials: Iterable[Polynomial]) -> list[Atom]:
    """The atoms of terms, in order."""
    return sorted({one for a in polynomials for monomial, _ in a.terms for one, _ in monomial}, key=_atom_key)


def _lexical(monomial: Monomial, atoms: Iterable[Atom]) -> tuple[int, ...]:
    exponents = dict(monomial)
    return tuple(exponents.get(one, 0) for one in atoms)


def _ordered(terms: Mapping[Monomial, int]) -> list[tuple[Monomial, int]]:
    """Terms by falling powers of the first atom, then of the second…; ``2 - n`` begins with the number."""
    if len(terms) < 2:
        return list(terms.items())
    atoms = sorted({one for monomial in terms for one, _ in monomial}, key=_atom_key)
    found = sorted(terms.items(), key=lambda term: _lexical(term[0], atoms), reverse=True)
    if len(found) == 2 and len(found[0][0]) == 1 and found[0][1] < 0 and not found[1][0] and found[1][1] > 0:
        return found[::-1]
    return found
