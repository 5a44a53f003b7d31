"""What sizes are at most, as far as a model itself shows: what broadcasts tells.

A mask that is cut out of a table of 1024 rows has Min(1024, size) columns. What it broadcasts to has `size` of them;
where these were more than 1024, the run would fail. So `size` is at most 1024 in every run that does not fail, and
Min(1024, size) is `size` wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_ir as ir

from sardonyx.ops.framework import dims, polynomial_text
from sardonyx.ops.framework.facts import Dim, Dims, Fact, same
from sardonyx.ops.framework.polynomial import Function, Polynomial

_LEAST = "Min("
_OPERATIONS: dict[str, Callable[[Dim, Dim], Dim]] = {"Min": dims.minimum, "Max": dims.maximum}


class SizeLimits:
    """Sizes with the numbers that they are at most in every run that does not fail."""

    def __init__(self) -> None:
        self._most: dict[Dim, int] = {}
        self._known: dict[str, Dim] = {}  # dimensions as they were and as they are below these limits

    def __bool__(self) -> bool:
        return bool(self._most)

    def learn(self, shapes: Sequence[Dims]) -> None:
        """Take in what follows from shapes that broadcast against each other."""
        for axis in range(-max((len(shape) for shape in shapes), default=0), 0):
            given = [shape[axis] for shape in shapes if len(shape) >= -axis]
            for one in given:
                limit, size = _limited(one)
                # A table of one row would broadcast.
                if limit > 1 and any(same(size, other) for other in given) and self._most.get(size, limit + 1) > limit:
                    self._most[size] = limit
                    self._known.clear()

    def within(self, fact: Fact) -> Fact:
        """The fact with plainer dimensions and contents."""
        shape = None if fact.shape is None else tuple(map(self._plain, fact.shape))
        elements = None if fact.elements is None else tuple(map(self._plain, fact.elements))
        return replace(fact, shape=shape, elements=elements)

    def _plain(self, dim: Dim) -> Dim:
        if isinstance(dim, int) or dim.value is None or _LEAST not in dim.value:
            return dim
        found = self._known.get(dim.value)
        if found is None:
            form = polynomial_text.read(dim.value)
            found = self._known[dim.value] = dim if form is None else self._sum(form)
        return found

    def _sum(self, form: Polynomial) -> Dim:
        """A polynomial made anew of what its functions come to."""
        result: Dim = 0
        for monomial, coefficient in form.terms:
            term: Dim = coefficient
            for one, exponent in monomial:
                value = ir.SymbolicDim(one) if isinstance(one, str) else self._function(one)
                for _ in range(exponent):
                    term = dims.multiply(term, value)
            result = dims.add(result, term)
        return dims.floor_divide(result, form.divisor)  # inside of a floor alone, others being whole

    def _function(self, function: Function) -> Dim:
        first, *others = map(self._sum, function.arguments)
        if function.name == "floor":
            return first
        for other in others:
            first = _OPERATIONS[function.name](first, other)
        limit, size = _limited(first)
        below = any(most <= limit and dims.at_least(larger, size) for larger, most in self._most.items())
        return size if below else first


def _limited(dim: Dim) -> tuple[int, Dim]:
    """The number and the size of which a dimension is the least; 0 for other dimensions."""
    found = None if isinstance(dim, int) or dim.value is None or _LEAST not in dim.value else _function_of(dim.value)
    if found is None or found.name != "Min" or len(found.arguments) != 2:
        return 0, 0
    for limit, size in (found.arguments, found.arguments[::-1]):
        if limit.number is not None:
            return limit.number, ir.SymbolicDim(polynomial_text.write(size))
    return 0, 0


def _function_of(text: str) -> Function | None:
    """The function that a dimension is."""
    form = polynomial_text.read(text)
    if form is None or form.divisor != 1 or len(form.terms) != 1:
        return None
    monomial, coefficient = form.terms[0]
    if coefficient != 1 or len(monomial) != 1 or monomial[0][1] != 1:
        return None
    return monomial[0][0] if isinstance(monomial[0][0], Function) else None
