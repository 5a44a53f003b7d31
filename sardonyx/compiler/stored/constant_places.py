"""Where the words of plans hold addresses of constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sardonyx.compiler.binding import Array, Bound
from sardonyx.compiler.native_steps import BoundNode, BoundSegment
from sardonyx.compiler.stored.size_table import Words
from sardonyx.runtime.native_plan import NativePlan

# Numbers below it are sizes, even where a program is mapped there.
LEAST_ADDRESS = 1 << 32


class NotStorableError(Exception):
    """Why a plan cannot be kept for another process."""


class Places(NamedTuple):
    """Which words of a plan are addresses of constants, these addresses, and arrays in one of which each lies."""

    words: Words
    addresses: Words
    owners: Sequence[Array]


def constant_places(bound: Bound) -> list[tuple[int, Array, int]]:
    """Where the words of a bound plan hold addresses of constants: the word, the constant, the address."""
    found: list[tuple[int, Array, int]] = []
    steps = list(bound.steps)
    first = 0
    for step in map(steps.__getitem__, bound.order):
        for word, ref, offset in step.form.places:
            buffer, start = step.buffers[ref].settled()
            if buffer.kind == "constant":
                assert buffer.array is not None
                found.append((first + word, buffer.array, buffer.address + start + offset))
        first += len(step.form.words) // 8
    return found


def places_in(plan: NativePlan, source: BoundSegment | BoundNode) -> Places:
    """The same for the native plan of a source, without its steps where it was made without them: then constants lie in
    arrays that the plan, or its segment, keeps.

    NotStorableError where the plan does not follow its steps.
    """
    bound = source.bound
    held = (one.array for one in source.segment.held_constants()) if isinstance(source, BoundSegment) else ()
    if bound.constant_words is not None:
        owners = [*(one for one in plan.owners if isinstance(one, np.ndarray)), *held]
        return Places(bound.constant_words, plan.words[bound.constant_words], owners)
    found = constant_places(bound)
    words = np.array([word for word, _, _ in found], np.int64)
    addresses = np.array([address for _, _, address in found], np.int64)
    if words.size and (words.max() >= plan.words.size or (plan.words[words] != addresses).any()):
        raise NotStorableError("the plan does not follow its steps")
    return Places(words, addresses, [array for _, array, _ in found])


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name by which another process finds a dtype; NotStorableError for one without."""
    try:
        if np.dtype(dtype.name) == dtype:
            return dtype.name
    except TypeError:
        pass
    raise NotStorableError(f"a value has the type {dtype}")
