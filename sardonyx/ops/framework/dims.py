"""Arithmetic of dimensions: numbers stay numbers, expressions of the same terms stay equal.

Computer algebra is slow, and shape arithmetic repeats itself all over a model: each operation on the same two
dimensions is worked out once per process. Expressions are simplified as if symbols were at least 1; `at_least` and
`compare`, which decide between two expressions, take into account that a size may be 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.ops.framework.facts import Dim, known, unknown_dim

_CACHED = 65536


def add(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if b == 0:
        return a
    if a == 0:
        return b
    return _both(_add, a, b)


def subtract(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    if b == 0:
        return a
    return _both(_subtract, a, b)


def multiply(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 1 or b == 0:
        return b
    if b == 1 or a == 0:
        return a
    return _both(_multiply, a, b)


def floor_divide(a: Dim, b: Dim) -> Dim:
    """The quotient rounded down; unknown for a divisor that is 0."""
    if isinstance(b, int) and b == 0:
        return unknown_dim()
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1 or a == 0:
        return a
    return _both(_floor_divide, a, b)


def ceil_divide(a: Dim, b: Dim) -> Dim:
    """The quotient rounded up, as a quotient rounded down."""
    return floor_divide(subtract(add(a, b), 1), b)


def modulo(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else unknown_dim()
    return _both(_modulo, a, b)


def minimum(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return _both(_minimum, a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return _both(_maximum, a, b)


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
    if isinstance(b, int) and (b < 0 or _is_name(a)) and not isinstance(a, int) and _never_negative(a._expr):
        return 1 if b < 0 else None
    if isinstance(a, int) and (a < 0 or _is_name(b)) and not isinstance(b, int) and _never_negative(b._expr):
        return -1 if a < 0 else None
    return _sign(a, b)


def at_least(a: Dim, b: Dim) -> bool:
    """Whether a >= b holds whatever sizes the symbols stand for, 0 included."""
    if isinstance(a, int) and isinstance(b, int):
        return a >= b
    if isinstance(b, int) and _is_name(a):
        return b <= 0
    if isinstance(a, int) and _is_name(b):
        return False
    if not known(a) or not known(b):
        return False
    return a == b or (b == 0 and not isinstance(a, int) and _never_negative(a._expr)) or _at_least(a, b)


def _never_negative(expression: Any) -> bool:
    """Whether an expression is put together from sizes without subtracting."""
    if expression.is_Symbol or expression.is_Integer:
        return bool(expression.is_Symbol or expression >= 0)
    return type(expression).__name__ in ("Add", "Mul", "Min", "Max") and all(map(_never_negative, expression.args))


def _is_name(dim: Dim) -> bool:
    """Whether a dimension is one symbol: the common case, for which algebra takes far too long."""
    return not isinstance(dim, int) and dim.value is not None and dim.value.isidentifier()


def evaluate(dim: Dim, symbols: Mapping[str, int]) -> int | None:
    """The number that a dimension is for given symbols; None where a symbol is missing."""
    if isinstance(dim, int):
        return dim
    if dim.value is None:
        return None
    if dim.value in symbols:
        return symbols[dim.value]
    found = dim.evaluate(symbols)
    return found if isinstance(found, int) else None


def free_symbols(dim: Dim) -> frozenset[str]:
    """The symbols that a dimension depends on."""
    if isinstance(dim, int) or dim.value is None:
        return frozenset()
    return frozenset({dim.value}) if dim.value.isidentifier() else dim.free_symbols()


def _both(operation: Callable[[Dim, Dim], Dim], a: Dim, b: Dim) -> Dim:
    return operation(a, b) if known(a) and known(b) else unknown_dim()


def _plain(expression: Any) -> Dim:
    """A dimension again from an algebraic expression."""
    if getattr(expression, "is_Integer", False):
        return int(expression)
    return ir.SymbolicDim(expression)


def _expression(dim: Dim) -> Any:
    return dim if isinstance(dim, int) else dim._expr


@functools.lru_cache(maxsize=_CACHED)
def _add(a: Dim, b: Dim) -> Dim:
    return _plain(_expression(a) + _expression(b))


@functools.lru_cache(maxsize=_CACHED)
def _subtract(a: Dim, b: Dim) -> Dim:
    return _plain(_expression(a) - _expression(b))


@functools.lru_cache(maxsize=_CACHED)
def _multiply(a: Dim, b: Dim) -> Dim:
    import sympy

    return _plain(sympy.expand_mul(_expression(a) * _expression(b)))


@functools.lru_cache(maxsize=_CACHED)
def _floor_divide(a: Dim, b: Dim) -> Dim:
    import sympy

    quotient = sympy.cancel(sympy.sympify(_expression(a)) / sympy.sympify(_expression(b)))
    return _plain(quotient if quotient.is_integer else sympy.floor(quotient))


@functools.lru_cache(maxsize=_CACHED)
def _modulo(a: Dim, b: Dim) -> Dim:
    import sympy

    return _plain(sympy.Mod(_expression(a), _expression(b)))


@functools.lru_cache(maxsize=_CACHED)
def _minimum(a: Dim, b: Dim) -> Dim:
    import sympy

    # A number above 1 and one symbol are as simple as they can be; finding that out loads a good part of sympy.
    simple = (isinstance(a, int) and a > 1 and _is_name(b)) or (isinstance(b, int) and b > 1 and _is_name(a))
    return _plain(sympy.Min(_expression(a), _expression(b), evaluate=not simple))


@functools.lru_cache(maxsize=_CACHED)
def _maximum(a: Dim, b: Dim) -> Dim:
    import sympy

    return _plain(sympy.Max(_expression(a), _expression(b)))


@functools.lru_cache(maxsize=_CACHED)
def _sign(a: Dim, b: Dim) -> int | None:
    difference = _difference(a, b)
    if difference.is_zero:
        return 0
    if difference.is_positive:
        return 1
    return -1 if difference.is_negative else None


@functools.lru_cache(maxsize=_CACHED)
def _at_least(a: Dim, b: Dim) -> bool:
    return bool(_difference(a, b).is_nonnegative)


def _difference(a: Dim, b: Dim) -> Any:
    """a - b over symbols that may be 0: an empty batch is legal."""
    import sympy

    difference = sympy.sympify(_expression(a)) - sympy.sympify(_expression(b))
    plain = {symbol: sympy.Symbol(symbol.name, integer=True, nonnegative=True) for symbol in difference.free_symbols}
    return difference.xreplace(plain)
