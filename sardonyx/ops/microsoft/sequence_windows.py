"""Windows over an axis, and the cheapest path through a matrix of costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import Fact, tensor, unknown_dim
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.rules import DOMAIN, Array, like
from sardonyx.runtime.memory import memory

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


@operator("UnfoldTensor", domain=DOMAIN)
class UnfoldTensor(Operator):
    """All slices of `size` elements along `dim`, `step` apart; their elements form a new last axis."""

    inputs: ClassVar[str] = "input"
    outputs: ClassVar[str] = "output"
    host_reason: ClassVar[str] = "overlapping slices"
    size: int
    dim: int = -1
    step: int = 1

    def run(self, *inputs: Any) -> Sequence[Array]:
        (x,) = inputs
        axis = self.axis(x.ndim)
        if not 0 < self.size <= x.shape[axis] or self.step <= 0:
            raise ValueError(f"slices of {self.size} every {self.step} do not fit an axis of {x.shape[axis]} elements")
        slices = np.lib.stride_tricks.sliding_window_view(x, self.size, axis=axis)
        kept = slices[(slice(None),) * axis + (slice(None, None, self.step),)]
        memory.require(kept.size * kept.itemsize, "overlapping slices")
        return (np.ascontiguousarray(kept),)

    def axis(self, rank: int) -> int:
        if not -rank <= self.dim < rank:
            raise ValueError(f"dim {self.dim} is not one of the {rank} axes of 'input'")
        return self.dim % rank

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        if x is None or x.shape is None:
            return [like(x, None)]
        shape = list(x.shape)
        axis = self.axis(len(shape))
        shape[axis] = (shape[axis] - self.size) // self.step + 1
        return [like(x, (*shape, self.size))]


@operator("DynamicTimeWarping", domain=DOMAIN)
class DynamicTimeWarping(Operator):
    """The path from (0, 0) to the last corner with the lowest sum of costs, as rows and columns (2, steps).

    A step goes down, right, or both at once. Of equal sums the diagonal wins over the one above, where the sum of
    the one above is strictly smaller than the left one it wins over that.
    """

    inputs: ClassVar[str] = "input"
    outputs: ClassVar[str] = "output"
    host_reason: ClassVar[str] = "the path depends on the data"

    def run(self, *inputs: Any) -> Sequence[Array]:
        costs = inputs[0][0] if inputs[0].ndim == 3 else inputs[0]
        if (inputs[0].ndim == 3 and len(inputs[0]) != 1) or costs.ndim != 2:
            raise ValueError(f"input 'input' must be (rows, columns) or (1, rows, columns), got {inputs[0].shape}")
        rows, columns = costs.shape
        total = np.full((rows + 1, columns + 1), np.inf, np.float32)
        total[0, 0] = 0
        came = np.zeros((rows + 1, columns + 1), np.int8)
        for i in range(1, rows + 1):
            for j in range(1, columns + 1):
                diagonal, above, left = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
                if diagonal < above and diagonal < left:
                    came[i, j], best = 0, diagonal
                elif above < diagonal and above < left:
                    came[i, j], best = 1, above
                else:
                    came[i, j], best = 2, left
                total[i, j] = costs[i - 1, j - 1] + best
        came[0, :], came[:, 0] = 2, 1
        path = []
        i, j = rows, columns
        while i > 0 or j > 0:
            path.append((i - 1, j - 1))
            move = came[i, j]
            i, j = i - int(move != 2), j - int(move != 1)
        return (np.array(path[::-1], np.int32).reshape(-1, 2).T.copy(),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [tensor(ir.DataType.INT32, (2, unknown_dim()))]
