"""GridSample: vectors over the channels of a place where they lie together, or are many; else over the places."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.sampling.grid import GridSpec, emit_grid_sample
from sardonyx.compiler.llvm.kernels.sampling.taps import Neighbours, Padding, TapsSpec
from sardonyx.compiler.llvm.types import BOOL, F32, F64, Type, type_of
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.compiler.native.rows.rows import elements_per_chunk
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact

# Spatial dimensions for which the combinations of neighbours are written out.
_MOST_DIMENSIONS = 3
# Maps may have this many elements: places in them are numbers of 32 bits.
_MOST_ELEMENTS = 1 << 31


def _working(*types: Type) -> Type:
    """What is computed with: F64 where an element is that, or an integer (as the operator's meaning has it)."""
    return F64 if any(one == F64 or not one.is_float for one in types) else F32


@template("grid_sample")
class GridSample(NativeKernel):
    """Parameters: ``neighbours`` (nearest, linear or cubic), ``padding`` (zeros, border or reflection), ``aligned``."""

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        for fact in inputs:
            type_ = None if fact is None or fact.dtype is None else type_of(numpy_dtype(fact.dtype))
            if fact is None or type_ is None or type_ == BOOL:
                return "no kernel interpolates elements of this type"
            if fact.rank is not None and fact.rank > _MOST_DIMENSIONS + 2:
                return f"more than {_MOST_DIMENSIONS} spatial dimensions"
        return None

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        x, grid = inputs[0], inputs[1]
        assert x is not None
        assert grid is not None
        rank = len(x.shape) - 2
        if rank < 1 or len(grid.shape) != rank + 2 or grid.shape[0] != x.shape[0] or grid.shape[-1] != rank:
            raise ValueError(f"a grid of shape {grid.shape} does not fit X {x.shape}: expected (N, ..., {rank})")
        if math.prod(x.shape[1:]) >= _MOST_ELEMENTS or math.prod(grid.shape[1:]) >= _MOST_ELEMENTS:
            raise ValueError(f"X {x.shape} or the grid {grid.shape} has too many elements for an item of the batch")
        batch, channels, *size = x.shape
        places, count = grid.shape[1:-1], math.prod(grid.shape[1:-1])
        type_, grid_type = type_of(x.dtype), type_of(grid.dtype)
        assert type_ is not None
        assert grid_type is not None
        working = _working(type_, grid_type)
        lanes = binder.target.lanes(working)
        order = (0, *range(2, rank + 2), 1)
        last = transposed(x, order)
        is_last = x.strides[1] == 1 and channels > 1
        by_channels = channels >= lanes // 2 if is_last else channels >= lanes and 8 * count >= math.prod(size)
        shape = (batch, *places, channels) if by_channels else (batch, channels, *places)
        made = binder.new(x.dtype, shape)
        result = transposed(made, (0, rank + 1, *range(1, rank + 1))) if by_channels else made
        if made.size == 0:
            return [result]
        if x.size == 0:
            raise ValueError(f"X {x.shape} has no elements to sample")
        if by_channels and last.strides[-1] != 1:
            last = contiguous(binder, last)
        grid = contiguous(binder, grid)
        taps = TapsSpec(*self._modes(), bool(self.parameters["aligned"]))
        terms = taps.count**rank
        chunk = min(count, elements_per_chunk(batch * count, channels * x.dtype.itemsize * 2, 4 * terms * channels))
        chunks = -(-count // chunk)
        steps = (count * channels, 1, channels) if by_channels else (count * channels, count, 1)
        binder.step(
            emit_grid_sample,
            GridSpec(type_, grid_type, working, rank, taps, by_channels),
            [
                *(last, grid, made, count, chunk, chunks, channels, last.strides[0], last.strides[-1]),
                *(number for pair in zip(size, last.strides[1:-1], strict=True) for number in pair),
                *steps,
            ],
            reads=(last, grid),
            writes=(made,),
            chunks=batch * chunks,
            flops=2.0 * made.size * terms,
            detail=f"{batch * count} places, {channels} channels, {terms} neighbours of each",
        )
        return [result]

    def _modes(self) -> tuple[Neighbours, Padding]:
        return self.parameters["neighbours"], self.parameters["padding"]
