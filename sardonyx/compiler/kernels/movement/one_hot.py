"""OneHot: a value at each index along a new axis, another one elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.arguments import Read, Record, Size, Write, kernel
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.bound_step import Shifted
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.builder import Function
from sardonyx.compiler.llvm.types import I64, U64, Type, type_of
from sardonyx.compiler.llvm.walk import copy_blob, runs, share
from sardonyx.compiler.native.movement.copy import CHUNK_BYTES, contiguous, copy_into
from sardonyx.compiler.native.movement.slices import part_of, spread
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.expr import Expr, Input, floor, where
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.shape import axis_of


@dataclass(frozen=True)
class OneHotSpec:
    """Values of `blob` bytes, indices of `index` bits."""

    blob: int
    index: int


class Arguments(Record):
    indices = Read(lambda spec: Type("i", spec.index))
    value = Read()
    output = Write()
    items = Size()  # indices
    per_chunk = Size()
    depth = Size()  # places of the hot axis
    inner = Size()  # indices between two elements of it


@kernel(Arguments)
def emit_one_hot(k: Function, a: Arguments, spec: OneHotSpec) -> None:
    """The value that stands for "on" at each index; indices out of bounds switch nothing on."""
    indices, value = a.indices, a.value
    output = a.output
    depth, inner = a.depth, a.inner
    begin, end = share(k, a.items, a.per_chunk)
    with runs(k, begin, end, inner) as (outer, first, last), k.loop(first, last) as place:
        index = indices.load(outer * inner + place).to(I64)
        counted = index + k.select(index < 0, depth, 0)
        with k.when(counted.to(U64) < depth.to(U64)):
            copy_blob(value, output.offset(((outer * depth + counted) * inner + place) * spec.blob), spec.blob)


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

    def bind(self, binder: Binder, indices: Tensor, depth: Tensor, values: Tensor) -> Sequence[Tensor]:
        assert depth.array is not None
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
        per_chunk = CHUNK_BYTES // 16
        binder.step(
            emit_one_hot,
            OneHotSpec(item, indices.dtype.itemsize * 8),
            Arguments(
                indices=indices,
                value=Shifted(values, values.strides[0] * item),
                output=result,
                items=indices.size,
                per_chunk=per_chunk,
                depth=size,
                inner=math.prod(indices.shape[axis:]),
            ),
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
        whole = where(floor(x).equals(x), x.cast(np.dtype(np.int64)), size)
    return PointwiseKernel([whole], [dtype]).bind(binder, [indices])[0]
