"""Vectors in fewer bits: bytes by the range of each element, or one bit for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import errors

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")


def check_precision(precision: str) -> None:
    """`errors.InvalidArgument` for a precision that is none of `PRECISIONS`."""
    if precision not in PRECISIONS:
        raise errors.InvalidArgument(f"There is no precision {precision!r}; precisions are {', '.join(PRECISIONS)}")


def quantized(vectors: np.ndarray[Any, Any], precision: str) -> np.ndarray[Any, Any]:
    """Vectors (texts, size) in a precision; the ranges of bytes are those of the vectors given.

    Bits are packed eight in a byte, the first in its highest bit. `errors.InvalidArgument` for bytes of fewer than two
    vectors, which have no range.
    """
    if precision == "float32":
        return vectors
    if precision in ("binary", "ubinary"):
        packed = np.packbits(vectors > 0, axis=-1)
        return packed if precision == "ubinary" else (packed ^ 0x80).view(np.int8)
    if len(vectors) < 2:
        raise errors.InvalidArgument(
            f"The ranges of {precision} vectors are taken from all vectors of the call: give it two texts or more, "
            "better a hundred, or ask for the precision float32"
        )
    low = vectors.min(axis=0)
    step = (vectors.max(axis=0) - low) / np.float32(255)
    step[step == 0] = 1
    levels = np.clip(np.floor((vectors - low) / step), 0, 255)
    return np.asarray(levels.astype(np.uint8) if precision == "uint8" else (levels - 128).astype(np.int8))
