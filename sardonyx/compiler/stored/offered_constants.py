"""Constants of an engine for sessions that make the same of the same weights: see `constant_names`.

A session that began from an engine, and needs a plan which that has not, takes them in place of packing its weights
again. It is the engine's own: no other model's constants can come from there.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.stored.constant_names import Homes, constant_name
from sardonyx.runtime.dtype_names import dtype_called
from sardonyx.runtime.files.engine_file import Bytes

Array = np.ndarray[Any, Any]

# A constant's piece, the byte there at which it begins, and its dtype, shape and strides in bytes.
Place = tuple[int, int, str, Sequence[int], Sequence[int]]

_WORD = 8


def section_of(places: Mapping[str, Place]) -> list[Bytes]:
    """What an engine says of constants by their names, in bytes."""
    text = json.dumps(places).encode()
    return [np.frombuffer(text + b" " * (-len(text) % _WORD), np.uint8)]


class OfferedConstants:
    """The constants in `pieces` that the section `said` tells of; `homes` as of `constant_name`."""

    def __init__(self, said: Bytes, pieces: Sequence[Bytes], homes: Homes | None = None) -> None:
        self._places: Mapping[str, Place] = json.loads(said.tobytes())
        self._pieces, self._homes = pieces, homes

    def __call__(self, key: Hashable) -> Array | None:
        """The constant of this key; None where there is none."""
        name = constant_name(key, self._homes)
        found = None if name is None else self._places.get(name)
        if found is None:
            return None
        piece, start, dtype, shape, strides = found
        array: Array = np.ndarray(tuple(shape), dtype_called(dtype), self._pieces[piece], start, tuple(strides))
        array.flags.writeable = False
        return array
