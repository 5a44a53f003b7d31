"""Functions of square matrices: Det."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.kernel.program import Kernel, Template
from sardonyx.ops.framework.facts import UNKNOWN, Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Cost, Operator, Value, elements, operator


def check_square(shape: Sequence[Any]) -> None:
    """ValueError unless the last two dimensions are those of square matrices, as far as they are known."""
    unknown = any(isinstance(dim, ir.SymbolicDim) for dim in shape[-2:])
    if len(shape) < 2 or (not unknown and shape[-1] != shape[-2]):
        raise ValueError(f"Det needs square matrices in the last two dimensions, not the shape {list(shape)}")


@operator("Det", since=11)
class Det(Operator):
    """The determinants of the matrices in the last two dimensions, computed in float64."""

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0] or UNKNOWN
        if x.shape is None:
            return [Fact(x.type, None)]
        check_square(x.shape)
        return [Fact(x.type, x.shape[:-2])]

    def run(self, x: Array) -> Sequence[Value]:
        check_square(x.shape)
        return (np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return Template("determinant", {}, self.run)

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        moved = super().cost(inputs, outputs).bytes
        x, count = inputs[0], elements(outputs[0])
        rows = None if x is None or x.shape is None else x.shape[-1]
        if count is None or not isinstance(rows, int):
            return Cost(None, moved)
        return Cost(2 / 3 * float(rows) ** 3 * count, moved)
