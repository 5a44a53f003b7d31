"""Kernels whose results have sizes that the data decide, alone and as steps of a session."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import parser

import sardonyx
from sardonyx.compiler.kernels.selection.distinct import Unique
from sardonyx.compiler.kernels.selection.positions import Compress, NonZero
from sardonyx.compiler.kernels.selection.suppression import NonMaxSuppression
from sardonyx.compiler.kernels.template import NativeKernel
from sardonyx.ops.selection import _suppressed
from tests.compiler.steps import VARIANTS, Array, bind


def _counted(kernel: NativeKernel, arrays: list[Array | None], variant: str = "", known: tuple[int, ...] = ()) -> Any:
    """The written parts of a kernel's outputs."""
    binder, memory, results = bind(kernel, arrays, variant, known=known)
    faults = memory.run(binder, one_by_one=True)
    assert not faults, faults
    *rooms, count = [memory.read(result).copy() for result in results if result is not None]
    axes = kernel.counted_axes
    assert axes is not None
    parts = []
    for room, axis in zip(rooms, axes, strict=True):
        shape = list(room.shape)
        if axis is not None:
            shape[axis] = int(count[0])
        parts.append(room.reshape(-1)[: int(np.prod(shape))].reshape(shape))
    return parts


@pytest.mark.parametrize("variant", VARIANTS)
def test_places_of_what_is_not_zero(variant: str) -> None:
    rng = np.random.default_rng(1)
    for dtype in (np.float32, np.bool_, np.int64, np.float16, ml_dtypes.bfloat16):
        for shape in ((), (1,), (77,), (5, 0), (3, 7, 131), (20000,), (2, 17000)):
            data = np.asarray(rng.integers(-1, 2, shape)).astype(dtype)
            if data.dtype.kind == "f":
                data = np.where(rng.random(shape) < 0.1, np.nan, np.where(data == 0, -0.0, data)).astype(dtype)
            (found,) = _counted(NonZero({}), [data], variant)
            expected = np.stack(np.nonzero(np.atleast_1d(data.astype(np.float64) != 0)))
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_compressed_slices(variant: str) -> None:
    rng = np.random.default_rng(2)
    for dtype in (np.float32, np.int8, np.float16):
        data = rng.integers(0, 100, (3, 40, 5)).astype(dtype)
        for axis, size in ((0, 3), (1, 40), (-1, 5), (None, 600), (1, 33), (1, 50), (2, 0)):
            condition = rng.random(size) < 0.5
            (found,) = _counted(Compress({"axis": axis}), [data, condition], variant)
            source, along = (data.reshape(-1), 0) if axis is None else (data, axis)
            places = np.nonzero(condition[: source.shape[along]])[0]
            np.testing.assert_array_equal(found, source.take(places, along))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("in_order", [True, False])
def test_distinct_elements(variant: str, in_order: bool) -> None:
    rng = np.random.default_rng(3)
    for dtype in (np.float32, np.int64, np.float64, np.uint8):
        for size in (0, 1, 30, 3000):
            data = rng.integers(0, 200, size).astype(dtype)
            if data.dtype.kind == "f":
                data[rng.random(size) < 0.2] = np.nan
                data = np.where(data == 3, -0.0, np.where(data == 4, 0.0, data)).astype(dtype)
            found = _counted(Unique({"axis": None, "sorted": in_order}), [data], variant)
            values, first, inverse, counts = np.unique(data, return_index=True, return_inverse=True, return_counts=True)
            if not in_order:
                order = np.argsort(first)
                number = np.empty_like(order)
                number[order] = np.arange(order.size)
                values, first, inverse, counts = values[order], first[order], number[inverse], counts[order]
            for one, expected in zip(found, (data[first], first, inverse, counts), strict=True):
                np.testing.assert_array_equal(one, expected)
            assert found[0].size == values.size


def _distinct_slices(data: Array, axis: int, in_order: bool) -> list[Array]:
    """Unique along an axis by Python's order of tuples; NaN is above everything and equals itself."""
    rows = [part.astype(np.float64).reshape(-1) for part in np.moveaxis(data, axis, 0)]
    keys = [tuple((1, 0) if np.isnan(x) else (0, x) for x in row.tolist()) for row in rows]
    firsts: dict[Any, int] = {}
    for place, key in enumerate(keys):
        firsts.setdefault(key, place)
    chosen = sorted(firsts) if in_order else list(firsts)
    numbers = {key: number for number, key in enumerate(chosen)}
    first = np.array([firsts[key] for key in chosen], np.int64)
    inverse = np.array([numbers[key] for key in keys], np.int64)
    return [data.take(first, axis), first, inverse, np.bincount(inverse, minlength=len(chosen))]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("in_order", [True, False])
