"""CumSum and CumProd."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sardonyx.compiler.binding import Address, Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.rows.cumulative import CumulativeSpec, emit_cumulative
from sardonyx.compiler.llvm.types import BOOL, type_of
from sardonyx.compiler.native.movement.copy import CHUNK_BYTES, contiguous
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.shape import axis_of

# Columns whose totals a thread keeps at once: they stay in the first cache.
_BLOCK = 512


@template("cumulative")
class Cumulative(NativeKernel):
    """Totals of the first input along the axis that the second one holds: sums, or products where ``product`` is set;
    without the element itself if ``exclusive``, from the end if ``reverse``.
    """

    known_inputs = (1,)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        data = inputs[0]
        type_ = None if data is None or data.dtype is None else type_of(numpy_dtype(data.dtype))
        if type_ is None or type_ == BOOL:
            return "no kernel adds elements of this type"
        return None

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data, axes = inputs
        assert data is not None
        assert axes is not None
        assert axes.array is not None
        axis = axis_of(int(axes.array.reshape(())), len(data.shape))
        data = contiguous(binder, data)
        result = binder.new(data.dtype, data.shape)
        if result.size == 0:
            return [result]
        type_ = type_of(data.dtype)
        assert type_ is not None
        spec = CumulativeSpec(type_, bool(self.parameters["product"]), bool(self.parameters["exclusive"]))
        length, columns = data.shape[axis], math.prod(data.shape[axis + 1 :])
        item = data.dtype.itemsize
        step, start = columns * item, 0
        if self.parameters["reverse"]:
            step, start = -step, (length - 1) * columns * item
        block = min(columns, _BLOCK)
        blocks = -(-columns // block)
        items = math.prod(data.shape[:axis]) * blocks
        per_chunk = max(1, CHUNK_BYTES // (length * block * item))
        binder.step(
            emit_cumulative,
            spec,
            [
                *(Address(data.buffer, data.offset + start), Address(result.buffer, start), items, per_chunk),
                *(step, length, columns, block, blocks, length * columns * item),
            ],
            scratch=block * spec.working.nbytes,
            reads=(data,),
            writes=(result,),
            chunks=-(-items // per_chunk),
            flops=1.0 * data.size,  # a float of a size would fix it in formulas
            detail=lambda: f"{data.size // length} x {length}",
        )
        return [result]
