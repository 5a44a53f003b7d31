"""A constant that is several others side by side, put together when it is read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir


class JoinedTensor(ir.LazyTensor):
    """Tensors that are equal in all dimensions but the last, one behind the other along the last.

    The whole exists only while somebody holds what `numpy` gave: weights stay where they are in the mapped file, and
    who copies them into another layout anyway may take them from `parts` one by one.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[ir.TensorProtocol], name: str) -> None:
        first = parts[0]
        head, dtype = tuple(first.shape)[:-1], first.dtype
        if any(tuple(part.shape)[:-1] != head or part.dtype != dtype for part in parts):
            raise ValueError(f"the parts of {name} differ in type or in a dimension other than the last")
        width = sum(int(tuple(part.shape)[-1]) for part in parts)
        super().__init__(self._joined, dtype, ir.Shape((*head, width)), name=name)
        self.parts = tuple(parts)

    def _joined(self) -> ir.TensorProtocol:
        whole = np.concatenate([np.asarray(part.numpy()) for part in self.parts], axis=-1)
        return ir.Tensor(whole, dtype=self.dtype, name=self.name)
