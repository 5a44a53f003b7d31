"""Memory of the constants that sessions make: cut from large pieces.

The system maps memory page by page, which takes longer than to fill it. For large pieces NumPy asks it for large pages,
so that a session of many constants waits for some dozens of them in place of tens of thousands.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

from sardonyx.runtime.arena_layout import ALIGNMENT

Array = np.ndarray[Any, Any]

_ALIGNMENT = 2 * ALIGNMENT
# Bytes of a piece, and of the arrays that are cut from one: larger ones are pieces of their own, and smaller ones find
# room between others.
PIECE = 8 << 20
LEAST, MOST = 32 << 10, 4 << 20


class _Cutting(threading.local):
    """The piece that a thread cuts arrays from, which lives as long as these do, and where the rest of it begins."""

    piece: weakref.ref[Array] | None = None
    used = 0


_CUTTING = _Cutting()


def constant_empty(count: int, dtype: np.dtype[Any]) -> Array:
    """An uninitialised vector whose first element lies at a multiple of two cache lines."""
    nbytes = count * dtype.itemsize
    if not LEAST <= nbytes < MOST:
        room = np.empty(nbytes + _ALIGNMENT, np.uint8)
        first = _first_aligned(room)
    else:
        held = None if _CUTTING.piece is None else _CUTTING.piece()
        if held is None or _CUTTING.used + nbytes > held.size:
            held = np.empty(PIECE, np.uint8)
            _CUTTING.piece, _CUTTING.used = weakref.ref(held), _first_aligned(held)
        room, first = held, _CUTTING.used
        _CUTTING.used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return room[first : first + nbytes].view(dtype)


def _first_aligned(room: Array) -> int:
    return -int(room.__array_interface__["data"][0]) % _ALIGNMENT
