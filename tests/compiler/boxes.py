"""The coordinates of the elements of a box, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.compiler.box import Box


def coordinates_of(box: Box) -> np.ndarray[Any, Any]:
    """Int64 (*sizes, axes of the value)."""
    places = np.indices(box.sizes)
    found = np.zeros((*box.sizes, len(box.begins)), np.int64) + box.begins
    for place, (axis, step) in enumerate(zip(box.along, box.steps, strict=True)):
        found[..., axis] += step * places[place]
    return found
