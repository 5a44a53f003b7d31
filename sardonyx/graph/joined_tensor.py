"""A constant that is several others side by side, put together when it is read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.runtime.mapped_pages import release_pages


class JoinedTensor(ir.LazyTensor):
    """Tensors that are equal in all dimensions but the last, one behind the other along the last.

    The whole exists only while somebody holds what `numpy` gave: weights stay where they are in the mapped file, and
    who copies them into another layout anyway may take them from `parts` one by one.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[ir.TensorProtocol], name: str) -> None:
        shapes = [part.shape.numpy() for part in parts]
        head, dtype = shapes[0][:-1], parts[0].dtype
        if any(shape[:-1] != head for shape in shapes) or any(part.dtype != dtype for part in parts):
            raise ValueError(f"the parts of {name} differ in type or in a dimension other than the last")
        width = sum(shape[-1] for shape in shapes)
        super().__init__(self._joined, dtype, ir.Shape((*head, width)), name=name)
        self.parts = tuple(parts)

    def _joined(self) -> ir.TensorProtocol:
        arrays = [np.asarray(part.numpy()) for part in self.parts]
        whole = np.concatenate(arrays, axis=-1)
        for array in arrays:
            release_pages(array)
        return ir.Tensor(whole, dtype=self.dtype, name=self.name)
