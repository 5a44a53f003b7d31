"""How alike vectors are: the measures of sentence-transformers."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.models.sentences.layers import normalised

MEASURES = ("cosine", "dot", "euclidean", "manhattan")


def similarity(
    first: np.ndarray[Any, Any], second: np.ndarray[Any, Any], measure: str = "cosine"
) -> np.ndarray[Any, Any]:
    """An array (n, m) for vectors (n, size) and (m, size), or single ones; distances are negative."""
    a, b = (_vectors(one) for one in (first, second))
    if a.shape[-1] != b.shape[-1]:
        raise errors.InvalidArgument(f"Vectors of {a.shape[-1]} and {b.shape[-1]} elements cannot be compared")
    if measure == "cosine":
        return np.asarray(normalised(a) @ normalised(b).T)
    if measure == "dot":
        return np.asarray(a @ b.T)
    if measure == "euclidean":
        squares = np.square(a).sum(1)[:, None] + np.square(b).sum(1)[None] - 2 * (a @ b.T)
        return np.asarray(-np.sqrt(np.maximum(squares, 0)))
    if measure == "manhattan":
        return -np.stack([np.abs(row - b).sum(1) for row in a])
    raise errors.InvalidArgument(f"There is no measure {measure!r}; measures are {', '.join(MEASURES)}")


def _vectors(given: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if given.dtype.kind not in "biuf" and given.dtype.name != "bfloat16":
        raise errors.InvalidArgument(f"Vectors are arrays of numbers, and not of {given.dtype}")
    found = np.atleast_2d(given.astype(np.float32, copy=False))
    if found.ndim != 2:
        raise errors.InvalidArgument(f"Vectors have the shape (count, size), or (size,), and not {list(given.shape)}")
    return found
