"""Unique."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.selection.distinct import DistinctSpec, emit_distinct, emit_distinct_slices
from sardonyx.compiler.llvm.types import type_of
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.selection.positions import nothing, slices_at
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.shape import axis_of

_INT64 = np.dtype(np.int64)


@template("unique")
class Unique(NativeKernel):
    """The distinct elements, or slices along ``axis``: ascending if ``sorted``, else by their first places; further the
    first place of each, the number of each place's one, and how often each occurs.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.counted_axes = (parameters["axis"] or 0, 0, None, 0)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        data = inputs[0]
        if data is None or data.dtype is None or type_of(numpy_dtype(data.dtype)) is None:
            return "no kernel compares elements of this type"
        return None

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data = inputs[0]
        assert data is not None
        data = contiguous(binder, data)
        if self.parameters["axis"] is not None:
            return self._slices(binder, data, axis_of(self.parameters["axis"], len(data.shape)))
        size = data.size
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

    def _slices(self, binder: Binder, data: Tensor, axis: int) -> list[Tensor]:
        """The distinct slices of contiguous data."""
        size = data.shape[axis]
        numbers, first, counts, order, other = (binder.new(_INT64, (size,)) for _ in range(5))
        if size == 0:
            return [binder.new(data.dtype, data.shape), first, numbers, counts, nothing(binder)]
        type_ = type_of(data.dtype)
        assert type_ is not None
        spec = DistinctSpec(type_, bool(self.parameters["sorted"]))
        whole = binder.new(_INT64, (1,))
        entries = binder.new(np.dtype(np.uint8), (size * spec.ranking.entry.nbytes,))
        room = binder.new(np.dtype(np.uint8), (spec.ranking.sorting_bytes(size),))
        sections, inner = math.prod(data.shape[:axis]), math.prod(data.shape[axis + 1 :])
        results = [first, numbers, counts, whole]
        binder.step(
            emit_distinct_slices,
            spec,
            [data, entries, room, size, sections, inner, order, other, *results],
            reads=(data,),
            writes=(*results, entries, room, order, other),
            flops=float(data.size),
            detail=f"{size} slices of {sections * inner} elements",
        )
        return [slices_at(binder, data, axis, first, whole), first, numbers, counts, whole]
