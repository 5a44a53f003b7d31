"""From the symbolic dimensions of inference to the sizes of a plan."""

from __future__ import annotations

import functools
from typing import Any

from sardonyx.ops.framework.facts import Dim
from sardonyx.runtime.sizes import Operation, Size, Symbol


@functools.lru_cache(maxsize=65536)
def size_of(dim: Dim) -> Size | None:
    """The size that a dimension states; None where nothing is known of it, or it is no integer expression."""
    if isinstance(dim, int):
        return dim
    if dim.value is None:
        return None
    if dim.value.isidentifier():
        return Symbol(dim.value)
    try:
        return _convert(dim._expr)
    except ValueError:
        return Symbol(dim.value)  # a name that is no expression, such as "encoder/length"


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
