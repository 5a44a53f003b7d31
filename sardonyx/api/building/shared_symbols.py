"""Dimensions of inputs that share a name, and what happens to runs in which their sizes differ.

A model may call dimensions of several inputs by one name, or by an expression over such names. Rewrites, fusion and
plans take them for equal then, but nothing in ONNX forbids a caller to give them different sizes, and onnxruntime runs
such a model by the sizes that come. So a session looks whether the sizes of a run agree, and has a second compiled
model for runs in which they do not: one in which every dimension of an input is a symbol of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.sizes import Operation, Size, evaluate, symbols_in

Place = tuple[int, int]  # an input's number, and an axis of it


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Sizes of a run that cannot all be what the model says."""

    symbol: str  # a name, or an expression over names
    first: str
    second: str

    def __str__(self) -> str:
        return f"the dimension '{self.symbol}' is {self.first} and {self.second}"


class SharedSymbols:
    """The symbols that stand at two or more places of a model's inputs, and expressions over symbols."""

    def __init__(self, inputs: Sequence[tuple[str, Sequence[int | str | None]]]) -> None:
        """`inputs` are names and declared dimensions in the order in which a run has its values."""
        places: dict[str, list[Place]] = {}
        for number, (_, dims) in enumerate(inputs):
            for axis, dim in enumerate(dims):
                if isinstance(dim, str) and dim:
                    places.setdefault(dim, []).append((number, axis))
        self._names = [name for name, _ in inputs]
        self._shared = {text: found for text, found in places.items() if len(found) > 1}
        self._derived: list[tuple[str, Operation, Place, dict[str, Place]]] = []
        for text, found in places.items():
            size = _expression(text)
            used = symbols_in(size) if isinstance(size, Operation) else set()
            if isinstance(size, Operation) and all(name in places for name in used):
                self._derived.append((text, size, found[0], {name: places[name][0] for name in used}))

    def contradiction(self, values: Sequence[Any]) -> Contradiction | None:
        """The first contradiction among the sizes of these values of the inputs; None where they agree."""
        for text, places in self._shared.items():
            first: tuple[Place, int] | None = None
            for place in places:
                size = _size(values, place)
                if first is None:
                    first = None if size is None else (place, size)
                elif size is not None and size != first[1]:
                    return Contradiction(text, self._shown(*first), self._shown(place, size))
        for text, expression, place, used in self._derived:
            size = _size(values, place)
            known = {name: found for name, one in used.items() if (found := _size(values, one)) is not None}
            if size is not None and len(known) == len(used) and evaluate(expression, known) != size:
                given = ", ".join(f"'{name}' {number}" for name, number in known.items())
                return Contradiction(text, self._shown(place, size), f"{evaluate(expression, known)} by {given}")
        return None

    def _shown(self, place: Place, size: int) -> str:
        number, axis = place
        return f"{size} in axis {axis} of input '{self._names[number]}'"


def _expression(text: str) -> Size | None:
    """What the name of a dimension says; None for a plain name."""
    if text.isidentifier():
        return None
    from sardonyx.compiler.sizes import size_of  # with the algebra of symbols, which plain names do not need
    from sardonyx.ops.framework.facts import symbol

    return size_of(symbol(text))


def _size(values: Sequence[Any], place: Place) -> int | None:
    """The size at a place; None where the value has no such axis."""
    value, axis = values[place[0]], place[1]
    if not isinstance(value, np.ndarray) or axis >= value.ndim:
        return None
    return int(value.shape[axis])
