"""CropAndResize over maps whose channels lie together: a copy of them where they do not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.compiler.binding import Binder, Tensor, float_word
from sardonyx.compiler.kernels.template import template
from sardonyx.compiler.llvm.kernels.sampling.crops import CropSpec, emit_crops
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.compiler.native.sampling.regions import RegionKernel, type_named
from sardonyx.ops.framework.facts import Fact

_INDICES = (ir.DataType.INT32, ir.DataType.INT64)


@template("crop_and_resize")
class CropAndResizeKernel(RegionKernel):
    """Boxes of maps, sampled on a grid whose size is the last input. Parameters: ``nearest``, ``outside``."""

    known_inputs = (3,)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        indices = inputs[2]
        if indices is None or indices.dtype not in _INDICES:
            return "indices of items are int32 or int64"
        return super().declines(inputs, outputs)

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        x, regions, indices, size = inputs
        assert x is not None
        assert regions is not None
        assert indices is not None
        assert size is not None
        assert size.array is not None
        if len(x.shape) != 4 or regions.shape[1:] != (4,) or indices.shape != regions.shape[:1] or size.size != 2:
            raise ValueError(
                f"'X' {x.shape}, 'rois' {regions.shape}, 'batch_indices' {indices.shape} and 'crop_size' {size.shape} "
                f"must be NCHW, (n, 4), (n) and (2)"
            )
        rows, columns = (int(count) for count in size.array.reshape(-1))
        if rows <= 0 or columns <= 0:
            raise ValueError(f"'crop_size' must be positive, not {rows} x {columns}")
        regions, indices = contiguous(binder, regions), contiguous(binder, indices)
        last, made, words, work = self._bins(binder, x, regions, 1, (rows, columns))
        if made.size and not math.prod(last.shape):
            raise ValueError(f"maps of the shape {x.shape} have no elements to sample")
        if made.size:
            spec = CropSpec(
                type_named(x), type_named(regions), indices.dtype.itemsize * 8, bool(self.parameters["nearest"])
            )
            binder.step(
                emit_crops,
                spec,
                [*words, indices, float_word(self.parameters["outside"])],
                reads=(last, regions, indices),
                flops=8.0 * made.size,
                detail=f"{made.shape[0]} boxes, {made.shape[-1]} channels",
                **work,
            )
        return [transposed(made, (0, 3, 1, 2))]
