"""Normalisations in training and in half precision, and the old softmax, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.single_node import ours


def test_batch_normalisation_in_training_updates_the_running_statistics() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 3, 5)).astype(np.float32)
    scale, bias, mean, variance = (rng.random(3).astype(np.float32) for _ in range(4))
    y, new_mean, new_variance = ours(
        "BatchNormalization", x, scale, bias, mean, variance, opset=15, outputs=3, training_mode=1, momentum=0.7
    )
    own_mean, own_variance = x.mean((0, 2)), x.var((0, 2))
    np.testing.assert_allclose(new_mean, mean * 0.7 + own_mean * 0.3, rtol=1e-5)
    np.testing.assert_allclose(new_variance, variance * 0.7 + own_variance * 0.3, rtol=1e-5)
    expected = (x - own_mean[:, None]) / np.sqrt(own_variance[:, None] + 1e-5) * scale[:, None] + bias[:, None]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [-1, 1, -3])
def test_layer_normalisation_of_half_floats_is_rounded_once(axis: int) -> None:
    rng = np.random.default_rng(1)
    x = (100 * rng.standard_normal((2, 3, 4))).astype(np.float16)
    start = axis % 3
    scale = rng.random(x.shape[start:]).astype(np.float16)
    y, mean, inverse = ours("LayerNormalization", x, scale, opset=17, outputs=3, axis=axis)
    wide = x.astype(np.float64)
    axes = tuple(range(start, 3))
    centre, variance = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    expected = (wide - centre) / np.sqrt(variance + 1e-5) * scale
    assert y.dtype == np.float16
    assert mean.dtype == inverse.dtype == np.float32
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=2**-10, atol=1e-4)
    np.testing.assert_allclose(mean, centre, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_softmax_before_opset_13_flattens(axis: int) -> None:
    x = np.random.default_rng(2).standard_normal((2, 3, 4)).astype(np.float32)
    (y,) = ours("Softmax", x, opset=11, axis=axis)
    rows = int(np.prod(x.shape[: axis % 3])) if axis else 1
    matrix = np.exp(x.reshape(rows, -1).astype(np.float64))
    np.testing.assert_allclose(y, (matrix / matrix.sum(1, keepdims=True)).reshape(x.shape), rtol=1e-5)


def test_channels_must_divide_into_groups() -> None:
    x, ones = np.zeros((1, 3, 2), np.float32), np.ones(3, np.float32)
    with pytest.raises(Exception, match="do not divide into 2 groups"):
        ours("GroupNormalization", x, ones, ones, opset=21, num_groups=2)
