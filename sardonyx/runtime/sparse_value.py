"""Sparse tensors as a run has them that a model holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.light_dataclass import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class SparseValue:
    """A sparse tensor in a run: `values` [n] at `places` [n] (int64, ascending) of the dense tensor in row order."""

    shape: tuple[int, ...]
    values: Array
    places: Array

    def dense_shape(self) -> list[int]:
        """The sizes of the dense tensor."""
        return list(self.shape)

    def coordinates(self) -> tuple[Array, Array, Array]:
        """The row and the column of each value of a matrix, and the values; ValueError for other tensors."""
        if len(self.shape) != 2:
            raise ValueError(f"a sparse matrix has two dimensions, not {len(self.shape)}")
        rows, columns = np.divmod(self.places, max(self.shape[1], 1))
        return rows, columns, self.values
