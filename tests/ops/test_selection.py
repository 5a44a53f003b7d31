"""Selections, OneHot and rearrangements against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peer import compare, ours


def whole(*shape: int, low: int = 0, high: int = 5, dtype: Any = np.int64) -> Any:
    return np.random.default_rng(sum(shape) + high).integers(low, high, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize(
    ("shape", "axis", "k"), [((3, 200), -1, 7), ((3, 5), 1, 5), ((4, 6, 3), -2, 2), ((0, 5), 1, 2), ((2, 0), 1, 0)]
)
@pytest.mark.parametrize("largest", [0, 1])
def test_top_k(dtype: Any, shape: tuple[int, ...], axis: int, k: int, largest: int) -> None:
    compare("TopK", [whole(*shape, high=9, dtype=dtype), np.array([k])], 2, opset=11, axis=axis, largest=largest)


def test_top_k_of_the_first_opsets() -> None:
    data = whole(4, 6, high=50, dtype=np.float32)
    compare("TopK", [data], 2, opset=9, k=3, axis=0)
    compare("TopK", [data, np.array([3])], 2, opset=10)


def test_top_k_counts_nan_as_greatest() -> None:
    data = np.array([[1, np.nan, 3, 2] * 8], np.float32)
    values, places = ours("TopK", [data, np.array([3])], 2)
    assert np.isnan(values).all()
    assert places.tolist() == [[1, 5, 9]]
    values, places = ours("TopK", [data, np.array([3])], 2, largest=0)
    assert values.tolist() == [[1, 1, 1]]
    assert places.tolist() == [[0, 4, 8]]


@pytest.mark.parametrize("k", [[5], [-1], [1, 2]])
def test_top_k_refuses(k: list[int]) -> None:
    with pytest.raises(errors.OnnxRuntimeError, match="k "):
        ours("TopK", [whole(3, 4), np.array(k)], 2, opset=11)


@pytest.mark.parametrize("opset", [9, 11])
@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize(
    "values", [np.array([0.5, 1.0], np.float32), np.array([-1, 7]), np.array(["off", "on"], object)]
)
def test_one_hot(opset: int, axis: int, values: Any) -> None:
    compare("OneHot", [whole(3, 4, low=-7, high=7), np.array([5]), values], opset=opset, axis=axis)


def test_one_hot_of_fractions_and_scalars() -> None:
    fractions = np.array([1.5, 2.0, -1.0, -0.5], np.float32)
    compare("OneHot", [fractions, np.array([4.0], np.float32), np.array([0, 1], np.float32)], opset=11)
    (found,) = ours("OneHot", [np.array(2), np.array(4), np.array([0, 1])])  # onnxruntime refuses a scalar
    assert found.tolist() == [0, 0, 1, 0]
    with pytest.raises(errors.OnnxRuntimeError, match="depth must be positive"):
        ours("OneHot", [np.array(2), np.array(0), np.array([0, 1])])


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.uint8])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (0, 2), (2, 3, 4)])
def test_non_zero(dtype: Any, shape: tuple[int, ...]) -> None:
    compare("NonZero", [np.asarray(whole(*shape, high=2)).astype(dtype)], opset=13)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("condition", [[1, 0, 1], [0, 0], [1] * 6, []])
def test_compress(axis: int | None, condition: list[int]) -> None:
    for data in (whole(3, 4), whole(3, 4).astype(str).astype(object)):
        compare("Compress", [data, np.array(condition, bool)], opset=11, **({} if axis is None else {"axis": axis}))


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("ordered", [0, 1])
@pytest.mark.parametrize("shape", [(9,), (4, 3), (2, 3, 2)])
def test_unique(axis: int | None, ordered: int, shape: tuple[int, ...]) -> None:
    axes = {} if axis is None else {"axis": axis}
    data = whole(*shape, high=3)
    for values in (data, data.astype(np.float32), data.astype(np.int8), data.astype(str).astype(object)):
        compare("Unique", [values], 4, opset=11, sorted=ordered, **axes)


@pytest.mark.parametrize(("shape", "axis"), [((0, 3), 0), ((3, 0), 0), ((0,), None)])
def test_unique_of_nothing(shape: tuple[int, ...], axis: int | None) -> None:
    values, first, inverse, counts = ours(
        "Unique", [np.zeros(shape, np.float32)], 4, **({} if axis is None else {"axis": axis})
    )
    distinct = min(shape[0], 1)
    assert values.shape == (distinct, *shape[1:])
    assert first.shape == counts.shape == (distinct,)
    assert inverse.shape == (shape[0],)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [0, 1, -2, 9, -9])
@pytest.mark.parametrize("shape", [(3, 4), (2, 4, 3), (0, 3)])
def test_trilu(upper: int, k: int, shape: tuple[int, ...]) -> None:
    for dtype in (np.float32, np.int64, np.bool_):
        compare("Trilu", [whole(*shape, low=1, dtype=dtype), np.array(k)], opset=14, upper=upper)


@pytest.mark.parametrize(("batch", "time"), [(0, 1), (1, 0)])
def test_reverse_sequence(batch: int, time: int) -> None:
    for data in (whole(4, 4, 2), whole(4, 4).astype(str).astype(object)):
        compare("ReverseSequence", [data, np.array([0, 1, 3, 4])], opset=10, batch_axis=batch, time_axis=time)
    with pytest.raises(errors.OnnxRuntimeError, match="sequence_lens"):
        ours("ReverseSequence", [whole(4, 4), np.array([0, 1, 3, 5])], batch_axis=batch, time_axis=time)


@pytest.mark.parametrize(
    ("shape", "wanted", "axes"), [((4, 5), (3, 8), None), ((3, 6, 2), (4, 5), (-1, 0)), ((3, 0), (4, 2), None)]
)
def test_center_crop_pad(shape: tuple[int, ...], wanted: tuple[int, ...], axes: tuple[int, ...] | None) -> None:
    compare("CenterCropPad", [whole(*shape), np.array(wanted)], opset=18, **({} if axes is None else {"axes": axes}))


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode: str) -> None:
    cache, update = whole(2, 3, 6, 4).astype(np.float32), whole(2, 3, 2, 4, high=9).astype(np.float32)
    (found,) = ours("TensorScatter", [cache, update, np.array([1, 4])], opset=24, mode=mode)
    expected = cache.copy()
    expected[0, :, 1:3], expected[1, :, 4:6] = update[0], update[1]
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(errors.OnnxRuntimeError, match="write_indices"):
        ours("TensorScatter", [cache, update, np.array([1, -1])], opset=24, mode=mode)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode: str) -> None:
    compare("DepthToSpace", [whole(2, 8, 3, 2).astype(np.float32)], opset=13, blocksize=2, mode=mode)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth_undoes_depth_to_space(mode: str) -> None:
    data = whole(2, 8, 3, 2, high=99).astype(np.float32)
    (space,) = ours("DepthToSpace", [data], opset=28, blocksize=2, mode=mode)
    (depth,) = ours("SpaceToDepth", [space], opset=28, blocksize=2, mode=mode)
    np.testing.assert_array_equal(depth, data)
    compare("SpaceToDepth", [space], opset=13, blocksize=2)
