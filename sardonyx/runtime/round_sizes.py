"""How large what a round of a loop gives is where no round comes: as far as the inputs of the loop tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sardonyx.runtime.sizes import Size, evaluate

# How many elements an input has, at most, that can stand for sizes.
MOST_ELEMENTS = 64


class Origin(NamedTuple):
    """Where a run finds the number that a symbol stands for: the size of `axis` of a value, or, if `axis` is -1, what
    the value holds at the place `element`.

    The value is the input `place` of the loop, or of the outer values that its body reads, where it `is_captured`.
    """

    symbol: str
    is_captured: bool
    place: int
    axis: int
    element: int


def shape_of(
    sizes: Sequence[Size], origins: Sequence[Origin], inputs: Sequence[Any], captures: Sequence[Any]
) -> tuple[int, ...]:
    """The shape that these sizes are in a run; 0 for a size that the run does not tell."""
    symbols: dict[str, int] = {}
    for origin in origins:
        value = (captures if origin.is_captured else inputs)[origin.place]
        found = _number(value, origin)
        if found is not None:
            symbols[origin.symbol] = found
    return tuple([_size(size, symbols) for size in sizes])


def _number(value: Any, origin: Origin) -> int | None:
    if not isinstance(value, np.ndarray):
        return None
    if origin.axis >= 0:
        return value.shape[origin.axis] if origin.axis < value.ndim else None
    return int(value.reshape(-1)[origin.element]) if origin.element < value.size else None


def _size(size: Size, symbols: dict[str, int]) -> int:
    try:
        return max(0, evaluate(size, symbols))
    except (KeyError, ZeroDivisionError):
        return 0
