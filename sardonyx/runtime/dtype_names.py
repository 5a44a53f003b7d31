"""NumPy's dtypes by their names, as files keep them."""

from __future__ import annotations

from typing import Any

import numpy as np


def dtype_called(name: str) -> np.dtype[Any]:
    """The dtype of a name, of those that are not NumPy's own, too."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # noqa: F401 - after which NumPy knows the names; few models need them

        return np.dtype(name)
