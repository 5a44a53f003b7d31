"""Trilu, OneHot and ReverseSequence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Address, Binder, Tensor
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.movement.places import (
    OneHotSpec,
    ReverseSpec,
    TriangleSpec,
    emit_one_hot,
    emit_reverse,
    emit_triangle,
)
from sardonyx.compiler.llvm.types import type_of
from sardonyx.compiler.native.movement.copy import CHUNK_BYTES, contiguous, copy_into
from sardonyx.compiler.native.movement.gather import BLOBS, rows_per_chunk
from sardonyx.compiler.native.movement.slices import part_of, spread
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel import expr as k
from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.expr import Expr, Input
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.rearrange import length_out_of_range, sequence_axes
from sardonyx.ops.shape import axis_of


@template("triangle")
class Triangle(NativeKernel):
    """The ``upper`` or lower triangle of each matrix from the diagonal on that the second input names."""

    known_inputs = (1,)

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data, diagonal = (*inputs, None)[:2]
        assert data is not None
        if len(data.shape) < 2:
            raise ValueError(f"the input must have at least 2 dimensions, not {len(data.shape)}")
        rows, columns = data.shape[-2:]
        number = 0
        if diagonal is not None:
            assert diagonal.array is not None
            if diagonal.size != 1:
                raise ValueError(f"k must have one element, not shape {list(diagonal.shape)}")
            number = min(max(int(diagonal.array.reshape(-1)[0]), -rows - 1), columns + 1)
        data = contiguous(binder, data)
        result = binder.new(data.dtype, data.shape)
        upper = bool(self.parameters["upper"])
        items = math.prod(data.shape[:-1]) if columns else 0
        per_chunk = rows_per_chunk(columns * data.dtype.itemsize)
        binder.step(
            emit_triangle,
            TriangleSpec(data.dtype.itemsize, upper),
            [data, result, items, per_chunk, rows, columns, number if upper else number + 1],
            reads=(data,),
            writes=(result,),
            chunks=-(-items // per_chunk),
            detail=lambda: f"{items} rows of {columns}",
        )
        return [result]


@template("one_hot")
class OneHot(NativeKernel):
    """A new axis at ``axis`` of the size that the second input holds: values[1] at each index, values[0] elsewhere."""

    known_inputs = (1,)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        indices = inputs[0]
        dtype = None if indices is None or indices.dtype is None else numpy_dtype(indices.dtype)
        type_ = None if dtype is None else type_of(dtype)
        if type_ is None or type_.is_tiny_float or type_.is_tiny_integer or dtype in _NO_INDICES:
            return f"indices of {dtype} are not compared with whole numbers of 64 bits"
        return None

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        indices, depth, values = inputs
        assert indices is not None
        assert depth is not None
        assert depth.array is not None
        assert values is not None
        if depth.size != 1:
            raise ValueError(f"depth must have one element, not shape {list(depth.shape)}")
        if values.shape != (2,):
            raise ValueError(f"values must be [off, on], not of shape {list(values.shape)}")
        size = int(depth.array.reshape(-1)[0])
        if size <= 0:
            raise ValueError(f"depth must be positive, not {size}")
        axis = axis_of(self.parameters["axis"], len(indices.shape) + 1)
        indices = contiguous(binder, _whole(binder, indices, size))
        result = binder.new(values.dtype, (*indices.shape[:axis], size, *indices.shape[axis:]))
        copy_into(binder, spread(part_of(values, 0, 0, 1), result.shape), result)
        item = values.dtype.itemsize
        on = Address(values.buffer, values.offset + values.strides[0] * item)
        per_chunk = CHUNK_BYTES // 16
        binder.step(
            emit_one_hot,
            OneHotSpec(item, indices.dtype.itemsize * 8),
            [indices, on, result, indices.size, per_chunk, size, math.prod(indices.shape[axis:])],
            reads=(indices, values),
            writes=(result,),
            chunks=-(-indices.size // per_chunk),
            nbytes=float(indices.nbytes + indices.size * item),
            detail=lambda: f"{indices.size} of {result.size} elements",
        )
        return [result]


# Whole numbers of 64 bits do not hold all of their values, or they are none.
_NO_INDICES = frozenset({np.dtype(np.uint64), np.dtype(np.bool_)})


def _whole(binder: Binder, indices: Tensor, size: int) -> Tensor:
    """Indices as int32 or int64; `size`, which is out of range, in place of those with a fraction and of NaN."""
    dtype = indices.dtype
    if dtype in (np.int32, np.int64):
        return indices
    x: Expr = Input(dtype, 0)
    whole = x.cast(np.dtype(np.int64))
    if dtype.kind not in "iu":
        x = x.cast(working_dtype(dtype))
        whole = k.where(k.floor(x).equals(x), x.cast(np.dtype(np.int64)), size)
    return PointwiseKernel([whole], [dtype]).bind(binder, [indices])[0]


@template("reverse_sequence")
class ReverseSequence(NativeKernel):
    """The first elements of each sequence, as many as the second input (int64) says, in reverse order."""

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data, lengths = inputs
        assert data is not None
        assert lengths is not None
        _, time = sequence_axes(data.shape, lengths.shape, self.parameters["batch_axis"], self.parameters["time_axis"])
        data, lengths = contiguous(binder, data), contiguous(binder, lengths)
        result = binder.new(data.dtype, data.shape)
        row = math.prod(data.shape[2:]) * data.dtype.itemsize
        items = data.shape[0] * data.shape[1]
        per_chunk, steps = rows_per_chunk(row), data.shape[time]
        fault = binder.fault(lambda number: ValueError(length_out_of_range(number, steps)))
        binder.step(
            emit_reverse,
            ReverseSpec(time == 0, row if row in BLOBS else 0),
            [data, lengths, result, fault, items, per_chunk, row, steps, data.shape[1]],
            reads=(data, lengths),
            writes=(result,),
            chunks=-(-items // per_chunk),
            detail=lambda: f"{items} rows of {row} bytes",
        )
        return [result]
