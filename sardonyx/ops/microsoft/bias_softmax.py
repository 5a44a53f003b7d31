"""Softmax of scores and an additive mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from sardonyx.kernel.program import Arrangement, Host, Kernel
from sardonyx.ops.framework.operator import operator
from sardonyx.ops.microsoft.rules import DOMAIN, Array, SameAsFirst, wide
from sardonyx.ops.row_kernels import (
    Contents,
    Shapes,
    given,
    is_computable,
    leaves,
    row_arrangement,
    rows_template,
    softmax,
    trailing,
)


@operator("BiasSoftmax", domain=DOMAIN)
class BiasSoftmax(SameAsFirst):
    """softmax(data + bias) over all axes from `axis` on.

    `is_inner_broadcast` tells a kernel where the axes lie along which the bias is repeated; the shapes say it too.
    """

    inputs: ClassVar[str] = "data, bias"
    outputs: ClassVar[str] = "output"
    host_reason: ClassVar[str] = "a reduction and what follows it"
    is_inner_broadcast: int
    axis: int = 1

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        data = inputs[0]
        if data is None or not all(map(is_computable, inputs)):
            return Host(self.run, self.host_reason)
        scores, bias = leaves(inputs)
        assert scores is not None
        assert bias is not None
        return rows_template(inputs, [softmax(scores + bias).cast(data)], self._arranged, self.run)

    def _arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape, bias = map(given, shapes)
        if np.broadcast_shapes(shape, bias) != shape:
            raise ValueError(f"input 'bias' of shape {bias} does not broadcast to 'data' of shape {shape}")
        return row_arrangement(shapes, shape, trailing(self.axis, len(shape)))

    def run(self, *inputs: Any) -> Sequence[Array]:
        data, bias = inputs
        if not -data.ndim <= self.axis < data.ndim:
            raise ValueError(f"axis {self.axis} is not one of the {data.ndim} axes of input 'data'")
        scores = wide(data) + wide(bias)
        if scores.shape != data.shape:
            raise ValueError(f"input 'bias' of shape {bias.shape} does not broadcast to 'data' of shape {data.shape}")
        axes = tuple(range(self.axis % data.ndim, data.ndim))
        weights = np.exp(scores - scores.max(axis=axes, keepdims=True))
        return ((weights / weights.sum(axis=axes, keepdims=True)).astype(data.dtype),)
