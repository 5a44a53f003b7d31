"""Arithmetic of dimensions: numbers stay numbers, expressions of the same terms stay equal.

Nearly all dimensions of models are polynomials (`polynomial`); what is none is left to sympy (`computer_algebra`),
which writes them alike. Shape arithmetic repeats itself all over a model: each operation on the same two dimensions is
worked out once per process. Expressions are simplified as if symbols were at least 1; `at_least` and `compare`, which
decide between two expressions, take into account that a size may be 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import onnx_ir as ir

from sardonyx.ops.framework import computer_algebra, polynomial, polynomial_text
from sardonyx.ops.framework.computer_algebra import Operation
from sardonyx.ops.framework.facts import Dim, known, unknown_dim
from sardonyx.ops.framework.polynomial import Polynomial
from sardonyx.ops.framework.polynomial_bounds import certain_signs, possible_signs

_CACHED = 65536


def add(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if b == 0:
        return a
    if a == 0:
        return b
    return _both("add", a, b)


def subtract(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    if b == 0:
        return a
    return _both("subtract", a, b)


def multiply(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 1 or b == 0:
        return b
    if b == 1 or a == 0:
        return a
    return _both("multiply", a, b)


def floor_divide(a: Dim, b: Dim) -> Dim:
    """The quotient rounded down; unknown for a divisor that is 0."""
    if isinstance(b, int) and b == 0:
        return unknown_dim()
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1 or a == 0:
        return a
    return _both("floor_divide", a, b)


def ceil_divide(a: Dim, b: Dim) -> Dim:
    """The quotient rounded up, as a quotient rounded down."""
    return floor_divide(subtract(add(a, b), 1), b)


def modulo(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else unknown_dim()
    return _both("modulo", a, b)


def minimum(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return _both("minimum", a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return _both("maximum", a, b)


def negative(a: Dim) -> Dim:
    return multiply(a, -1)


def total(dims: Iterable[Dim]) -> Dim:
    """The sum of dimensions."""
    result: Dim = 0
    for dim in dims:
        result = add(result, dim)
    return result


def product(dims: Iterable[Dim]) -> Dim:
    """The product of dimensions; 0 where one of them is 0, whatever the others are."""
    given = list(dims)
    if any(dim == 0 for dim in given):
        return 0
    result: Dim = math.prod(dim for dim in given if isinstance(dim, int))
    for dim in given:
        if not isinstance(dim, int):
            result = multiply(result, dim)
    return result


def divide_out(dims: Sequence[Dim], others: Sequence[Dim]) -> Dim | None:
    """The product of `dims` over the product of `others`; None where numbers do not divide, unknown as for others.

    Equal dimensions cancel first, so that the common case (a reshape that splits or joins axes) needs no algebra.
    """
    above = list(dims)
    below = []
    for dim in others:
        if known(dim) and dim in above:
            above.remove(dim)
        else:
            below.append(dim)
    numerator, denominator = product(above), product(below)
    if denominator == 1:
        return numerator
    if isinstance(numerator, int) and isinstance(denominator, int):
        return numerator // denominator if denominator and numerator % denominator == 0 else None
    return floor_divide(numerator, denominator)


def compare(a: Dim, b: Dim) -> int | None:
    """The sign of a - b where it does not depend on the symbols, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return (a > b) - (a < b)
    if not known(a) or not known(b):
        return None
    if a == b:
        return 0
    return _sign(a, b)


def at_least(a: Dim, b: Dim) -> bool:
    """Whether a >= b holds whatever sizes the symbols stand for, 0 included."""
    if isinstance(a, int) and isinstance(b, int):
        return a >= b
    if not known(a) or not known(b):
        return False
    return a == b or _at_least(a, b)


def evaluate(dim: Dim, symbols: Mapping[str, int]) -> int | None:
    """The number that a dimension is for given symbols; None where a symbol is missing."""
    if isinstance(dim, int):
        return dim
    if dim.value is None:
        return None
    if dim.value in symbols:
        return symbols[dim.value]
    form = polynomial_text.read(dim.value)
    if form is not None:
        return polynomial.evaluate(form, symbols) if polynomial.symbols(form) <= symbols.keys() else None
    found = dim.evaluate(symbols)
    return found if isinstance(found, int) else None


def free_symbols(dim: Dim) -> frozenset[str]:
    """The symbols that a dimension depends on."""
    if isinstance(dim, int) or dim.value is None:
        return frozenset()
    form = polynomial_text.read(dim.value)
    return polynomial.symbols(form) if form is not None else dim.free_symbols()


def form_of(dim: Dim) -> Polynomial | None:
    """The polynomial that a dimension is; None for one that is no polynomial, or unknown."""
    if isinstance(dim, int):
        return polynomial.constant(dim)
    form = None if dim.value is None else polynomial_text.read(dim.value)
    return form if form is None or form.divisor == 1 else None


def _dim(form: Polynomial) -> Dim:
    number = form.number
    return ir.SymbolicDim(polynomial_text.write(form)) if number is None else number


def _both(operation: Operation, a: Dim, b: Dim) -> Dim:
    return _computed(operation, a, b) if known(a) and known(b) else unknown_dim()


@functools.lru_cache(maxsize=_CACHED)
def _computed(operation: Operation, a: Dim, b: Dim) -> Dim:
    left, right = form_of(a), form_of(b)
    form = None if left is None or right is None else _combined(operation, left, right)
    if form is None:
        found = computer_algebra.compute(operation, a, b)
        form = form_of(found)  # what cancelled out may leave a polynomial, written as all others are
    return found if form is None else _dim(form)


def _combined(operation: Operation, a: Polynomial, b: Polynomial) -> Polynomial | None:
    """An operation on polynomials; None where its result is none, or not the one that sympy would find."""
    match operation:
        case "add":
            return polynomial.add(a, b)
        case "subtract":
            return polynomial.subtract(a, b)
        case "multiply":
            return polynomial.multiply(a, b)
        case "floor_divide":
            quotient = polynomial.divide(a, b)
            return None if quotient is None else polynomial.floor(quotient)
        case "minimum":
            return _extreme("Min", a, b)
        case "maximum":
            return _extreme("Max", a, b)
        case "modulo":
            return None


def _extreme(name: Literal["Min", "Max"], a: Polynomial, b: Polynomial) -> Polynomial | None:
    """The least or greatest of two; None where it cannot be told whether one of them always is."""
    difference = polynomial.subtract(a, b)
    possible = possible_signs(difference, 1)
    if 1 not in possible:
        return a if name == "Min" else b
    if -1 not in possible:
        return b if name == "Min" else a
    nested = any(function.name != "floor" for one in (a, b) for function in polynomial.functions(one))
    if nested or not {-1, 1} <= certain_signs(difference, 1):
        return None
    return polynomial.extreme(name, a, b)


@functools.lru_cache(maxsize=_CACHED)
def _sign(a: Dim, b: Dim) -> int | None:
    left, right = form_of(a), form_of(b)
    if left is not None and right is not None:
        difference = polynomial.subtract(left, right)
        possible = possible_signs(difference, 0)
        if len(possible) == 1:
            return min(possible)
        if len(certain_signs(difference, 0)) > 1:
            return None
    return computer_algebra.sign(a, b)


@functools.lru_cache(maxsize=_CACHED)
def _at_least(a: Dim, b: Dim) -> bool:
    left, right = form_of(a), form_of(b)
    if left is not None and right is not None:
        difference = polynomial.subtract(left, right)
        if -1 not in possible_signs(difference, 0):
            return True
        if -1 in certain_signs(difference, 0):
            return False
    return computer_algebra.at_least(a, b)
