"""Plans of segments, compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Bound
from sardonyx.compiler.segment import Segment

Array = np.ndarray[Any, Any]


def bound_one_by_one(segment: Segment, *asked: Any) -> tuple[Bound, dict[int, Array]]:
    """What `Segment.bind` gives for what is `asked`, where every operation is bound for these sizes."""
    ordinary = replace(segment)
    ordinary._symbolic = None
    return ordinary.bind(*asked)


def assert_alike(found: Bound, wanted: Bound) -> None:
    """Two plans have the same steps over the same sizes, and the same words but for addresses."""
    words, expected = found.plan.words.copy(), wanted.plan.words.copy()
    first = 0
    for step in wanted.steps:
        for word, _, _ in step.form.places:
            words[first + word] = expected[first + word] = 0
        first += len(step.form.words) // 8
    np.testing.assert_array_equal(words, expected)
    np.testing.assert_array_equal(found.plan.steps[:, :4], wanted.plan.steps[:, :4])
    np.testing.assert_array_equal(found.plan.fixups[:, :2], wanted.plan.fixups[:, :2])
    assert found.outputs == wanted.outputs
    assert found.plan.scratch_bytes == wanted.plan.scratch_bytes
    assert found.plan.nanoseconds == wanted.plan.nanoseconds
