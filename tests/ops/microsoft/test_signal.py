"""Fourier transforms and complex products against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("dimensions", [1, 2])
def test_transform_and_back(dtype: type, dimensions: int) -> None:
    x = RNG.standard_normal((3, 4, 8)).astype(dtype)
    (found,) = peer.run("Rfft", [x], 1, {"signal_ndim": dimensions})
    exact = np.fft.rfftn(x.astype(np.float64), axes=(1, 2)[-dimensions:])
    tolerance = 2e-2 if dtype == np.float16 else 1e-5
    np.testing.assert_allclose(found[..., 0], exact.real, atol=tolerance, rtol=tolerance)
    np.testing.assert_allclose(found[..., 1], exact.imag, atol=tolerance, rtol=tolerance)
    (back,) = peer.run("Irfft", [found], 1, {"signal_ndim": dimensions})
    np.testing.assert_allclose(back, x, atol=tolerance)


def test_other_transforms_are_errors() -> None:
    with pytest.raises(Exception, match="no other transform"):
        peer.run("Rfft", [np.zeros(4, np.float32)], 1, {"onesided": 0})
    with pytest.raises(Exception, match="'signal_ndim' must be between 1 and 1"):
        peer.run("Rfft", [np.zeros(4, np.float32)], 1, {"signal_ndim": 2})


@pytest.mark.parametrize("op_type", ["ComplexMul", "ComplexMulConj"])
def test_complex_products(op_type: str) -> None:
    a, b = RNG.standard_normal((3, 1, 4, 2)).astype(np.float32), RNG.standard_normal((5, 1, 2)).astype(np.float32)
    (found,) = peer.run(op_type, [a, b])
    left, right = a[..., 0] + 1j * a[..., 1], b[..., 0] + 1j * b[..., 1]
    exact = left * (right.conj() if op_type.endswith("Conj") else right)
    np.testing.assert_allclose(found, np.stack([exact.real, exact.imag], -1), rtol=1e-5, atol=1e-6)


def test_a_last_dimension_other_than_2_is_named() -> None:
    with pytest.raises(Exception, match="last dimension of input 'A' must be 2"):
        peer.run("ComplexMul", [np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)])
