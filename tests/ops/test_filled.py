"""Range and ConstantOfShape whose numbers come with the run, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from sardonyx import errors
from tests.ops.one_node import run_node


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.float32, np.float64])
@pytest.mark.parametrize(
    ("start", "limit", "delta"),
    [(0, 10, 1), (3, -8, -2), (5, 5, 1), (2, 9, 3), (2, 8, 3), (7, 1, 1), (-4, 4, 5), (1, -6, -7)],
)
@pytest.mark.parametrize("shape", [(), (1,)])
def test_ranges(dtype: type, start: int, limit: int, delta: int, shape: tuple[int, ...]) -> None:
    given = [np.full(shape, number, dtype) for number in (start, limit, delta)]
    (y,) = run_node("Range", given, opset=11)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, np.arange(start, limit, delta).astype(dtype))


def test_ranges_of_large_numbers() -> None:
    first = 2**62 + 1
    (y,) = run_node("Range", [np.array(one, np.int64) for one in (first, first + 6, 2)], opset=11)
    assert y.tolist() == [first, first + 2, first + 4]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([np.array(0), np.array(3), np.array(0)], "delta of Range must not be 0"),
        ([np.array([0, 1]), np.array(3), np.array(1)], "must be scalars"),
    ],
)
def test_what_is_no_range(given: list[Any], words: str) -> None:
    with pytest.raises(errors.OnnxRuntimeError, match=words):
        run_node("Range", given, opset=11)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
@pytest.mark.parametrize("value", [None, np.array([7], np.int8), np.array([True]), np.array([1.5], np.float64)])
def test_filled_tensors(shape: tuple[int, ...], value: np.ndarray | None) -> None:
    attributes = {} if value is None else {"value": numpy_helper.from_array(value)}
    for _ in range(2):
        (y,) = run_node("ConstantOfShape", [np.array(shape, np.int64)], opset=9, **attributes)
        expected = np.zeros(shape, np.float32) if value is None else np.full(shape, value[0], value.dtype)
        assert y.dtype == expected.dtype
        np.testing.assert_array_equal(y, expected)


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(errors.OnnxRuntimeError, match="no negative dimensions"):
        run_node("ConstantOfShape", [np.array([2, -1])], opset=9)
