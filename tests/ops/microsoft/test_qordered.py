"""Row-major 8-bit operators of cuBLASLt against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sardonyx import errors
from tests.ops.microsoft import peer
from tests.ops.microsoft.quantized import random, scale

ROWS = {"order_input": 1, "order_output": 1}
X = random(np.random.default_rng(1), np.int8, 2, 5, 8)


def quantized(real: np.ndarray, step: float) -> np.ndarray:
    return np.clip(np.rint(real / step), -128, 127)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_there_and_back(dtype: type) -> None:
    real = (X * 0.25).astype(dtype)
    (codes,) = peer.run("QuantizeWithOrder", [real, scale(0.25)], [3], ROWS)
    np.testing.assert_array_equal(codes, X)
    (back,) = peer.run(
        "DequantizeWithOrder", [codes, scale(0.25)], [peer.element_type(real)], {**ROWS, "to": peer.element_type(real)}
    )
    np.testing.assert_array_equal(back, real)


def test_gelu() -> None:
    (found,) = peer.run("QOrderedGelu", [X, scale(0.04), scale(0.03)], [3])
    exact = np.vectorize(lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))))(X * 0.04)
    assert np.abs(found - quantized(exact, 0.03)).max() <= 1


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_normalization(axis: int, bias: bool) -> None:
    generator = np.random.default_rng(2)
    gamma, beta = (generator.standard_normal(8).astype(np.float32) for _ in range(2))
    (found,) = peer.run(
        "QOrderedLayerNormalization", [X, scale(0.04), gamma, beta if bias else None, scale(0.02)], [3], {"axis": axis}
    )
    axes = tuple(range(axis % 3, 3))
    real = X * 0.04
    centred = real - real.mean(axis=axes, keepdims=True)
    exact = centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + 1e-5) * gamma + (beta if bias else 0)
    assert np.abs(found - quantized(exact, 0.02)).max() <= 1


def test_other_orders_are_declined() -> None:
    with pytest.raises(errors.NotImplemented, match="order_output=2, a layout of cuBLASLt"):
        peer.run("QuantizeWithOrder", [X.astype(np.float32), scale(1)], [3], {"order_input": 1, "order_output": 2})
