"""MaxUnpool: elements put where maxima were, zeros elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.pad import Frame, framed
from sardonyx.compiler.native.movement.scatter import ScatterElements
from sardonyx.compiler.native.movement.slices import spread


@template("max_unpool")
class MaxUnpoolKernel(NativeKernel):
    """Elements scattered over zeros. The parameter `shape` gives the result's shape from that of the input."""

    known_inputs = (2,)

    def bind(
        self, binder: Binder, x: Tensor, indices: Tensor, output_shape: Tensor | None = None
    ) -> Sequence[Tensor | None]:
        if indices.shape != x.shape:
            raise ValueError(f"indices {indices.shape} and the input {x.shape} must have one shape")
        shape: tuple[int, ...] = self.parameters["shape"](x.shape)
        zeros = spread(binder.constant(np.zeros((1,), x.dtype)), (math.prod(shape),))
        flat = [contiguous(binder, tensor).reshaped((tensor.size,)) for tensor in (indices, x)]
        (scattered,) = ScatterElements({"axis": 0, "reduction": "none"}).bind(binder, zeros, *flat)
        result = scattered.reshaped(shape)
        if output_shape is None or output_shape.array is None:
            return [result]
        wanted = tuple(output_shape.array.reshape(-1).tolist())
        if len(wanted) != len(shape) or any(size < least for size, least in zip(wanted, shape, strict=True)):
            raise ValueError(f"output_shape {wanted} must be at least {shape}, which the attributes lead to")
        behind = tuple((0, size - least) for size, least in zip(wanted, shape, strict=True))
        return [framed(binder, result, Frame(tuple((0, 0) for _ in shape), behind), "constant", None)]
