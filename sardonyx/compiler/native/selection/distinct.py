"""Unique."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.llvm.kernels.selection.distinct import DistinctSpec, emit_distinct
from sardonyx.compiler.llvm.types import type_of
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.selection.positions import nothing
from sardonyx.compiler.native.template import NativeKernel, template
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact

_INT64 = np.dtype(np.int64)


@template("unique")
class Unique(NativeKernel):
    """The distinct elements, ascending if ``sorted``, else by their first places; further the first place of each, the
    number of each place's element, and how often each occurs.
    """

    counted_axes = (0, 0, None, 0)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        data = inputs[0]
        if data is None or data.dtype is None or type_of(numpy_dtype(data.dtype)) is None:
            return "no kernel compares elements of this type"
        if self.parameters["axis"] is not None and data.rank != 1:
            return "slices along an axis are compared in NumPy"
        return None

    def bind(self, binder: Binder, inputs: Sequence[Tensor | None]) -> Sequence[Tensor]:
        data = inputs[0]
        assert data is not None
        data, size = contiguous(binder, data), data.size
        values, numbers = binder.new(data.dtype, (size,)), binder.new(_INT64, (size,))
        first, counts = binder.new(_INT64, (size,)), binder.new(_INT64, (size,))
        if size == 0:
            return [values, first, numbers, counts, nothing(binder)]
        type_ = type_of(data.dtype)
        assert type_ is not None
        spec = DistinctSpec(type_, bool(self.parameters["sorted"]))
        whole = binder.new(_INT64, (1,))
        entries = binder.new(np.dtype(np.uint8), (size * spec.ranking.entry.nbytes,))
        room = binder.new(np.dtype(np.uint8), (spec.ranking.sorting_bytes(size),))
        binder.step(
            emit_distinct,
            spec,
            [data, entries, room, size, values, first, numbers, counts, whole],
            reads=(data,),
            writes=(values, first, numbers, counts, whole, entries, room),
            flops=float(size),
            detail=f"{size} elements",
        )
        return [values, first, numbers, counts, whole]
