"""Dimensions that no polynomial describes, by sympy: remainders, quotients of symbols, comparisons that are left open.

Sympy takes 0.2 s to import and milliseconds for an answer: `dims` asks here last, and once for each question.
"""

from __future__ import annotations

from typing import Any, Literal

import onnx_ir as ir

from sardonyx.ops.framework import polynomial_text
from sardonyx.ops.framework.facts import Dim
from sardonyx.ops.framework.polynomial import Atom, Polynomial

Operation = Literal["add", "subtract", "multiply", "floor_divide", "modulo", "minimum", "maximum"]


def compute(operation: Operation, a: Dim, b: Dim) -> Dim:
    """An operation on dimensions, simplified as if symbols were at least 1."""
    import sympy

    x, y = _expression(a), _expression(b)
    match operation:
        case "add":
            found = x + y
        case "subtract":
            found = x - y
        case "multiply":
            found = sympy.expand_mul(x * y)
        case "floor_divide":
            quotient = sympy.cancel(x / y)
            found = quotient if quotient.is_integer else sympy.floor(quotient)
        case "modulo":
            found = sympy.Mod(x, y)
        case "minimum":
            found = sympy.Min(x, y)
        case "maximum":
            found = sympy.Max(x, y)
    return int(found) if found.is_Integer else ir.SymbolicDim(found)


def sign(a: Dim, b: Dim) -> int | None:
    """The sign of a - b where it does not depend on the symbols, which may be 0."""
    difference = _difference(a, b)
    if difference.is_zero:
        return 0
    if difference.is_positive:
        return 1
    return -1 if difference.is_negative else None


def at_least(a: Dim, b: Dim) -> bool:
    """Whether a >= b is certain, over symbols that may be 0."""
    return bool(_difference(a, b).is_nonnegative)


def _expression(dim: Dim) -> Any:
    """The expression of sympy that a dimension is."""
    if isinstance(dim, int):
        import sympy

        return sympy.Integer(dim)
    form = None if dim.value is None else polynomial_text.read(dim.value)
    # onnx-ir reads "-n**2" as the square of -n.
    return dim._expr if form is None else _of_polynomial(form)


def _of_polynomial(form: Polynomial) -> Any:
    import sympy

    terms = []
    for monomial, coefficient in form.terms:
        factors = [_of_atom(one) ** exponent for one, exponent in monomial]
        terms.append(sympy.Mul(sympy.Rational(coefficient, form.divisor), *factors))
    return sympy.Add(*terms)


def _of_atom(one: Atom) -> Any:
    import sympy

    if isinstance(one, str):
        return sympy.Symbol(one, integer=True, positive=True)
    return getattr(sympy, one.name)(*map(_of_polynomial, one.arguments))


def _difference(a: Dim, b: Dim) -> Any:
    """a - b over symbols that may be 0: an empty batch is legal."""
    import sympy

    difference = _expression(a) - _expression(b)
    plain = {symbol: sympy.Symbol(symbol.name, integer=True, nonnegative=True) for symbol in difference.free_symbols}
    return difference.xreplace(plain)
