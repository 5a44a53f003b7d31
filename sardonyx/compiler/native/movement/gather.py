"""Gather, GatherElements and GatherND: rows and elements by index, a view where the indices are known and regular."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from sardonyx.compiler.binding import Address, Binder, Tensor, row_major
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.movement.gather import (
    ABREAST,
    ElementsSpec,
    GatherSpec,
    emit_gather,
    emit_gather_abreast,
    emit_gather_elements,
)
from sardonyx.compiler.native.movement.copy import CHUNK_BYTES, contiguous, copy
from sardonyx.compiler.native.movement.view import reshaped_strides
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.gather_scatter import checked, out_of_bounds
from sardonyx.ops.shape import axis_of

# Rows of these many bytes are copied by loads and stores without a loop: as many as every target has registers for.
BLOBS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# A chunk holds no more rows than this: each costs some nanoseconds, however short it is.
_CHUNK_ROWS = 4096
# Rows of at most these many bytes take less time than their indices, which are read once for several outer places.
_SHORT = 32


def describe(size: int, axis: int) -> Callable[[int], Exception]:
    """The error for an index that is none of an axis."""
    return lambda index: out_of_bounds(index, size, axis)


def rows_per_chunk(row_bytes: int) -> int:
    return max(1, min(_CHUNK_ROWS, CHUNK_BYTES // max(1, row_bytes)))


@template("gather")
class Gather(NativeKernel):
    """Slices of the data along ``axis``, in the order and shape of the indices (int32 or int64)."""

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data, indices = inputs[0], inputs[1]
        assert data is not None
        assert indices is not None
        axis = axis_of(self.parameters["axis"], len(data.shape))
        size = data.shape[axis]
        if indices.array is not None:
            checked(indices.array, size, axis)
            view = _regular(data, indices, axis)
            if view is not None:
                return [view]
        indices = contiguous(binder, indices)
        output = binder.new(data.dtype, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))
        if indices.size == 0:
            return [output]
        data, outer_step, step = _in_rows(binder, data, axis)
        layout = _Layout(
            outer=math.prod(data.shape[:axis]),
            rows=indices.size,
            data_step=outer_step,
            index_step=0,
            row=math.prod(data.shape[axis + 1 :]) * data.dtype.itemsize,
            axes=((size, step),),
        )
        _gather(binder, data, indices, output, binder.fault(describe(size, axis)), layout)
        return [output]


def _in_rows(binder: Binder, data: Tensor, axis: int) -> tuple[Tensor, int, int]:
    """The data and its steps in bytes, outer places and axis; a copy of it where rows are not contiguous."""
    folded = (math.prod(data.shape[:axis]), data.shape[axis], math.prod(data.shape[axis + 1 :]))
    strides = row_major(folded) if data.is_contiguous else reshaped_strides(data.shape, data.strides, folded)
    if strides is None or (strides[2] != 1 and folded[2] > 1):
        data, strides = copy(binder, data), row_major(folded)
    item = data.dtype.itemsize
    return data, strides[0] * item, strides[1] * item


def _regular(data: Tensor, indices: Tensor, axis: int) -> Tensor | None:
    """A view, where the known indices count up or down by one step (one index does)."""
    assert indices.array is not None
    if indices.size == 0 or len(indices.shape) > 1:
        return None
    numbers = indices.array.ravel().astype(np.int64)
    size = data.shape[axis]
    numbers = np.where(numbers < 0, numbers + size, numbers)
    step = int(numbers[1] - numbers[0]) if numbers.size > 1 else 1
    if numbers.size > 2 and (np.diff(numbers) != step).any():
        return None
    stride = data.strides[axis]
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    middle = () if indices.shape == () else (stride * step,)
    strides = (*data.strides[:axis], *middle, *data.strides[axis + 1 :])
    return data.reshaped(shape, strides, int(numbers[0]) * stride * data.dtype.itemsize)


@dataclass(frozen=True)
class _Layout:
    """How rows are gathered: `outer` places, each with `rows` rows of `row` bytes.

    The data steps by `data_step` bytes from one outer place to the next, the indices by `index_step`; `axes` are the
    size and stride (in bytes) of those that the indices of a row address.
    """

    outer: int
    rows: int
    data_step: int
    index_step: int
    row: int
    axes: tuple[tuple[int, int], ...]


def rows_of_table(binder: Binder, table: Tensor, ids: Tensor, refusal: Callable[[int], Exception]) -> Tensor:
    """The rows (…, width) of a table (count, width) that ids (…) name; a negative id is refused like one too large."""
    table, _, step = _in_rows(binder, table, 0)
    ids = contiguous(binder, ids)
    count, width = table.shape
    output = binder.new(table.dtype, (*ids.shape, width))
    if output.size:
        layout = _Layout(1, ids.size, 0, 0, width * table.dtype.itemsize, ((count, step),))
        _gather(binder, table, ids, output, binder.fault(refusal), layout, from_end=False)
    return output


def _gather(
    binder: Binder,
    data: Tensor,
    indices: Tensor,
    output: Tensor,
    faults: Address,
    layout: _Layout,
    *,
    from_end: bool = True,
) -> None:
    """Add the step that gathers rows, each of them contiguous in the data."""
    row = layout.row
    blob = row if row in BLOBS else 0
    spec = GatherSpec(blob, indices.dtype.itemsize * 8, len(layout.axes), from_end)
    table = [number for axis in layout.axes for number in axis]
    nbytes = 2.0 * output.nbytes + indices.nbytes
    same = layout.index_step == 0 and len(layout.axes) == 1
    if blob and row <= _SHORT and same and layout.rows * row <= CHUNK_BYTES and layout.outer >= ABREAST:
        per_chunk = max(ABREAST, rows_per_chunk(row) // layout.rows // ABREAST * ABREAST)
        binder.step(
            emit_gather_abreast,
            spec,
            [
                *(data, indices, output, faults, layout.outer, per_chunk, layout.rows, layout.data_step),
                *(layout.index_step, row, 0, 0, *table),
            ],
            reads=(data, indices),
            writes=(output,),
            chunks=-(-layout.outer // per_chunk),
            nbytes=nbytes,
            detail=lambda: f"{layout.rows} of {layout.axes[0][0]} rows of {row} bytes, {layout.outer} times",
        )
        return
    pieces, piece = (1, row) if blob or row <= CHUNK_BYTES else (-(-row // CHUNK_BYTES), CHUNK_BYTES)
    items = layout.outer * layout.rows * pieces
    per_chunk = rows_per_chunk(piece)
    binder.step(
        emit_gather,
        spec,
        [
            *(data, indices, output, faults, items, per_chunk, layout.rows, layout.data_step, layout.index_step, row),
            *(pieces, piece, *table),
        ],
        reads=(data, indices),
        writes=(output,),
        chunks=-(-items // per_chunk),
        nbytes=nbytes,
        detail=lambda: f"{layout.outer * layout.rows} rows of {row} bytes",
    )


@template("gather_nd")
class GatherND(NativeKernel):
    """Slices whose leading coordinates, behind ``batch_dims`` axes, the last axis of the indices (int64) holds."""

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data, indices = inputs[0], inputs[1]
        assert data is not None
        assert indices is not None
        batch, depth = self.parameters["batch_dims"], indices.shape[-1]
        if batch + depth > len(data.shape):
            raise ValueError(f"indices address {batch + depth} axes, but the data has {len(data.shape)}")
        if data.shape[:batch] != indices.shape[:batch]:
            raise ValueError(f"the first {batch} dimensions of {data.shape} and {indices.shape} must be equal")
        data, indices = contiguous(binder, data), contiguous(binder, indices)
        output = binder.new(data.dtype, (*indices.shape[:-1], *data.shape[batch + depth :]))
        item = data.dtype.itemsize
        row = math.prod(data.shape[batch + depth :]) * item
        axes = tuple((data.shape[axis], data.strides[axis] * item) for axis in range(batch, batch + depth))
        faults = [binder.fault(describe(size, batch + place)) for place, (size, _) in enumerate(axes)]
        if not axes:  # every row is the whole of the data
            axes, faults = ((1, 0),), [binder.fault(describe(1, 0))]
            indices = binder.constant(np.zeros((*indices.shape[:-1], 1), np.int64))
        rows = math.prod(indices.shape[batch:-1])
        layout = _Layout(
            outer=math.prod(indices.shape[:batch]),
            rows=rows,
            data_step=math.prod(data.shape[batch:]) * item,
            index_step=rows * max(1, depth),
            row=row,
            axes=axes,
        )
        _gather(binder, data, indices, output, faults[0], layout)
        return [output]


@template("gather_elements")
class GatherElements(NativeKernel):
    """For each index the element of the data at its place with the coordinate on ``axis`` replaced."""

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data, indices = inputs[0], inputs[1]
        assert data is not None
        assert indices is not None
        axis = axis_along(data.shape, indices.shape, self.parameters["axis"])
        output = binder.new(data.dtype, indices.shape)
        if output.size == 0:
            return [output]
        indices = contiguous(binder, indices)
        item = data.dtype.itemsize
        steps = [0 if place == axis else stride * item for place, stride in enumerate(data.strides)]
        fault = binder.fault(describe(data.shape[axis], axis))
        rows = math.prod(indices.shape[:-1])
        count = indices.shape[-1]
        per_chunk = max(1, _CHUNK_ROWS // count)
        outer = [number for axis in reversed(range(len(steps) - 1)) for number in (indices.shape[axis], steps[axis])]
        binder.step(
            emit_gather_elements,
            ElementsSpec(item, indices.dtype.itemsize * 8),
            [
                *(data, indices, output, fault, rows, per_chunk, count, steps[-1]),
                *(data.shape[axis], data.strides[axis] * item, len(steps) - 1, *outer),
            ],
            reads=(data, indices),
            writes=(output,),
            chunks=-(-rows // per_chunk),
            nbytes=2.0 * output.nbytes + indices.nbytes,
            detail=lambda: f"{output.size} elements of {item} bytes",
        )
        return [output]


def axis_along(data: Sequence[int], indices: Sequence[int], axis: int) -> int:
    """The axis counted from the front; ValueError where the indices reach beyond the data on another one."""
    if len(data) != len(indices):
        raise ValueError(f"data has {len(data)} dimensions and indices have {len(indices)}")
    axis = axis_of(axis, len(data))
    for place, (have, want) in enumerate(zip(indices, data, strict=True)):
        if place != axis and have > want:
            raise ValueError(f"indices have size {have} on axis {place}, more than the data's {want}")
    return axis
