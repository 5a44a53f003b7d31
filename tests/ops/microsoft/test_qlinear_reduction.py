"""Softmax, mean and sum of quantised tensors."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer
from tests.ops.microsoft.quantized import random, scale, steps


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("opset", [11, 13])
def test_softmax(dtype: type, axis: int, opset: int) -> None:
    x = random(np.random.default_rng(1), dtype, 3, 4, 10)
    zero = np.array(0 if dtype == np.uint8 else -128, dtype)
    # onnxruntime sums table entries of float32 powers; a share half way between two steps may fall elsewhere.
    steps(
        "QLinearSoftmax",
        [x, scale(0.04), np.array(9, dtype), scale(1 / 256), zero],
        1,
        {"axis": axis, "opset": opset},
        constants=[1, 2, 3, 4],
        allowed=1,
        share=0.05,
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[1], [-1, 0], [0, 1, 2]])
def test_reduce_mean(dtype: type, keepdims: int, axes: list[int]) -> None:
    x = random(np.random.default_rng(2), dtype, 3, 4, 5)
    (found,) = peer.run(
        "QLinearReduceMean",
        [x, scale(0.04), np.array(9, dtype), scale(0.03), np.array(20, dtype)],
        1,
        {"axes": axes, "keepdims": keepdims},
    )
    mean = ((x.astype(np.float64) - 9) * 0.04).mean(axis=tuple(axes), keepdims=bool(keepdims))
    kind = np.iinfo(dtype)
    exact = np.clip(np.rint(mean / 0.03) + 20, kind.min, kind.max)
    assert found.shape == exact.shape
    assert np.abs(found - exact).max() <= 1


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reduce_sum(dtype: type, keepdims: int) -> None:
    x = random(np.random.default_rng(3), dtype, 3, 400, 5)
    (found,) = peer.run("ReduceSumInteger", [x], [12 if dtype == np.uint8 else 6], {"axes": [1], "keepdims": keepdims})
    np.testing.assert_array_equal(found, x.astype(np.int64).sum(axis=1, keepdims=bool(keepdims)))


def test_an_axis_out_of_range_is_named() -> None:
    with pytest.raises(Exception, match="axis 3 is not one of the 3 axes"):
        peer.run("ReduceSumInteger", [np.zeros((1, 2, 3), np.int8)], [6], {"axes": [3], "keepdims": 1})
