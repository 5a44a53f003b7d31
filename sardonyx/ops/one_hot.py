"""OneHot: an axis of `depth` places, one of them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.kernel.program import Kernel
from sardonyx.ops.framework.facts import UNKNOWN, Fact, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator, template_unless_text
from sardonyx.ops.shape import axis_of


@operator("OneHot", since=9)
class OneHot(Operator):
    """A new axis of size `depth` at `axis`: values[1] at each index, values[0] elsewhere.

    Indices from -depth to -1 count from the end, as onnxruntime has it in every opset; others outside [0, depth)
    and those with a fraction leave their whole row off.
    """

    axis: int = -1

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return template_unless_text("one_hot", {"axis": self.axis}, self.run, inputs)

    def run(self, indices: Array, depth: Array, values: Array) -> Sequence[Value]:
        if depth.size != 1:
            raise ValueError(f"depth must have one element, not shape {list(depth.shape)}")
        if values.shape != (2,):
            raise ValueError(f"values must be [off, on], not of shape {list(values.shape)}")
        size = int(depth.reshape(-1)[0])
        if size <= 0:
            raise ValueError(f"depth must be positive, not {size}")
        axis = axis_of(self.axis, indices.ndim + 1)
        off, on = values
        result = np.full((*indices.shape[:axis], size, *indices.shape[axis:]), off, values.dtype)
        whole = np.asarray(indices.astype(np.int64, copy=False))
        places = np.where(whole < 0, whole + size, whole)
        valid = (places >= 0) & (places < size) & (whole == indices)
        filled = np.empty(valid.shape, values.dtype)
        filled[...] = off
        filled[valid] = on
        np.put_along_axis(result, np.expand_dims(np.where(valid, places, 0), axis), np.expand_dims(filled, axis), axis)
        return (result,)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        indices, depth, values = (fact or UNKNOWN for fact in inputs)
        if indices.shape is None:
            return [Fact(values.type, None)]
        axis = axis_of(self.axis, len(indices.shape) + 1)
        numbers = depth.integers() or depth.elements
        size = numbers[0] if numbers else unknown_dim()
        if isinstance(size, int) and size <= 0:
            raise ValueError(f"depth must be positive, not {size}")
        return [Fact(values.type, (*indices.shape[:axis], size, *indices.shape[axis:]))]
