"""Logits processors and stopping criteria that a caller passes: they are made for torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.models.arrays import as_numpy, as_tensor
from sardonyx.models.generation.processors import Processor, suppressed
from sardonyx.models.generation.stopping import Criterion
from sardonyx.models.requirements import installed

Array = np.ndarray[Any, Any]


def processor_of(given: Iterable[Callable[..., Any]] | None) -> Processor | None:
    """Such processors, one after the other, as one of ours; None where there are none.

    They take the tokens so far (rows, length) and the scores (rows, vocabulary), as tensors where torch is installed,
    else as arrays, and give the new scores.
    """
    each = _callables(given, "logits processor")
    if not each:
        return None
    parts: list[Processor] = []
    theirs: list[Callable[..., Any]] = []
    for one in each:
        own = _own(one)
        if own is None:
            theirs.append(one)
            continue
        if theirs:
            parts.append(_converted(theirs))
        theirs = []
        parts.append(own)
    if theirs:
        parts.append(_converted(theirs))
    if len(parts) == 1:
        return parts[0]

    def process(tokens: Array, scores: Array) -> None:
        for part in parts:
            part(tokens, scores)

    return process


def _own(given: Any) -> Processor | None:
    """One of ours that does what a processor of transformers does, None where it is of another class.

    Whisper's generation passes two of them in each call. transformers' look through the whole vocabulary for each
    token, which takes 0.7 ms and more.
    """
    theirs = sys.modules.get("transformers.generation.logits_process")
    if theirs is None:
        return None
    if type(given) is theirs.SuppressTokensLogitsProcessor:
        return suppressed(given.suppress_tokens.tolist())
    if type(given) is theirs.SuppressTokensAtBeginLogitsProcessor:
        return suppressed(given.begin_suppress_tokens.tolist(), given.begin_index)
    return None


def _converted(each: list[Callable[..., Any]]) -> Processor:
    """Processors of a caller as one of ours."""
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
    each = _callables(given, "stopping criterion")
    if not each:
        return None
    convert = _conversion()

    def ended(tokens: Array) -> Array:
        ids = convert(tokens)
        found = np.zeros(len(tokens), bool)
        for one in each:
            said = as_numpy(one(ids, None), "the answer of a stopping criterion").astype(bool)
            if said.shape not in ((), found.shape):
                raise errors.InvalidArgument(
                    f"A stopping criterion answered with shape {list(said.shape)} for {len(tokens)} rows: expected one "
                    "truth value, or one for each row"
                )
            found |= said
        return found

    return ended


def _callables(given: Any, what: str) -> list[Callable[..., Any]]:
    """The functions of a list; `errors.InvalidArgument` for what is none."""
    if given is None:
        return []
    each = list(given) if isinstance(given, Iterable) else []
    if not isinstance(given, Iterable) or not all(callable(one) for one in each):
        raise errors.InvalidArgument(f"Each {what} is a function, in a list of them, and not {given!r:.60}")
    return each


def _conversion() -> Callable[[Array], Any]:
    if not installed("torch"):
        return lambda array: array
    return lambda array: as_tensor(np.ascontiguousarray(array))
