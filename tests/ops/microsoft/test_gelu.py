"""The GELU and SiLU family against onnxruntime, and against float64 where it has no CPU kernel."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from tests.ops.microsoft import peer

RNG = np.random.default_rng(7)


def normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return (RNG.standard_normal(shape) * 3).astype(dtype)


@pytest.mark.parametrize("shape", [(3, 4, 6), (5,), (0, 4), ()])
def test_gelu(shape: tuple[int, ...]) -> None:
    peer.compare("Gelu", [normal(*shape)])


def test_gelu_of_large_values_keeps_zero_and_identity() -> None:
    x = np.array([-40, -9, 9, 40, np.inf], np.float32)
    (found,) = peer.run("Gelu", [x])
    np.testing.assert_allclose(found, [0, 0, 9, 40, np.inf], atol=1e-6)


def test_bias_gelu() -> None:
    peer.compare("BiasGelu", [normal(2, 5, 8), normal(8)])


@pytest.mark.parametrize("bias", [True, False])
def test_fast_gelu(bias: bool) -> None:
    peer.compare("FastGelu", [normal(2, 5, 8), normal(8) if bias else None])


@pytest.mark.parametrize("alpha", [None, 1.0, 0.5, -2.0])
def test_quick_gelu(alpha: float | None) -> None:
    peer.compare("QuickGelu", [normal(4, 9)], attributes={} if alpha is None else {"alpha": alpha})


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("scale", [None, np.float32, np.float16])
def test_scaled_silu(dtype: type, scale: type | None) -> None:
    given = None if scale is None else np.array(0.75, scale)
    peer.compare("ScaledSiLU", [normal(4, 9, dtype=dtype), given], attributes={"alpha": 1.5}, rtol=2e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gated_add(dtype: type) -> None:
    peer.compare(
        "GatedAdd",
        [normal(2, 3, 8, dtype=dtype), normal(2, 3, 8, dtype=dtype), normal(2, 3, 1, dtype=dtype)],
        rtol=1e-6,
    )


def test_bias_add() -> None:
    x, bias, skip = normal(2, 3, 8), normal(8), normal(2, 3, 8)
    (found,) = peer.run("BiasAdd", [x, bias, skip])
    np.testing.assert_allclose(found, x + bias + skip, rtol=1e-6)


def test_bias_split_gelu() -> None:
    x, bias = normal(2, 3, 8), normal(8)
    (found,) = peer.run("BiasSplitGelu", [x, bias])
    wide = (x + bias).astype(np.float64)
    gelu = np.vectorize(lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))))(wide[..., 4:])
    np.testing.assert_allclose(found, wide[..., :4] * gelu, rtol=1e-5, atol=1e-6)


def test_bias_split_gelu_names_an_odd_width() -> None:
    with pytest.raises(Exception, match="'X' must be even, got 5"):
        peer.run("BiasSplitGelu", [normal(2, 3, 5), normal(5)])


def test_bfloat16_is_computed_in_float32() -> None:
    x = normal(64).astype(ml_dtypes.bfloat16)
    (found,) = peer.run("QuickGelu", [x], [TensorProto.BFLOAT16])
    wide = x.astype(np.float64)
    exact = wide / (1 + np.exp(-1.702 * wide))
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=5e-3)
