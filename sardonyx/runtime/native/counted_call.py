"""Runs native steps whose results have sizes that the data decide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.native.native_segment import NativeSegment

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class CountedCall:
    """Runs a counted kernel and gives what it wrote. `places` are those of the outputs that somebody wants."""

    segment: NativeSegment
    places: tuple[int, ...]
    axes: tuple[int | None, ...]
    outputs: int

    def __call__(self, context: RunContext, inputs: Sequence[Any]) -> list[Array | None]:
        untraced = context if context.trace is None else replace(context, trace=None)
        *rooms, count = self.segment(untraced, inputs)
        results: list[Array | None] = [None] * self.outputs
        for place, axis, room in zip(self.places, self.axes, rooms, strict=True):
            results[place] = room if axis is None else _written(room, axis, int(count[0]))
        return results


def _written(room: Array, axis: int, count: int) -> Array:
    """The part of a result that was written; by itself where it is but a small part, so as not to keep the rest."""
    shape = list(room.shape)
    shape[axis] = count
    part = room.reshape(-1)[: math.prod(shape)].reshape(shape)
    return part if 4 * part.size >= room.size else part.copy()
