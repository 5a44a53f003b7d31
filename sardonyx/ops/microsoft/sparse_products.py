"""Products of sparse matrices: inputs of the model, or constants that it declares as sparse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import onnx_ir as ir

from sardonyx.graph.types import type_name
from sardonyx.ops.framework.check import invalid_type
from sardonyx.ops.framework.facts import Fact, tensor
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


class SparseMatrix(Protocol):
    """What a run is given for a sparse input."""

    def dense_shape(self) -> list[int]:
        """The sizes of the dense matrix."""

    def coordinates(self) -> tuple[Array, Array, Array]:
        """The row and the column of each value, and the values; ValueError where they are in blocks."""


@operator("SparseToDenseMatMul", domain=DOMAIN)
class SparseToDenseMatMul(Operator):
    """alpha times the product of a sparse matrix [M, K] and a dense one [K, N], either of them transposed."""

    inputs: ClassVar[str] = "A, B"
    outputs: ClassVar[str] = "Y"
    alpha: float = 1.0
    transA: int = 0  # noqa: N815 - the names of the operator's attributes
    transB: int = 0  # noqa: N815
    host_reason: ClassVar[str] = "a sparse matrix is a Python object"

    def run(self, *inputs: Any) -> Sequence[Array]:
        a: SparseMatrix = inputs[0]
        b: Array = inputs[1].T if self.transB else inputs[1]
        rows, columns, values = a.coordinates()
        height, width = a.dense_shape()
        if self.transA:
            rows, columns, height, width = columns, rows, width, height
        if b.ndim != 2 or b.shape[0] != width:
            raise ValueError(f"A of shape {[height, width]} cannot be multiplied by B of shape {list(b.shape)}")
        if values.dtype != b.dtype:
            raise ValueError(f"A has elements of type {values.dtype} and B of type {b.dtype}; they must be equal")
        for name, places, size in (("row", rows, height), ("column", columns, width)):
            if places.size and not 0 <= places.min() <= places.max() < size:
                raise ValueError(f"A has a value in a {name} outside of [0, {size})")
        sums = np.zeros((height, b.shape[1]), np.float64 if b.dtype.kind == "f" else b.dtype)
        np.add.at(sums, rows, values[:, None].astype(sums.dtype) * b[columns])
        return ((sums if self.alpha == 1 else sums * self.alpha).astype(b.dtype),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        a, b = inputs
        if a is not None and isinstance(a.type, ir.TensorType):
            raise invalid_type(self.node, 0, type_name(a.type))
        if b is None or b.dtype is None:
            return [Fact()]
        return [tensor(b.dtype, (dim(a, 1 if self.transA else 0), dim(b, 0 if self.transB else 1)))]
