"""From the symbolic dimensions of inference to the sizes of a plan."""

from __future__ import annotations

import functools
from typing import Any

from sardonyx.ops.framework import polynomial_text
from sardonyx.ops.framework.facts import Dim
from sardonyx.ops.framework.polynomial import Atom, FunctionName, Polynomial
from sardonyx.runtime.sizes import Operation, OperationKind, Size, Symbol


@functools.lru_cache(maxsize=65536)
def size_of(dim: Dim) -> Size | None:
    """The size that a dimension states; None where nothing is known of it, or it is no integer expression."""
    if isinstance(dim, int):
        return dim
    if dim.value is None:
        return None
    form = polynomial_text.read(dim.value)
    if form is not None:
        return _of_polynomial(form)
    try:
        return _convert(dim._expr)
    except ValueError:
        return Symbol(dim.value)  # a name that is no expression, such as "encoder/length"


def _of_polynomial(form: Polynomial) -> Size:
    """The size of a polynomial, rounded down."""
    terms = [
        _of_term([_of_atom(one) for one, exponent in monomial for _ in range(exponent)], coefficient)
        for monomial, coefficient in form.terms
    ]
    total = _combined("add", terms, 0)
    return total if form.divisor == 1 else Operation("floor_divide", (total, form.divisor))


def _of_term(factors: list[Size], coefficient: int) -> Size:
    return _combined("multiply", factors if coefficient == 1 else [coefficient, *factors], 1)


def _combined(kind: OperationKind, sizes: list[Size], neutral: int) -> Size:
    if len(sizes) < 2:
        return sizes[0] if sizes else neutral
    return Operation(kind, tuple(sizes))


_KINDS: dict[FunctionName, OperationKind] = {"Min": "minimum", "Max": "maximum"}


def _of_atom(one: Atom) -> Size:
    if isinstance(one, str):
        return Symbol(one)
    arguments = tuple(map(_of_polynomial, one.arguments))
    return arguments[0] if one.name == "floor" else Operation(_KINDS[one.name], arguments)


def _convert(expression: Any) -> Size | None:
    import sympy

    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return Symbol(expression.name)
    if isinstance(expression, sympy.floor):
        numerator, denominator = sympy.fraction(sympy.together(expression.args[0]))
        return _operation("floor_divide", numerator, denominator)
    kinds: dict[Any, Any] = {
        sympy.Add: "add",
        sympy.Mul: "multiply",
        sympy.Max: "maximum",
        sympy.Min: "minimum",
        sympy.Mod: "modulo",
        sympy.Pow: "power",
    }
    kind = kinds.get(expression.func)
    return None if kind is None else _operation(kind, *expression.args)


def _operation(kind: Any, *arguments: Any) -> Size | None:
    sizes = [_convert(argument) for argument in arguments]
    known = [size for size in sizes if size is not None]
    return Operation(kind, tuple(known)) if len(known) == len(sizes) else None
