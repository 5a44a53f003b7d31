"""Tables of tokens that grow with what is generated."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def widened(tokens: Array, width: int, fill: int) -> Array:
    """A table of tokens (..., length) with `width` columns, those behind the tokens filled up."""
    wide = np.full((*tokens.shape[:-1], width), fill, np.int64)
    wide[..., : tokens.shape[-1]] = tokens
    return wide
