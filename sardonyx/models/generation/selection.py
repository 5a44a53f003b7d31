"""The largest of many numbers, found without sorting them all."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import errors

Array = np.ndarray[Any, Any]

# The numbers are looked at as so many rows, whose maxima by column bound the one that is wanted.
_ROWS = 64


def at_least_the(count: int, values: Array) -> Array:
    """The places, in order, of all numbers that are no smaller than the `count`-th largest: more where some are equal.

    `values` has one dimension. NaN is larger than any number, as NumPy sorts it.
    """
    size = len(values)
    if count >= size:
        return np.arange(size)
    columns = size // _ROWS
    if columns > count:
        # `count` columns have a number that is at least this, so that the wanted one is, too.
        maxima = values[: columns * _ROWS].reshape(_ROWS, columns).max(axis=0)
        bound = np.partition(maxima, columns - count)[columns - count]
        places = np.flatnonzero(~(values < bound))
    else:
        places = np.arange(size)
    found = values[places]
    least = np.partition(found, len(found) - count)[len(found) - count]
    wanted: Array = places[~(found < least)]
    return wanted


def largest(count: int, values: Array) -> Array:
    """The places of the `count` largest numbers, the largest first, of equal ones the first."""
    places = at_least_the(count, values)
    return places[np.argsort(-values[places], kind="stable")[:count]]


def best(scores: Array) -> Array:
    """The place of the largest number of each row; `errors.Fail` for a row with NaN."""
    found: Array = scores.argmax(axis=1)
    for row, place in enumerate(found.tolist()):
        if np.isnan(scores[row, place]):  # which `argmax` takes for the largest
            raise no_number()
    return found


def no_number() -> errors.Fail:
    """The error where the scores of tokens are no numbers."""
    return errors.Fail(
        "No token can be chosen: the model gives NaN. It may be float16 beyond its range; `remove_invalid_values=True` "
        "takes 0 for NaN"
    )
