"""Selections whose size the data decide: NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import Fact, tensor, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator


@operator("NonMaxSuppression", since=10)
class NonMaxSuppression(Operator):
    """The boxes of each class that overlap no better one of it: rows (batch, class, box), best first.

    `boxes` is (batch, n, 4), `scores` (batch, classes, n). Two boxes overlap where intersection over union exceeds
    the threshold.
    """

    host_reason = "its output's size depends on data"
    center_point_box: int = 0

    def run(
        self,
        boxes: Array,
        scores: Array,
        max_output_boxes_per_class: Array | None = None,
        iou_threshold: Array | None = None,
        score_threshold: Array | None = None,
    ) -> Sequence[Value]:
        if boxes.ndim != 3 or boxes.shape[2] != 4 or scores.ndim != 3 or boxes.shape[1] != scores.shape[2]:
            raise ValueError(
                f"boxes must be (batch, n, 4) and scores (batch, classes, n), not {boxes.shape} and {scores.shape}"
            )
        limit = 0 if max_output_boxes_per_class is None else int(max_output_boxes_per_class.reshape(-1)[0])
        overlap = 0.0 if iou_threshold is None else float(iou_threshold.reshape(-1)[0])
        if not 0 <= overlap <= 1:
            raise ValueError(f"iou_threshold must lie in [0, 1], not {overlap}")
        least = None if score_threshold is None else float(score_threshold.reshape(-1)[0])
        chosen: list[tuple[int, int, int]] = []
        for batch in range(scores.shape[0] if limit > 0 else 0):
            corners = self._corners(boxes[batch].astype(np.float32))
            for category, row in enumerate(scores[batch]):
                kept = _suppressed(corners, row, limit, overlap, least)
                chosen.extend((batch, category, index) for index in kept)
        return (np.array(chosen, np.int64).reshape(-1, 3),)

    def _corners(self, boxes: Array) -> Array:
        """Columns low y, low x, high y, high x."""
        if self.center_point_box:
            x, y, width, height = boxes.T
            return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], axis=1)
        low = np.minimum(boxes[:, :2], boxes[:, 2:])
        return np.concatenate([low, np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [tensor(ir.DataType.INT64, (unknown_dim(), 3))]


def _suppressed(corners: Array, scores: Array, limit: int, overlap: float, least: float | None) -> list[int]:
    """Indices of the boxes to keep, best first: each one removes those that it overlaps."""
    candidates = np.arange(scores.size) if least is None else np.nonzero(scores > least)[0]
    order = candidates[np.argsort(-scores[candidates], kind="stable")]
    areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    kept: list[int] = []
    while order.size and len(kept) < limit:
        best, order = order[0], order[1:]
        kept.append(int(best))
        low = np.maximum(corners[best, :2], corners[order, :2])
        high = np.minimum(corners[best, 2:], corners[order, 2:])
        shared = np.prod(np.maximum(high - low, 0), axis=1)
        union = areas[best] + areas[order] - shared
        ratio = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
        order = order[ratio <= overlap]
    return kept
