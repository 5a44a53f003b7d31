"""Selections by value: NonMaxSuppression, NonZero, Compress, Unique, TopK."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.program import Kernel, Template
from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import UNKNOWN, Dim, Dims, Fact, tensor, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator, template_unless_text
from sardonyx.ops.shape import axis_of


@operator("NonMaxSuppression", since=10)
class NonMaxSuppression(Operator):
    """The boxes of each class that overlap no better one of it: rows (batch, class, box), best first.

    `boxes` is (batch, n, 4), `scores` (batch, classes, n). Two boxes overlap where intersection over union exceeds
    the threshold.
    """

    center_point_box: int = 0

    def run(
        self,
        boxes: Array,
        scores: Array,
        max_output_boxes_per_class: Array | None = None,
        iou_threshold: Array | None = None,
        score_threshold: Array | None = None,
    ) -> Sequence[Value]:
        checked_boxes(boxes.shape, scores.shape)
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

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return Template("non_max_suppression", {"centers": bool(self.center_point_box)}, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [tensor(ir.DataType.INT64, (unknown_dim(), 3))]


def checked_boxes(boxes: Sequence[int], scores: Sequence[int]) -> None:
    """ValueError unless the shapes are those of boxes and of their scores."""
    if len(boxes) != 3 or boxes[2] != 4 or len(scores) != 3 or boxes[1] != scores[2] or boxes[0] != scores[0]:
        raise ValueError(f"boxes must be (batch, n, 4) and scores (batch, classes, n), not {boxes} and {scores}")


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


@operator("NonZero", since=9)
class NonZero(Operator):
    """The coordinates of the elements that are not zero, in row order: (rank, count)."""

    def run(self, data: Array) -> Sequence[Value]:
        if data.ndim == 0:
            # A scalar counts as a vector of one element, as onnxruntime has it.
            return (np.zeros((1, int(np.count_nonzero(data))), np.int64),)
        return (np.stack(np.nonzero(data)).astype(np.int64, copy=False),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return template_unless_text("non_zero", {}, self.run, inputs)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        rank = (inputs[0] or UNKNOWN).rank
        return [tensor(ir.DataType.INT64, (unknown_dim() if rank is None else max(rank, 1), unknown_dim()))]


@operator("Compress", since=9)
class Compress(Operator):
    """The slices along an axis, or without one the elements in row order, where the condition holds.

    A condition that ends early holds nowhere behind its end; what reaches beyond the axis is ignored. As onnxruntime
    does, one of another rank is read in row order.
    """

    axis: int | None = None

    def run(self, data: Array, condition: Array) -> Sequence[Value]:
        source = data.reshape(-1) if self.axis is None else data
        axis = 0 if self.axis is None else axis_of(self.axis, data.ndim)
        return (source.take(np.nonzero(condition.reshape(-1)[: source.shape[axis]])[0], axis),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return template_unless_text("compress", {"axis": self.axis}, self.run, inputs)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data = inputs[0] or UNKNOWN
        if self.axis is None:
            return [Fact(data.type, (unknown_dim(),))]
        if data.shape is None:
            return [Fact(data.type, None)]
        return [Fact(data.type, _replaced(data.shape, self.axis, unknown_dim()))]


@operator("Unique", since=11)
class Unique(Operator):
    """The distinct elements, or slices along an axis: in ascending order, or unsorted in that of their first places.

    Further outputs: the first place of each, the number of each place's one, and how often each occurs. Slices are
    compared element by element in row order.
    """

    axis: int | None = None
    sorted: int = 1

    def run(self, data: Array) -> Sequence[Value]:
        axis = 0 if self.axis is None else axis_of(self.axis, data.ndim)
        source = data.reshape(-1) if self.axis is None else data
        places = source.shape[axis]
        keys = np.unique(source, return_inverse=True)[1].reshape(source.shape) if source.ndim > 1 else source
        if source.ndim > 1:
            # Ranks stand for the elements, so that slices of any type, strings too, compare as rows of integers.
            keys = np.moveaxis(keys, axis, 0).reshape(places, source.size // places if places else 0)
        if keys.size:
            _, first, inverse, counts = np.unique(
                keys, return_index=True, return_inverse=True, return_counts=True, axis=0 if keys.ndim > 1 else None
            )
        else:
            # Slices without elements are all equal.
            count = min(places, 1)
            first, inverse = np.zeros(count, np.int64), np.zeros(places, np.int64)
            counts = np.full(count, places, np.int64)
        inverse = inverse.reshape(-1)
        if not self.sorted:
            order = np.argsort(first)
            number = np.empty_like(order)
            number[order] = np.arange(order.size)
            first, inverse, counts = first[order], number[inverse], counts[order]
        return source.take(first, axis), *(part.astype(np.int64, copy=False) for part in (first, inverse, counts))

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parameters = {"axis": self.axis, "sorted": bool(self.sorted)}
        return template_unless_text("unique", parameters, self.run, inputs)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data = inputs[0] or UNKNOWN
        count = unknown_dim()
        shape: Dims | None = (count,)
        places: Dim = unknown_dim()
        if data.shape is None:
            shape = shape if self.axis is None else None
        elif self.axis is None:
            places = dims.product(data.shape)
        else:
            shape = _replaced(data.shape, self.axis, count)
            places = data.shape[axis_of(self.axis, len(data.shape))]
        whole = ir.DataType.INT64
        return [Fact(data.type, shape), tensor(whole, (count,)), tensor(whole, (places,)), tensor(whole, (count,))]


class _TopK(Operator):
    """The k largest (or smallest) elements along an axis with their places, best first; of equals the first ones."""

    axis: int = -1

    def lowered(self, k: int | None, largest: bool) -> Kernel:
        """The kernel for k elements, of the number that the second input holds where `k` is None."""
        return Template("top_k", {"axis": self.axis, "k": k, "largest": largest}, self.run)

    def best(self, data: Array, k: int, largest: bool) -> Sequence[Value]:
        axis = axis_of(self.axis, data.ndim)
        size = data.shape[axis]
        if k < 0:
            raise ValueError(f"value of k must not be negative, got {k}")
        if k > size:
            raise ValueError(f"k argument [{k}] should not be greater than specified axis dim value [{size}]")
        rows = np.moveaxis(data, axis, -1)
        # What is compared: floats of NumPy's own, since others have neither a fast sort nor a partition.
        keys = np.ascontiguousarray(rows.astype(working_dtype(data.dtype), copy=False))
        keys = keys.reshape(math.prod(rows.shape[:-1]), size)
        places = _chosen(keys, k, largest) if 0 < 4 * k <= size else None
        if places is None:
            order = _ordered(keys, largest)[:, :k]
        else:
            order = np.take_along_axis(places, _ordered(np.take_along_axis(keys, places, 1), largest), 1)
        order = np.moveaxis(order.reshape(*rows.shape[:-1], k), -1, axis)
        return np.take_along_axis(data, order, axis), order.astype(np.int64, copy=False)

    def inferred(self, data: Fact, k: Dim) -> Sequence[Fact]:
        if data.shape is None:
            return [Fact(data.type, None), tensor(ir.DataType.INT64, None)]
        axis = axis_of(self.axis, len(data.shape))
        if isinstance(k, int):
            size = data.shape[axis]
            if k < 0 or (isinstance(size, int) and k > size):
                raise ValueError(f"k {k} lies outside [0, {size}], the size of axis {axis}")
        shape = _replaced(data.shape, axis, k)
        return [Fact(data.type, shape), tensor(ir.DataType.INT64, shape)]


@operator("TopK")
class AttributeTopK(_TopK):
    """TopK with k as an attribute."""

    k: int

    def run(self, data: Array) -> Sequence[Value]:
        return self.best(data, self.k, True)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.lowered(self.k, True)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return self.inferred(inputs[0] or UNKNOWN, self.k)


@operator("TopK", since=10)
class TopK(_TopK):
    """TopK with k as an input of one element; results are in order whatever `sorted` says."""

    largest: int = 1
    sorted: int = 1

    def run(self, data: Array, k: Array) -> Sequence[Value]:
        return self.best(data, checked_k(k), bool(self.largest))

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.lowered(None, bool(self.largest))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        k = inputs[1] or UNKNOWN
        numbers = k.integers() or k.elements
        return self.inferred(inputs[0] or UNKNOWN, numbers[0] if numbers else unknown_dim())


def checked_k(k: Array) -> int:
    """The number that the second input of TopK holds; ValueError where it is none."""
    if k.shape != (1,):
        raise ValueError(f"k tensor should be a 1D tensor of size 1, not of shape {list(k.shape)}")
    return int(k[0])


def _ordered(keys: Array, largest: bool) -> Array:
    """The places of each row's elements from best to worst, equal ones in their order."""
    if not largest:
        return np.argsort(keys, axis=1, kind="stable")
    # A stable ascending sort of the reversed row, read backwards.
    return np.asarray(keys.shape[1] - 1 - np.argsort(keys[:, ::-1], axis=1, kind="stable")[:, ::-1])


def _chosen(keys: Array, k: int, largest: bool) -> Array | None:
    """The places of each row's best k elements, in their order; None where NaN, which equals nothing, is in the way."""
    size = keys.shape[1]
    last = size - k if largest else k - 1
    limit = np.partition(keys, last, axis=1)[:, last : last + 1]
    if keys.dtype.kind == "f" and np.isnan(keys.sum()) and np.isnan(keys).any():
        return None
    chosen = keys > limit if largest else keys < limit
    equal = keys == limit
    missing = k - np.count_nonzero(chosen, axis=1)
    chosen |= equal & (np.cumsum(equal, axis=1) <= missing[:, None])
    return np.nonzero(chosen)[1].reshape(-1, k)


def _replaced(shape: Dims, axis: int, size: Dim) -> Dims:
    """A shape with another size on one axis."""
    place = axis_of(axis, len(shape))
    return (*shape[:place], size, *shape[place + 1 :])
