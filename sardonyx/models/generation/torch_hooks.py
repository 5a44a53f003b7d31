"""Logits processors and stopping criteria that a caller passes: they are made for torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.models.arrays import as_numpy, as_tensor
from sardonyx.models.generation.processors import Processor
from sardonyx.models.generation.stopping import Criterion
from sardonyx.models.requirements import installed

Array = np.ndarray[Any, Any]


def processor_of(given: Iterable[Callable[..., Any]] | None) -> Processor | None:
    """Such processors, one after the other, as one of ours; None where there are none.

    They take the tokens so far (rows, length) and the scores (rows, vocabulary), as tensors where torch is installed,
    else as arrays, and give the new scores.
    """
    each = list(given or ())
    if not each:
        return None
    convert = _conversion()

    def process(tokens: Array, scores: Array) -> None:
        ids, values = convert(tokens), convert(scores)
        for one in each:
            values = one(ids, values)
        changed = as_numpy(values, "the scores of a logits processor")
        if changed.shape != scores.shape:
            raise errors.InvalidArgument(
                f"A logits processor gave scores of shape {list(changed.shape)} for those of {list(scores.shape)}"
            )
        if changed is not scores:
            scores[:] = changed

    return process


def criterion_of(given: Iterable[Callable[..., Any]] | None) -> Criterion | None:
    """Such criteria as one of ours; a row ends where any of them says so."""
    each = list(given or ())
    if not each:
        return None
    convert = _conversion()

    def ended(tokens: Array) -> Array:
        ids = convert(tokens)
        found = np.zeros(len(tokens), bool)
        for one in each:
            found |= as_numpy(one(ids, None), "the answer of a stopping criterion").astype(bool)
        return found

    return ended


def _conversion() -> Callable[[Array], Any]:
    if not installed("torch"):
        return lambda array: array
    return lambda array: as_tensor(np.ascontiguousarray(array))
