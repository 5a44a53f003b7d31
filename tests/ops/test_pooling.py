"""Pools against PyTorch and onnxruntime over random attributes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.single_node import assert_same, ours, theirs


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pools_agree_with_onnxruntime(op: str, rank: int) -> None:
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(rank)
    for _ in range(25):
        kernel = [int(n) for n in rng.integers(2, 4, rank)]
        attributes = {
            "kernel_shape": kernel,
            "strides": [int(n) for n in rng.integers(1, 4, rank)],
            "dilations": [int(n) for n in rng.integers(1, 3, rank)],
            "pads": [int(n) for n in rng.integers(0, 2, 2 * rank)],
            "ceil_mode": int(rng.integers(0, 2)) if op == "MaxPool" else 0,
        }
        if op == "AveragePool":
            attributes["count_include_pad"] = int(rng.integers(0, 2))
        x = rng.standard_normal((2, 3, *rng.integers(6, 10, rank))).astype(np.float32)
        assert_same(ours(op, x, opset=22, **attributes), theirs(op, x, opset=22, **attributes), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float16, np.float64])
def test_maximum_of_other_dtypes(dtype: type) -> None:
    x = np.random.default_rng(6).integers(0, 100, (1, 2, 6, 6)).astype(dtype)
    (y,) = ours("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, x.reshape(1, 2, 3, 2, 3, 2).max(axis=(3, 5)))


def test_places_point_at_the_maxima() -> None:
    x = np.random.default_rng(7).standard_normal((2, 3, 7, 5)).astype(np.float32)
    y, place = ours("MaxPool", x, kernel_shape=[3, 2], pads=[1, 1, 1, 1], strides=[2, 2], outputs=2)
    np.testing.assert_array_equal(x.ravel()[place], y)
    assert place.dtype == np.int64


def test_global_pools() -> None:
    x = np.random.default_rng(8).standard_normal((2, 3, 4, 5)).astype(np.float32)
    np.testing.assert_allclose(ours("GlobalAveragePool", x)[0], x.mean((2, 3), keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(ours("GlobalMaxPool", x)[0], x.max((2, 3), keepdims=True))
    norm = (np.abs(x.astype(np.float64)) ** 3).sum((2, 3), keepdims=True) ** (1 / 3)
    np.testing.assert_allclose(ours("GlobalLpPool", x, p=3)[0], norm, rtol=1e-5)
