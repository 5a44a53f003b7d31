"""RoiAlign and MaxRoiPool over maps whose channels lie together: a copy of them where they do not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from sardonyx.compiler.binding import Binder, Tensor, float_word
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.sampling.regions import (
    AlignSpec,
    RegionMaximumSpec,
    emit_region_maximum,
    emit_roi_align,
)
from sardonyx.compiler.llvm.types import Type, type_of
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.compiler.native.rows.rows import elements_per_chunk
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.regions import no_such_item

# What a sample costs beside its channels, in elements.
_OVERHEAD = 32


class RegionKernel(NativeKernel):
    """What both kernels share. Parameters: ``rows``, ``columns`` of bins, and ``scale`` of the regions."""

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        for fact in inputs[:2]:
            type_ = None if fact is None or fact.dtype is None else type_of(numpy_dtype(fact.dtype))
            if type_ is None or not type_.is_float:
                return "no kernel pools elements of this type"
        return None

    def _described(self, items: int) -> Callable[[int], Exception]:
        return lambda item: no_such_item(item, items)

    def _bins(
        self, binder: Binder, x: Tensor, regions: Tensor, samples: int, size: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor, list[Any], dict[str, Any]]:
        """The maps as they are read; the output, contiguous [regions, rows, columns, channels]; the first words of
        the arguments; and how the work is cut. A bin has so many `samples`. `size`, rows and columns, is that of the
        parameters if it is not given.
        """
        last = transposed(x, (0, 2, 3, 1))
        if last.strides[-1] != 1:
            last = contiguous(binder, last)
        batch, height, width, channels = last.shape
        rows, columns = size or (self.parameters["rows"], self.parameters["columns"])
        made = binder.new(x.dtype, (regions.shape[0], rows, columns, channels))
        bins = math.prod(made.shape[:-1])
        per_chunk = elements_per_chunk(bins, channels * x.dtype.itemsize, 8 * samples * (channels + _OVERHEAD))
        words = [
            *(last, regions, made, binder.fault(self._described(batch)), bins, per_chunk, rows, columns),
            *(batch, height, width, channels, *last.strides[:3]),
        ]
        return last, made, words, {"writes": (made,), "chunks": -(-bins // per_chunk)}


@template("roi_align")
class RoiAlignKernel(RegionKernel):
    """Samples in each bin of each region, averaged. Parameters beside the shared ones: ``maximum`` instead of the
    average, ``half_pixel``, ``samples`` along a bin (0: as many as it is long).
    """

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        x, regions, indices = inputs
        assert x is not None
        assert regions is not None
        assert indices is not None
        if len(x.shape) != 4 or regions.shape[1:] != (4,) or indices.shape != regions.shape[:1]:
            raise ValueError(f"shapes {x.shape}, {regions.shape}, {indices.shape} are not (N,C,H,W), (R,4), (R,)")
        samples = self.parameters["samples"]
        regions, indices = contiguous(binder, regions), contiguous(binder, indices)
        last, made, words, work = self._bins(binder, x, regions, max(1, samples) ** 2)
        spec = AlignSpec(
            type_named(x),
            type_named(regions),
            indices.dtype.itemsize * 8,
            self.parameters["maximum"],
            self.parameters["half_pixel"],
        )
        if made.size and last.size:
            binder.step(
                emit_roi_align,
                spec,
                [*words, indices, samples, float_word(self.parameters["scale"])],
                reads=(last, regions, indices),
                flops=8.0 * made.size * max(1, samples) ** 2,
                detail=f"{made.shape[0]} regions, {made.shape[-1]} channels",
                **work,
            )
        elif made.size:
            raise ValueError(f"maps of the shape {x.shape} have no elements to sample")
        return [transposed(made, (0, 3, 1, 2))]


@template("max_roi_pool")
class MaxRoiPoolKernel(RegionKernel):
    """The maximum of each bin of each region."""

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        x, regions = inputs
        assert x is not None
        assert regions is not None
        if len(x.shape) != 4 or regions.shape[1:] != (5,):
            raise ValueError(f"shapes {x.shape} and {regions.shape} are not (N, C, H, W) and (R, 5)")
        regions = contiguous(binder, regions)
        last, made, words, work = self._bins(binder, x, regions, 1)
        if made.size:
            binder.step(
                emit_region_maximum,
                RegionMaximumSpec(type_named(x)),
                [*words, float_word(self.parameters["scale"])],
                reads=(last, regions),
                flops=float(last.size),
                detail=f"{made.shape[0]} regions, {made.shape[-1]} channels",
                **work,
            )
        return [transposed(made, (0, 3, 1, 2))]


def type_named(tensor: Tensor) -> Type:
    found = type_of(tensor.dtype)
    assert found is not None
    return found