def test_distinct_slices(variant: str, in_order: bool) -> None:
    rng = np.random.default_rng(5)
    for dtype in (np.float32, np.int64, np.int8, np.float16, ml_dtypes.bfloat16, np.bool_):
        for shape, axis in (
            ((300, 2), 0),
            ((2, 70, 2), 1),
            ((3, 50), -1),
            ((40, 0), 0),
            ((0, 3), 0),
            ((5,), 0),
            ((1, 3), 0),
        ):
            data = rng.integers(-2, 2, shape).astype(np.float32)
            if np.dtype(dtype).kind not in "iub":
                data[rng.random(shape) < 0.1] = np.nan
                data[rng.random(shape) < 0.1] = -0.0
            data = data.astype(dtype)
            found = _counted(Unique({"axis": axis, "sorted": in_order}), [data], variant)
            for one, expected in zip(found, _distinct_slices(data, axis, in_order), strict=True):
                np.testing.assert_array_equal(one.astype(np.float64), expected.astype(np.float64))


def _kept(boxes: Array, scores: Array, limit: int, overlap: float, least: float | None, centers: bool) -> Array:
    """Greedy suppression in float64."""
    rows = []
    for batch in range(scores.shape[0]):
        corners = boxes[batch].astype(np.float64)
        if centers:
            x, y, width, height = corners.T
            corners = np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], 1)
        else:
            low = np.minimum(corners[:, :2], corners[:, 2:])
            corners = np.concatenate([low, np.maximum(corners[:, :2], corners[:, 2:])], 1)
        for category in range(scores.shape[1]):
            kept = _suppressed(corners, scores[batch, category], limit, overlap, least)
            rows += [(batch, category, place) for place in kept]
    return np.array(rows, np.int64).reshape(-1, 3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_suppressed_boxes(variant: str) -> None:
    rng = np.random.default_rng(4)
    for count, limit, least, centers in (
        (1, 3, None, True),
        (37, 5, 0.3, False),
        (400, 400, 0.1, True),
        (90, 9, None, False),
    ):
        boxes = (rng.random((2, count, 4)) * 40).astype(np.float32)
        scores = rng.integers(0, 60, (2, 3, count)).astype(np.float32) / 60  # with ties
        overlap = np.array([0.31], np.float32)
        given = [boxes, scores, np.array([limit]), overlap, None if least is None else np.array([least], np.float32)]
        (found,) = _counted(NonMaxSuppression({"centers": centers}), given, variant, known=(2,))
        least32 = None if least is None else float(np.float32(least))
        np.testing.assert_array_equal(found, _kept(boxes, scores, limit, float(overlap[0]), least32, centers))


def test_suppression_refuses() -> None:
    boxes, scores = np.zeros((1, 3, 4), np.float32), np.zeros((1, 2, 3), np.float32)
    given = [boxes, scores, np.array([2]), np.array([1.5], np.float32)]
    binder, memory, _ = bind(NonMaxSuppression({"centers": False}), given, known=(2,))
    assert memory.run(binder) == ["iou_threshold must lie in [0, 1]"]
    with pytest.raises(ValueError, match="boxes must be"):
        bind(NonMaxSuppression({"centers": False}), [boxes[:, :2], scores, np.array([2])], known=(2,))


def _session(text: str) -> sardonyx.InferenceSession:
    model = parser.parse_model('<ir_version: 10, opset_import: ["": 21]>' + text)
    return sardonyx.InferenceSession(model.SerializeToString())


def test_counted_steps_between_segments() -> None:
    session = _session(
        """g (float[a, b] x, int64[k] limit) => (int64[n, 2] places, float[m] y, float[q] z)
        { r = Relu(x) c = NonZero(r) places = Transpose(c) w = GatherND(x, places) y = Exp(w)
          z, i, j, o = Unique(r) }"""
    )
    rng = np.random.default_rng(5)
    for shape in ((3, 5), (40, 7), (1, 1)):
        x = rng.standard_normal(shape).astype(np.float32)
        places, y, z = session.run(None, {"x": x, "limit": np.zeros(1, np.int64)})
        np.testing.assert_array_equal(places, np.argwhere(x > 0))
        np.testing.assert_allclose(y, np.exp(x[x > 0].astype(np.float64)), rtol=1e-6)
        np.testing.assert_array_equal(z, np.unique(np.maximum(x, 0)))


def test_limit_of_boxes_as_data() -> None:
    session = _session(
        """g (float[1, n, 4] b, float[1, c, n] s, int64[1] m, float[1] i) => (int64[q, 3] y)
        { y = NonMaxSuppression(b, s, m, i) }"""
    )
    rng = np.random.default_rng(6)
    boxes, scores = rng.random((1, 50, 4)).astype(np.float32), rng.random((1, 4, 50)).astype(np.float32)
    for limit in (0, 1, 7, 2**40):
        feeds = {"b": boxes, "s": scores, "m": np.array([limit]), "i": np.array([0.5], np.float32)}
        np.testing.assert_array_equal(session.run(None, feeds)[0], _kept(boxes, scores, limit, 0.5, None, False))
    with pytest.raises(sardonyx.capi.onnxruntime_pybind11_state.Fail, match="iou_threshold"):
        session.run(None, {"b": boxes, "s": scores, "m": np.array([3]), "i": np.array([-1], np.float32)})
