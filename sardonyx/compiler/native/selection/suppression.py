"""NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.selection.suppression import (
    SCORES,
    SuppressionSpec,
    TriplesSpec,
    emit_suppression,
    emit_triples,
)
from sardonyx.compiler.llvm.types import F32
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.selection.positions import nothing
from sardonyx.ops.selection import checked_boxes

_INT64 = np.dtype(np.int64)


@template("non_max_suppression")
class NonMaxSuppression(NativeKernel):
    """Rows (batch, class, box) of boxes that overlap no better one of their class; ``centers`` says how boxes are
    given. How many of a class are kept must be known; the thresholds are read in the run.
    """

    known_inputs = (2,)
    counted_axes = (0,)

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        boxes, scores, limit, overlap, least = (*inputs, None, None, None)[:5]
        assert boxes is not None
        assert scores is not None
        checked_boxes(boxes.shape, scores.shape)
        batches, classes, count = scores.shape
        groups = batches * classes
        asked = 0 if limit is None or limit.array is None else int(limit.array.reshape(-1)[0])
        most = min(max(asked, 0), count)
        if most * groups == 0:
            return [binder.new(_INT64, (0, 3)), nothing(binder)]
        boxes, scores = contiguous(binder, boxes), contiguous(binder, scores)
        zero = binder.constant(np.zeros(1, np.float32))
        overlap = zero if overlap is None else overlap
        kept, numbers = binder.new(_INT64, (groups, most)), binder.new(_INT64, (groups,))
        lanes = binder.target.lanes(F32)
        room = (count + lanes) * SCORES.entry.nbytes
        fault = binder.fault(lambda _: ValueError("iou_threshold must lie in [0, 1]"))
        spec = SuppressionSpec(bool(self.parameters["centers"]), least is not None)
        read = [boxes, scores, overlap, *([] if least is None else [least])]
        binder.step(
            emit_suppression,
            spec,
            [boxes, scores, overlap, zero if least is None else least, fault, kept, numbers, count, classes, most],
            reads=read,
            writes=(kept, numbers),
            chunks=groups,
            scratch=room + 20 * (most + lanes) + 64 + SCORES.sorting_bytes(count),
            flops=float(scores.size),
            detail=f"{groups} x {count} boxes",
        )
        rows, total = binder.new(_INT64, (groups * most, 3)), binder.new(_INT64, (1,))
        binder.step(
            emit_triples,
            TriplesSpec(),
            [kept, numbers, rows, total, classes, groups, most],
            reads=(kept, numbers),
            writes=(rows, total),
            nbytes=float(numbers.nbytes),
        )
        return [rows, total]
