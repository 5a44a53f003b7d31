"""NonZero and Compress: what is there where elements, or a condition, are not zero."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.selection.positions import (
    CompressSpec,
    CoordinatesSpec,
    PositionsSpec,
    emit_compress,
    emit_coordinates,
    emit_count_positions,
    emit_positions,
)
from sardonyx.compiler.llvm.types import type_of
from sardonyx.compiler.native.movement.copy import CHUNK_BYTES, contiguous
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.shape import axis_of

# Elements of a block, whose positions one thread finds.
_BLOCK = 16384
_INT64 = np.dtype(np.int64)


def positions_of(binder: Binder, data: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The places of those of the first `size` elements, at least one, that are not zero, and the number of them.

    The data are contiguous. Where fewer are found, the rest of the places mean nothing.
    """
    type_ = type_of(data.dtype)
    assert type_ is not None
    blocks = -(-size // _BLOCK)
    counts, places, total = binder.new(_INT64, (blocks,)), binder.new(_INT64, (size,)), binder.new(_INT64, (1,))
    spec = PositionsSpec(type_)
    binder.step(
        emit_count_positions,
        spec,
        [data, counts, size, _BLOCK],
        reads=(data,),
        writes=(counts,),
        chunks=blocks,
        detail=f"{size} elements",
    )
    binder.step(
        emit_positions,
        spec,
        [data, counts, places, total, size, _BLOCK, blocks],
        reads=(data, counts),
        writes=(places, total),
        chunks=blocks,
        detail=f"{size} elements",
    )
    return places, total


def slices_at(binder: Binder, data: Tensor, axis: int, places: Tensor, count: Tensor) -> Tensor:
    """The slices of contiguous data at the first `count` of the places along an axis, which are in range; densely."""
    shape, size = data.shape, places.size
    output = binder.new(data.dtype, (*shape[:axis], size, *shape[axis + 1 :]))
    row = math.prod(shape[axis + 1 :]) * data.dtype.itemsize
    per_chunk = max(1, CHUNK_BYTES // max(8, row))
    outer = math.prod(shape[:axis])
    if row and outer:
        binder.step(
            emit_compress,
            CompressSpec(),
            [data, places, count, output, row, outer, shape[axis] * row, per_chunk],
            reads=(data, places, count),
            writes=(output,),
            chunks=-(-size // per_chunk),
            detail=f"rows of {row} bytes",
        )
    return output


def nothing(binder: Binder) -> Tensor:
    """A count of none, known before the run."""
    return binder.constant(np.zeros(1, np.int64))


def _compares(fact: Fact | None) -> bool:
    return fact is not None and fact.dtype is not None and type_of(numpy_dtype(fact.dtype)) is not None


@template("non_zero")
class NonZero(NativeKernel):
    """The coordinates of elements that are not zero, a row for each dimension; a scalar counts as a vector."""

    counted_axes = (1,)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        return None if _compares(inputs[0]) else "no kernel compares elements of this type"

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data = inputs[0]
        assert data is not None
        shape = data.shape or (1,)
        if data.size == 0:
            return [binder.new(_INT64, (len(shape), 0)), nothing(binder)]
        places, count = positions_of(binder, contiguous(binder, data), data.size)
        if len(shape) == 1:
            return [places.reshaped((1, data.size)), count]
        coordinates = binder.new(_INT64, (len(shape), data.size))
        binder.step(
            emit_coordinates,
            CoordinatesSpec(len(shape)),
            [places, count, coordinates, _BLOCK, *shape],
            reads=(places, count),
            writes=(coordinates,),
            chunks=-(-data.size // _BLOCK),
        )
        return [coordinates, count]


@template("compress")
class Compress(NativeKernel):
    """The slices of the data along ``axis``, or its elements in row-major order, where the condition (bool) holds."""

    def __init__(self, parameters: dict[str, int | None]) -> None:
        super().__init__(parameters)
        axis = parameters["axis"]
        self.counted_axes = (0 if axis is None else axis,)

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data, condition = inputs
        assert data is not None
        assert condition is not None
        data = contiguous(binder, data)
        shape, axis = data.shape, self.parameters["axis"]
        if axis is None:
            shape, axis = (data.size,), 0
        axis = axis_of(axis, len(shape))
        size = min(condition.size, shape[axis])
        if size == 0:
            return [binder.new(data.dtype, (*shape[:axis], 0, *shape[axis + 1 :])), nothing(binder)]
        places, count = positions_of(binder, contiguous(binder, condition), size)
        return [slices_at(binder, data.reshaped(shape), axis, places, count), count]
