"""Sizes that depend on symbols of the model, such as ``batch * (past + sequence)``.

A plan keeps them in this small form, so that it can be evaluated, stored and loaded without a computer algebra
package.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from sardonyx.light_dataclass import dataclass

OperationKind = Literal["add", "multiply", "floor_divide", "modulo", "maximum", "minimum", "power"]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A dimension that the caller's inputs decide."""

    name: str


@dataclass(frozen=True, slots=True)
class Operation:
    """A function of sizes; `floor_divide`, `modulo` and `power` take two, the others any number."""

    kind: OperationKind
    arguments: tuple[Size, ...]


Size = int | Symbol | Operation


def size_content(size: Size) -> Any:
    """A size as JSON: a number, the name of a symbol, or the kind of an operation before its arguments."""
    if isinstance(size, int):
        return size
    return size.name if isinstance(size, Symbol) else [size.kind, *map(size_content, size.arguments)]


def size_of_content(content: Any) -> Size:
    """The size that this content describes."""
    if isinstance(content, list):
        kind, *arguments = content
        return Operation(kind, tuple(map(size_of_content, arguments)))
    return Symbol(content) if isinstance(content, str) else int(content)


def symbols_in(size: Size) -> set[str]:
    """The names of the symbols that a size depends on."""
    if isinstance(size, int):
        return set()
    if isinstance(size, Symbol):
        return {size.name}
    return set().union(*map(symbols_in, size.arguments))


def evaluate(size: Size, symbols: Mapping[str, int]) -> int:
    """The number that `size` is for given symbols; KeyError for a symbol that is not given."""
    if isinstance(size, int):
        return size
    if isinstance(size, Symbol):
        return symbols[size.name]
    values = [evaluate(argument, symbols) for argument in size.arguments]
    if size.kind == "add":
        return sum(values)
    if size.kind == "multiply":
        return math.prod(values)
    if size.kind == "maximum":
        return max(values)
    if size.kind == "minimum":
        return min(values)
    first, second = values
    if size.kind == "floor_divide":
        return first // second
    return first % second if size.kind == "modulo" else int(first**second)
