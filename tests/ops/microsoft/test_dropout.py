"""Dropout with bias, residual and packed masks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(9)
X, BIAS, RESIDUAL = (RNG.standard_normal(shape).astype(np.float32) for shape in ((4, 25), (25,), (4, 25)))
HALF, TRUE, FALSE = np.array(0.5, np.float32), np.array(True), np.array(False)


@pytest.mark.parametrize("training", [None, FALSE])
def test_inference_drops_nothing(training: np.ndarray | None) -> None:
    found, mask = peer.run("BiasDropout", [X, BIAS, RESIDUAL, HALF, training], [1, 9])
    np.testing.assert_allclose(found, X + BIAS + RESIDUAL, rtol=1e-6)
    assert mask.all()


def test_training_keeps_about_half_and_scales_it() -> None:
    x = np.ones((40, 50), np.float32)
    bias = np.ones(50, np.float32)
    found, mask = peer.run("BiasDropout", [x, bias, None, HALF, TRUE], [1, 9], {"seed": 3})
    np.testing.assert_array_equal(found, np.where(mask, np.float32(4), np.float32(0)))
    assert 0.4 < mask.mean() < 0.6
    again, _ = peer.run("BiasDropout", [x, bias, None, HALF, TRUE], [1, 9], {"seed": 3})
    np.testing.assert_array_equal(found, again)


def test_the_packed_mask_holds_the_bits_in_row_order() -> None:
    found, words = peer.run("BitmaskDropout", [X, HALF, TRUE], [1, 12], {"seed": 5})
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    assert words.shape == (4,)  # 100 elements
    np.testing.assert_array_equal(bits[:100].reshape(X.shape).astype(bool), found != 0)
    assert not bits[100:].any()


def test_packed_bias_dropout_in_inference_is_all_ones() -> None:
    found, words = peer.run("BitmaskBiasDropout", [X[:, :8].copy(), BIAS[:8].copy()], [1, 12])
    np.testing.assert_allclose(found, X[:, :8] + BIAS[:8], rtol=1e-6)
    np.testing.assert_array_equal(words, [0xFFFFFFFF])


def test_a_ratio_of_one_is_refused() -> None:
    with pytest.raises(Exception, match=r"'ratio' must be in \[0, 1\)"):
        peer.run("BitmaskDropout", [X, np.array(1.0, np.float32), TRUE], [1, 12])
