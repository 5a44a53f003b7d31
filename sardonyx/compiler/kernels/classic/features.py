"""Features before a model: scaled, normalised, compared, replaced, looked up, encoded and put side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.classic.scores import F32
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.gather import Gather
from sardonyx.compiler.native.rows.reduction import ReductionKernel
from sardonyx.kernel.expr import Input


@template("per_feature")
class PerFeature(NativeKernel):
    """An expression over elements, or over rows of features, with constants that broadcast to them.

    Parameters: `root`, over the input and behind it the `constants` (arrays); `check`, which raises ValueError for a
    shape that does not fit; `reduces`: the expression reduces rows, the last dimension.
    """

    def bind(self, binder: Binder, data: Tensor) -> Sequence[Tensor]:
        get = self.parameters
        get["check"](data.shape)
        tensors = [data, *(binder.constant(array) for array in get["constants"])]
        dtypes = [tensor.dtype for tensor in tensors]
        if get["reduces"] and data.size:
            return ReductionKernel([get["root"]], dtypes).bind(binder, tensors, (len(data.shape) - 1,))
        if get["reduces"]:
            return [binder.new(get["root"].dtype, data.shape)]
        return PointwiseKernel([get["root"]], dtypes).bind(binder, tensors)


@template("features_side_by_side")
class SideBySide(NativeKernel):
    """Rows of all inputs as float32, each cut or filled with 0 to its entry of the parameter `widths`."""

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        given = [tensor for tensor in inputs if tensor is not None]
        widths: tuple[int, ...] = self.parameters["widths"]
        if any(not tensor.shape for tensor in given):
            raise ValueError("every input must have at least 1 dimension")
        batches = [1 if len(tensor.shape) == 1 else tensor.shape[0] for tensor in given]
        if len(set(batches)) > 1:
            raise ValueError(f"every input must have the same number of rows, not {batches}")
        rows, total = batches[0], sum(widths)
        result = binder.new(F32, (rows, total))
        nothing = binder.constant(np.zeros((1, 1), np.float32))
        start = 0
        with binder.together():
            for tensor, width in zip(given, widths, strict=True):
                features = math.prod(tensor.shape[1:] if len(tensor.shape) > 1 else tensor.shape)
                flat = contiguous(binder, tensor).reshaped((rows, features))
                taken = min(features, width)
                part = flat.reshaped((rows, taken), flat.strides)
                _write(binder, part, result, start, taken)
                _write(binder, nothing, result, start + taken, width - taken)
                start += width
        return [result]


def _write(binder: Binder, source: Tensor, result: Tensor, start: int, width: int) -> None:
    """Write a matrix, or the one element of it everywhere, into columns of the result."""
    rows, total = result.shape
    if rows == 0 or width == 0:
        return
    columns = result.reshaped((rows, width), (total, 1), start * result.dtype.itemsize)
    if source.size == 1 and rows * width > 1:
        source = source.reshaped((rows, width), (0, 0))
    PointwiseKernel([Input(source.dtype, 0).cast(F32)], [source.dtype]).bind_into(binder, [source], [columns])


@template("features_by_index")
class ByIndex(NativeKernel):
    """The features that the indices name, along the last dimension; a vector of data is one row."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._gather = Gather({"axis": -1})

    def bind(self, binder: Binder, data: Tensor, indices: Tensor) -> Sequence[Tensor]:
        if not data.shape:
            raise ValueError("the data must have at least 1 dimension")
        rows = data if len(data.shape) > 1 else data.reshaped((1, *data.shape), (0, *data.strides))
        indices = contiguous(binder, indices)
        flat = Tensor(
            indices.dtype,
            (indices.size,),
            (1,),
            indices.buffer,
            indices.offset,
            None if indices.array is None else indices.array.reshape(-1),
        )
        return list(self._gather.bind(binder, rows, flat))
