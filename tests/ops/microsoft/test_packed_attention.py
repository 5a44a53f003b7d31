"""Packed attention against the padded operators, and packing against its inverse."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(8)
COUNTS = np.array([1, 2, 4], np.int32)
HEADS, SIZE, LENGTH = 2, 4, 4
WIDTH = HEADS * SIZE


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def packing(x: np.ndarray) -> list[np.ndarray]:
    return peer.run("RemovePadding", [x, COUNTS], [1, 6, 6, 6])


def test_removing_and_restoring_padding() -> None:
    x = normal(3, LENGTH, 5)
    tokens, offsets, sums, longest = packing(x)
    np.testing.assert_array_equal(offsets.ravel(), [0, 4, 5, 8, 9, 10, 11, 1, 2, 3, 6, 7])
    np.testing.assert_array_equal(sums, [0, 1, 3, 7])
    np.testing.assert_array_equal(longest, [4])
    (back,) = peer.run("RestorePadding", [tokens, offsets])
    np.testing.assert_array_equal(back, x * (np.arange(LENGTH) < COUNTS[:, None])[..., None])


@pytest.mark.parametrize("bias", [None, 1, 3])
def test_packed_attention(bias: int | None) -> None:
    x, w, b = normal(3, LENGTH, 6), normal(6, 3 * WIDTH), normal(3 * WIDTH)
    added = None if bias is None else normal(bias, HEADS, LENGTH, LENGTH)
    tokens, offsets, sums, _ = packing(x)
    (found,) = peer.run("PackedAttention", [tokens, w, b, offsets, sums, added], 1, {"num_heads": HEADS})
    attributes = {"num_heads": HEADS, "mask_filter_value": -1e30}
    (expected,) = peer.run("Attention", [x, w, b, COUNTS, None, added], 1, attributes)
    np.testing.assert_allclose(found, packing(expected)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("together", [True, False])
def test_packed_multi_head_attention(together: bool) -> None:
    q, k, v, b = normal(3, LENGTH, WIDTH), normal(3, LENGTH, WIDTH), normal(3, LENGTH, WIDTH), normal(3 * WIDTH)
    tokens = [packing(x)[0] for x in (q, k, v)]
    _, offsets, sums, _ = packing(q)
    if together:
        tokens = [np.stack([x.reshape(-1, HEADS, SIZE) for x in tokens], axis=2), None, None]
    (found,) = peer.run("PackedMultiHeadAttention", [*tokens, b, offsets, sums], 1, {"num_heads": HEADS})
    attributes = {"num_heads": HEADS, "mask_filter_value": -1e30}
    (expected,) = peer.run("MultiHeadAttention", [q, k, v, b, COUNTS], 1, attributes)
    np.testing.assert_allclose(found, packing(expected)[0], rtol=1e-4, atol=1e-5)


def test_counts_beyond_the_length_are_refused() -> None:
    with pytest.raises(Exception, match=r"'sequence_token_count' \[5\] does not fit 1 sequences of 4"):
        peer.run("RemovePadding", [normal(1, 4, 2), np.array([5], np.int32)], [1, 6, 6, 6])
