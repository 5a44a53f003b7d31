"""AffineGrid: one expression over the numbers of the matrices and the places along each axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.expr import Expr, Input
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.grid_sample import grid_places, grid_sizes
from sardonyx.runtime.memory import memory

# What it takes to make the place of a line.
_BYTES_PER_PLACE = 40
# What places are computed in.
_COMPUTED: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float32),
    "bfloat16": np.dtype(np.float32),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


@template("affine_grid")
class AffineGrid(NativeKernel):
    """Parameter: ``align_corners``. The result is computed dimension by dimension, and handed on as a view."""

    known_inputs = (1,)

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._loops: dict[tuple[str, int], PointwiseKernel] = {}

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        theta = inputs[0]
        dtype = None if theta is None or theta.dtype is None else numpy_dtype(theta.dtype)
        return None if dtype is not None and dtype.name in _COMPUTED else f"no kernel for grids of {dtype}"

    def bind(self, binder: Binder, theta: Tensor, size: Tensor) -> Sequence[Tensor]:
        assert size.array is not None
        sizes = grid_sizes(theta.shape, size.array.ravel().tolist())
        count, batch, item = len(sizes), theta.shape[0], theta.dtype.itemsize
        result_bytes = batch * count * math.prod(sizes) * item
        memory.require_tables(_BYTES_PER_PLACE * sum(sizes), "the places of a grid", result_bytes)
        places = [
            grid_places(length, self.parameters["align_corners"]).astype(_COMPUTED[theta.dtype.name])
            for length in sizes
        ]
        ones = (1,) * count
        shape = (batch, count, *sizes)
        operands = [
            theta.reshaped(
                (batch, count, *ones),
                (theta.strides[0], theta.strides[1], *ones),
                column * theta.strides[2] * item,
            )
            for column in range(count + 1)
        ]
        operands += [
            binder.constant(numbers.reshape(-1, *(1,) * (count - 1 - axis))) for axis, numbers in enumerate(places)
        ]
        made = binder.new(theta.dtype, shape)
        self._loop(theta.dtype, count).bind_into(binder, operands, [made])
        return [transposed(made, (0, *range(2, count + 2), 1))]

    def _loop(self, dtype: np.dtype[Any], count: int) -> PointwiseKernel:
        """The sum over the columns of a row of a matrix, each times its place but the last one."""
        key = dtype.name, count
        if key not in self._loops:
            wide = _COMPUTED[dtype.name]
            columns = [Input(dtype, index).cast(wide) for index in range(count + 1)]
            total: Expr = columns[-1]
            for axis in range(count):  # the slowest axis is the last one of a place
                total = total + columns[count - 1 - axis] * Input(wide, count + 1 + axis)
            self._loops[key] = PointwiseKernel((total.cast(dtype),), [*(dtype for _ in columns), *(wide,) * count])
        return self._loops[key]
