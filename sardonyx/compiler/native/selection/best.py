"""TopK: the best elements along an axis, with their places."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Argument, Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.selection.best import BestSpec, emit_best, emit_single_best, room_for
from sardonyx.compiler.llvm.kernels.selection.ranks import Ranking
from sardonyx.compiler.llvm.types import type_of
from sardonyx.compiler.native.movement.copy import CHUNK_BYTES, contiguous
from sardonyx.compiler.native.rows.rows import permuted
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.selection import checked_k
from sardonyx.ops.shape import axis_of


@template("top_k")
class TopK(NativeKernel):
    """The k best elements of the first input along ``axis``, best first, and their places (int64); of equals the first
    ones. k is the parameter ``k``, or the one element of the second input; ``largest`` says what is best.
    """

    known_inputs = (1,)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        data = inputs[0]
        known = data is not None and data.dtype is not None and type_of(numpy_dtype(data.dtype)) is not None
        return None if known else "no kernel compares elements of this type"

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data, axis = inputs[0], self.parameters["axis"]
        assert data is not None
        best = self.parameters["k"]
        if best is None:
            numbers = inputs[1]
            assert numbers is not None
            assert numbers.array is not None
            best = checked_k(numbers.array)
        axis = axis_of(axis, len(data.shape))
        size = data.shape[axis]
        if not 0 <= best <= size:
            raise ValueError(f"k argument [{best}] should lie in [0, {size}], the size of axis {axis}")
        others = [place for place in range(len(data.shape)) if place != axis]
        rows = contiguous(binder, permuted(data, [*others, axis]))
        shape = (*(data.shape[place] for place in others), best)
        values, places = binder.new(data.dtype, shape), binder.new(np.dtype(np.int64), shape)
        if values.size:
            _select(binder, rows, values, places, bool(self.parameters["largest"]))
        back = [*range(axis), len(others), *range(axis, len(others))]
        return [permuted(values, back), permuted(places, back)]


def _select(binder: Binder, rows: Tensor, values: Tensor, places: Tensor, largest: bool) -> None:
    """Add the step for rows along the last axis, contiguous."""
    type_ = type_of(rows.dtype)
    assert type_ is not None
    ranking = Ranking(type_, largest)
    size, best = rows.shape[-1], values.shape[-1]
    count = math.prod(rows.shape[:-1])
    per_chunk = max(1, CHUNK_BYTES // (size * rows.dtype.itemsize))
    operands: list[Argument] = [rows, values, places, count, per_chunk, size]
    if best == 1:
        binder.step(
            emit_single_best,
            BestSpec(ranking),
            operands,
            reads=(rows,),
            writes=(values, places),
            chunks=-(-count // per_chunk),
            flops=float(rows.size),
            detail=f"{count} x {size}, the best one",
        )
        return
    lanes = binder.target.lanes(ranking.rank)
    room = room_for(best, size, lanes)
    binder.step(
        emit_best,
        BestSpec(ranking),
        [*operands, best, room - lanes],
        reads=(rows,),
        writes=(values, places),
        chunks=-(-count // per_chunk),
        scratch=room * ranking.entry.nbytes + ranking.sorting_bytes(room),
        flops=float(rows.size),
        detail=f"{count} x {size}, best {best}",
    )
