"""Kernels that choose by value, compared with NumPy on every instruction set."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.compiler.kernels.selection.best import TopK
from tests.compiler.steps import VARIANTS, Array, bind, outputs_of

TYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.int32, np.uint32, np.int64]
TYPES += [np.uint64, np.int16, np.uint16, np.bool_]


def _best(data: Array, k: int, largest: bool, axis: int) -> tuple[Array, Array]:
    """Values and places by sorting pairs in Python: NaN above all numbers, equal ones in order of their places."""
    moved = np.moveaxis(data, axis, -1)
    places = np.empty((*moved.shape[:-1], k), np.int64)
    for outer in np.ndindex(moved.shape[:-1]):
        row = [(bool(x != x), 0 if x != x else x.item()) for x in moved[outer]]
        order = sorted(range(len(row)), key=lambda place, row=row: row[place], reverse=largest)  # both are stable
        places[outer] = order[:k]
    places = np.moveaxis(places, -1, axis)
    return np.take_along_axis(data, places, axis), places


def _check(found: list[Array], data: Array, k: int, largest: bool, axis: int) -> None:
    values, places = _best(data, k, largest, axis)
    np.testing.assert_array_equal(found[1], places)
    np.testing.assert_array_equal(found[0].view(np.uint8), np.ascontiguousarray(values).view(np.uint8))


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Numbers with many ties; NaN, infinities and zeros of both signs among the floats."""
    kind = np.dtype(dtype)
    if kind.kind in "biu":
        low = 0 if kind.kind != "i" else -60
        return rng.integers(low, 60, shape).astype(dtype)
    data = rng.integers(-50, 50, shape).astype(np.float64) / 4
    odd = rng.choice([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], shape)
    return np.where(rng.random(shape) < 0.2, odd, data).astype(dtype)


@pytest.mark.parametrize("variant", VARIANTS)
def test_best_of_rows(variant: str) -> None:
    rng = np.random.default_rng(1)
    for dtype in (np.float32, np.float16, np.int64, ml_dtypes.bfloat16):
        for size, k in ((1, 1), (37, 5), (300, 3), (513, 100)):
            data = _numbers(rng, (2, size), dtype)
            kernel = TopK({"axis": 1, "k": k, "largest": bool(size % 2)})
            _check(outputs_of(kernel, [data], variant), data, k, bool(size % 2), 1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_few_best_of_many_rows(variant: str) -> None:
    """Of rows with and without whole vectors: one best element, and as many as a vector has lanes or one more."""
    rng = np.random.default_rng(4)
    for dtype in (np.float32, np.float16, np.int64, np.uint8):
        for size in (1, 2, 15, 16, 17, 80, 1100):
            for k in sorted({1, min(2, size), min(16, size), min(17, size)}):
                data = _numbers(rng, (5, size), dtype)
                kernel = TopK({"axis": 1, "k": k, "largest": bool(size % 2)})
                _check(outputs_of(kernel, [data], variant), data, k, bool(size % 2), 1)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8])
def test_the_best_of_many_short_rows(dtype: Any, variant: str) -> None:
    rng = np.random.default_rng(5)
    for size in (1, 2, 3, 7, 15):
        data = _numbers(rng, (150, size), dtype)
        kernel = TopK({"axis": 1, "k": 1, "largest": bool(size % 2)})
        _check(outputs_of(kernel, [data], variant), data, 1, bool(size % 2), 1)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("largest", [True, False])
def test_best_where_ranks_are_extreme(k: int, largest: bool) -> None:
    """The least and the greatest rank that there is, in rows full of them."""
    for dtype in (np.int32, np.uint32, np.int64):
        limits = np.iinfo(dtype)
        for value in (limits.min, limits.max):
            data = np.full((2, 35), value, dtype)
            _check(outputs_of(TopK({"axis": 1, "k": k, "largest": largest}), [data]), data, k, largest, 1)
    data = np.full((2, 35), np.nan, np.float32)
    _check(outputs_of(TopK({"axis": 1, "k": k, "largest": largest}), [data]), data, k, largest, 1)


@pytest.mark.parametrize("dtype", TYPES)
def test_best_of_every_type(dtype: Any) -> None:
    rng = np.random.default_rng(2)
    for largest in (True, False):
        data = _numbers(rng, (3, 91, 2), dtype)
        kernel = TopK({"axis": 1, "k": None, "largest": largest})
        found = outputs_of(kernel, [data, np.array([20])], known=(1,), one_by_one=True)
        _check(found, data, 20, largest, 1)


@pytest.mark.parametrize("order", ["ascending", "descending", "equal"])
def test_best_of_rows_in_order(order: str) -> None:
    data = np.arange(5000, dtype=np.float32)[None] if order != "equal" else np.ones((1, 5000), np.float32)
    data = data[:, ::-1].copy() if order == "descending" else data
    for k in (1, 50, 700, 5000):
        found = outputs_of(TopK({"axis": -1, "k": k, "largest": True}), [data])
        _check(found, data, k, True, 1)


def test_best_extremes_of_integers() -> None:
    limits = np.iinfo(np.int64)
    data = np.array([[0, limits.max, limits.min, -1, limits.max, 1]])
    for largest in (True, False):
        _check(outputs_of(TopK({"axis": 1, "k": 4, "largest": largest}), [data]), data, 4, largest, 1)


def test_best_refuses() -> None:
    data = np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"k argument \[4\]"):
        bind(TopK({"axis": 1, "k": 4, "largest": True}), [data])
    with pytest.raises(ValueError, match="size 1"):
        bind(TopK({"axis": 1, "k": None, "largest": True}), [data, np.array([1, 2])], known=(1,))
    empty = outputs_of(TopK({"axis": 1, "k": 0, "largest": True}), [data])
    assert empty[0].shape == empty[1].shape == (2, 0)
