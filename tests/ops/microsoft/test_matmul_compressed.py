"""Products with 4- and 8-bit floating-point weights."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest

from sardonyx.ops.microsoft.packed_weights import E2M1
from tests.ops.microsoft import peer


@pytest.mark.parametrize("quant_type", [0, 1])
@pytest.mark.parametrize(("n", "k", "block"), [(6, 32, 16), (5, 7, 16), (8, 64, 64)])
def test_bitsandbytes(quant_type: int, n: int, k: int, block: int) -> None:
    generator = np.random.default_rng(1)
    b = generator.integers(0, 256, (n * k + 1) // 2).astype(np.uint8)
    absmax = (generator.random(-(-n * k // block)) + 0.1).astype(np.float32)
    a = generator.standard_normal((2, 3, k)).astype(np.float32)
    attributes = {"N": n, "K": k, "block_size": block, "quant_type": quant_type}
    peer.compare("MatMulBnb4", [a, b, absmax], 1, attributes, constants=[1, 2])


def test_bitsandbytes_without_transposition() -> None:
    # onnxruntime's CPU kernel reads beyond the weight here; its documentation states the product.
    generator = np.random.default_rng(5)
    b, absmax = generator.integers(0, 256, 96).astype(np.uint8), (generator.random(12) + 0.1).astype(np.float32)
    a, eye = generator.standard_normal((2, 6)).astype(np.float32), np.eye(32, dtype=np.float32)
    attributes = {"N": 6, "K": 32, "block_size": 16, "quant_type": 1}
    (transposed,) = peer.run("MatMulBnb4", [eye, b, absmax], 1, attributes)
    (found,) = peer.run("MatMulBnb4", [a, b, absmax], 1, {**attributes, "transB": 0})
    np.testing.assert_allclose(found, a.astype(np.float64) @ transposed.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("n", "k"), [(3, 32), (5, 96), (2, 40)])
def test_blobs_of_four_bits(kind: int, n: int, k: int) -> None:
    generator = np.random.default_rng(6)
    steps = (generator.random((n, -(-k // 32))) + 0.1).astype(np.float32)
    zeros = generator.integers(0, 16, steps.shape)
    codes = generator.integers(0, 16, (*steps.shape, 32))
    blob = bytearray()
    for column, block in np.ndindex(steps.shape):
        blob += struct.pack("<f", steps[column, block]) + (bytes([zeros[column, block]]) if kind else b"")
        blob += bytes(int(low) | int(high) << 4 for low, high in codes[column, block].reshape(2, 16).T)
    a = generator.standard_normal((2, 3, k)).astype(np.float32)
    # onnxruntime has this kernel for AVX-512 alone.
    inputs = [a, np.frombuffer(blob, np.uint8), np.array([k, n])]
    (found,) = peer.run("MatMulFpQ4", inputs, 1, {"blk_quant_type": kind}, constants=[1, 2])
    weight = (codes - (zeros[..., None] if kind else 8)) * steps[..., None].astype(np.float64)
    np.testing.assert_allclose(found, a.astype(np.float64) @ weight.reshape(n, -1)[:, :k].T, rtol=1e-5, atol=1e-4)


def test_blobs_of_other_kinds_are_declined() -> None:
    inputs = [np.zeros((1, 64), np.float32), np.zeros(36, np.uint8), np.array([64, 1])]
    with pytest.raises(Exception, match="blk_quant_type=2"):
        peer.run("MatMulFpQ4", inputs, 1, {"blk_quant_type": 2})


def test_an_unknown_bitsandbytes_type_is_named() -> None:
    attributes = {"N": 2, "K": 16, "block_size": 16, "quant_type": 2}
    with pytest.raises(Exception, match="'quant_type' must be 0"):
        peer.run(
            "MatMulBnb4", [np.zeros((1, 16), np.float32), np.zeros(16, np.uint8), np.ones(2, np.float32)], 1, attributes
        )


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("quantised", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_float8_weight(dtype: type, quantised: bool, bias: bool) -> None:
    generator = np.random.default_rng(2)
    a = generator.standard_normal((2, 3, 40)).astype(dtype)
    b = (generator.standard_normal((6, 40)) * 2).astype(ml_dtypes.float8_e4m3fn)
    scale = (generator.random((6, 3)) * 0.1 + 0.05).astype(np.float32)
    a_scale = np.array(0.02, np.float32)
    c = generator.standard_normal(6).astype(dtype) if bias else None
    (found,) = peer.run(
        "MatMulBlockQuantizedFp8Weight", [a, b, scale, a_scale if quantised else None, c], 1, {"block_size": 16}
    )
    left = a.astype(np.float64)
    if quantised:
        left = (a.astype(np.float32) / a_scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * a_scale
    weight = b.astype(np.float64) * np.repeat(scale, 16, axis=1)[:, :40]
    exact = left @ weight.T + (0 if c is None else c.astype(np.float64))
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=1e-2, atol=2e-2)


def test_float8_activations_saturate() -> None:
    a, b = np.full((1, 16), 1000, np.float16), np.ones((1, 16), ml_dtypes.float8_e4m3fn)
    one = np.ones((1, 1), np.float32)
    (found,) = peer.run("MatMulBlockQuantizedFp8Weight", [a, b, one, np.array(1, np.float32)], 1)
    assert found[0, 0] == 448 * 16


def test_float4_weight() -> None:
    generator = np.random.default_rng(3)
    a = generator.standard_normal((3, 40)).astype(np.float16)
    codes = generator.integers(0, 16, (6, 40)).astype(np.uint8)
    steps = (generator.random((6, 3)) + 0.5).astype(ml_dtypes.float8_e4m3fn)
    inputs = [
        a,
        codes[:, ::2] | codes[:, 1::2] << 4,
        steps.view(np.uint8),
        np.array(0.25, np.float32),
        None,
        np.ones(6, np.float16),
    ]
    (found,) = peer.run("MatMulBlockQuantizedFp4Weight", inputs, 1)
    weight = E2M1[codes].astype(np.float64) * np.repeat(steps.astype(np.float64), 16, axis=1)[:, :40] * 0.25
    np.testing.assert_allclose(found, a.astype(np.float64) @ weight.T + 1, rtol=1e-2, atol=2e-2)


def test_the_values_of_e2m1_are_those_of_ml_dtypes() -> None:
    np.testing.assert_array_equal(E2M1, np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32))


@pytest.mark.parametrize("activation", ["NONE", "RELU"])
@pytest.mark.parametrize("transposed", range(4))
def test_gemm_float8(activation: str, transposed: int) -> None:
    generator = np.random.default_rng(4)
    a = generator.standard_normal((7, 5) if transposed & 1 else (5, 7)).astype(ml_dtypes.float8_e4m3fn)
    b = generator.standard_normal((9, 7) if transposed & 2 else (7, 9)).astype(ml_dtypes.float8_e5m2)
    c = generator.standard_normal((5, 9)).astype(np.float32)
    two, half = np.array(2, np.float32), np.array(0.5, np.float32)
    attributes = {
        "transA": transposed & 1,
        "transB": transposed >> 1,
        "alpha": 0.25,
        "beta": 0.5,
        "dtype": 1,
        "activation": activation,
    }
    (found,) = peer.run("GemmFloat8", [a, b, c, two, half], [1], attributes)
    left, right = a.astype(np.float64), b.astype(np.float64)
    exact = 0.25 * (left.T if transposed & 1 else left) @ (right.T if transposed & 2 else right) + 0.5 * c
    np.testing.assert_allclose(found, np.maximum(exact, 0) if activation == "RELU" else exact, rtol=1e-5, atol=1e-5)


def test_gemm_float8_declines_what_is_not_documented() -> None:
    x = np.ones((2, 2), np.float32)
    one = np.array(1, np.float32)
    with pytest.raises(Exception, match="scaleY"):
        peer.run("GemmFloat8", [x, x, None, None, None, one], [1])
    with pytest.raises(Exception, match="activation='GELU'"):
        peer.run("GemmFloat8", [x, x], [1], {"activation": "GELU"})
