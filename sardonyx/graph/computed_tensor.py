"""Constants that are computed from other constants whenever somebody reads them, and held by nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.runtime.constant_memory import passing_empty
from sardonyx.runtime.mapped_pages import release_pages

Array = np.ndarray[Any, Any]


class ComputedTensor(ir.LazyTensor):
    """A tensor of this type and shape whose contents `compute` gives.

    They exist only while somebody holds what `numpy` gave: weights stay where they are in the mapped file, and one
    that is packed into another layout is not in memory a second time.
    """

    __slots__ = ()

    def __init__(self, compute: Callable[[], Array], dtype: ir.DataType, shape: Sequence[int], name: str) -> None:
        super().__init__(lambda: ir.Tensor(compute(), dtype=dtype, name=name), dtype, ir.Shape(shape), name=name)


class JoinedTensor(ComputedTensor):
    """Tensors that are equal in all dimensions but the last, one behind the other along the last."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[ir.TensorProtocol], name: str) -> None:
        shapes = [part.shape.numpy() for part in parts]
        head, dtype = shapes[0][:-1], parts[0].dtype
        if any(shape[:-1] != head for shape in shapes) or any(part.dtype != dtype for part in parts):
            raise ValueError(f"the parts of {name} differ in type or in a dimension other than the last")
        super().__init__(self._joined, dtype, (*head, sum(shape[-1] for shape in shapes)), name)
        self.parts = tuple(parts)

    def _joined(self) -> Array:
        arrays = [np.asarray(part.numpy()) for part in self.parts]
        whole = passing_empty(self.size, arrays[0].dtype).reshape(self.shape.numpy())
        np.concatenate(arrays, axis=-1, out=whole)
        for array in arrays:
            release_pages(array)
        return whole
