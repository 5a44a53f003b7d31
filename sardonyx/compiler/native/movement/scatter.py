"""ScatterND and ScatterElements: a copy of the data, and updates at the places that the indices name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.box import Box
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.movement.scatter import ScatterSpec, Update, emit_scatter, emit_scatter_elements
from sardonyx.compiler.llvm.types import BF16, BOOL, F16, Type, type_of
from sardonyx.compiler.native.movement.copy import CHUNK_BYTES, contiguous, copy, copy_into
from sardonyx.compiler.native.movement.gather import BLOBS, axis_along, describe
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.gather_scatter import out_of_bounds

_REDUCTIONS = ("none", "add", "mul", "min", "max")


def _number(dtype: np.dtype[Any]) -> Type | None:
    """The type that elements are combined as; None where it is not native."""
    type_ = type_of(dtype)
    return None if type_ in (BOOL, F16, BF16) else type_


class _Scattering(NativeKernel):
    """What both forms share; ``reduction`` says how updates are combined with what is there."""

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        reduction = self.parameters["reduction"]
        if reduction not in _REDUCTIONS:
            return f"the reduction '{reduction}' is unknown"
        data = inputs[0]
        if reduction != "none" and (data is None or data.dtype is None or _number(numpy_dtype(data.dtype)) is None):
            return f"no kernel combines elements of this type by {reduction}"
        return None

    def _spec(self, data: Tensor, indices: Tensor, blob: int, depth: int = 1) -> ScatterSpec:
        reduction = self.parameters["reduction"]
        index = indices.dtype.itemsize * 8
        if reduction == "none":
            return ScatterSpec(Update(blob), index, depth)
        type_ = _number(data.dtype)
        assert type_ is not None
        return ScatterSpec(Update(blob if blob == type_.nbytes else 0, reduction, type_), index, depth)


@template("scatter_nd")
class ScatterND(_Scattering):
    """Slices of the data are updated whose leading coordinates the last axis of the indices (int64) holds.

    Where they are replaced, and the indices are known to be all of a box, its elements are copied without them.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.places_input = 1 if parameters["reduction"] == "none" else None

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data, indices, updates, numbers = (*inputs, None)[:4]
        assert data is not None
        assert indices is not None
        assert updates is not None
        if numbers is not None and numbers.size:
            assert numbers.array is not None
            return [_assigned(binder, data, Box.of(numbers.array.tolist()), updates)]
        depth = indices.shape[-1]
        _check_shapes(data, (*indices.shape[:-1],), depth, updates)
        result = copy(binder, data)
        if updates.size == 0:
            return [result]
        indices, updates = contiguous(binder, indices), contiguous(binder, updates)
        item = data.dtype.itemsize
        axes = tuple((result.shape[axis], result.strides[axis] * item) for axis in range(depth))
        faults = [binder.fault(describe(size, place)) for place, (size, _) in enumerate(axes)]
        if not axes:  # every update is one of the whole of the data
            axes, faults = ((1, 0),), [binder.fault(describe(1, 0))]
            indices = binder.constant(np.zeros(indices.shape[:-1], np.int64))
        rows, row = math.prod(indices.shape[:-1]) if depth else indices.size, math.prod(data.shape[depth:]) * item
        blob = row if row in BLOBS else 0
        width = row if blob else _columns(rows, row)
        binder.step(
            emit_scatter,
            self._spec(data, indices, blob, len(axes)),
            [
                *(result, indices, updates, faults[0], rows, row, width),
                *(number for axis in axes for number in axis),
            ],
            reads=(indices, updates),
            writes=(result,),
            chunks=-(-row // width),
            nbytes=2.0 * updates.nbytes + indices.nbytes,
            detail=lambda: f"{rows} rows of {row} bytes",
        )
        return [result]


def _check_shapes(data: Tensor, places: tuple[int, ...], depth: int, updates: Tensor) -> None:
    """ValueError where the updates are not those of so many places with `depth` coordinates."""
    expected = (*places, *data.shape[depth:])
    if depth > len(data.shape) or updates.shape != expected:
        raise ValueError(f"updates must have the shape {expected} for these indices, not {updates.shape}")


def _assigned(binder: Binder, data: Tensor, box: Box, updates: Tensor) -> Tensor:
    """The data with the elements of a box replaced; InvalidArgument where they are not all inside."""
    _check_shapes(data, box.sizes, len(box.begins), updates)
    for axis, begin in enumerate(box.begins):
        size = data.shape[axis]
        for end in (begin, box.last(axis)):
            if not -size <= end < size:
                raise out_of_bounds(end, size, axis)
    result = copy(binder, data, in_place=True)
    copy_into(binder, updates, box.within(result))
    return result


def _columns(rows: int, row: int) -> int:
    """Bytes of a row that a chunk updates in all rows: a multiple of a cache line."""
    wanted = CHUNK_BYTES // max(1, rows)
    return min(row, max(256, wanted // 64 * 64))


@template("scatter_elements")
class ScatterElements(_Scattering):
    """Elements of the data are updated at the places of the updates with the coordinate on ``axis`` replaced."""

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data, indices, updates = inputs
        assert data is not None
        assert indices is not None
        assert updates is not None
        axis = axis_along(data.shape, indices.shape, self.parameters["axis"])
        if indices.shape != updates.shape:
            raise ValueError(f"indices {indices.shape} and updates {updates.shape} must have one shape")
        result = copy(binder, data)
        if updates.size == 0:
            return [result]
        indices, updates = contiguous(binder, indices), contiguous(binder, updates)
        item, shape = data.dtype.itemsize, indices.shape
        steps = [0 if place == axis else stride * item for place, stride in enumerate(result.strides)]
        rows, count = math.prod(shape[:-1]), shape[-1]
        meeting = math.prod(shape[axis:-1])  # rows whose updates may meet: one thread takes them, in order
        per_chunk = meeting * max(1, CHUNK_BYTES // (meeting * count * item))
        binder.step(
            emit_scatter_elements,
            self._spec(data, indices, item),
            [
                *(result, indices, updates, binder.fault(describe(data.shape[axis], axis)), rows, per_chunk, count),
                *(steps[-1], data.shape[axis], result.strides[axis] * item, len(steps) - 1),
                *(number for place in reversed(range(len(steps) - 1)) for number in (shape[place], steps[place])),
            ],
            reads=(indices, updates),
            writes=(result,),
            chunks=-(-rows // per_chunk),
            nbytes=2.0 * updates.nbytes + indices.nbytes,
            detail=lambda: f"{updates.size} elements of {item} bytes",
        )
        return [result]
