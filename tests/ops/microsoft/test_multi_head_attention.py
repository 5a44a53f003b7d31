"""MultiHeadAttention against onnxruntime; packed layouts against the separate tensors they hold."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(0)
BATCH, LENGTH, KEYS, HEADS, SIZE, VALUE_SIZE, PAST = 2, 4, 5, 3, 8, 6, 3
WIDTH, VALUE_WIDTH = HEADS * SIZE, HEADS * VALUE_SIZE


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def kept(*shape: int) -> np.ndarray:
    return (RNG.random(shape) > 0.3).astype(np.int32)


Q, K, V, BIAS = normal(BATCH, LENGTH, WIDTH), normal(BATCH, KEYS, WIDTH), normal(BATCH, KEYS, VALUE_WIDTH), normal(66)
SELF_K, SELF_V = normal(BATCH, LENGTH, WIDTH), normal(BATCH, LENGTH, WIDTH)
PAST_K, PAST_V = normal(BATCH, HEADS, PAST, SIZE), normal(BATCH, HEADS, PAST, SIZE)
CAUSAL = {"num_heads": HEADS, "unidirectional": 1}
MASKS = {
    "none": None,
    "lengths": np.array([3, 4], np.int32),
    "lengths and sums": np.array([3, 4, 0, 4, 8, 0, 3, 7], np.int32),
    "raw": kept(BATCH, KEYS),
    "for each query": kept(BATCH, LENGTH, KEYS),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", [True, False])
def test_cross_attention(mask: str, bias: bool) -> None:
    given = [Q, K, V, BIAS if bias else None, MASKS[mask]]
    peer.compare("MultiHeadAttention", given, attributes={"num_heads": HEADS})


@pytest.mark.parametrize("shape", [(1, HEADS), (BATCH, 1)])
def test_attention_bias(shape: tuple[int, int]) -> None:
    bias = normal(*shape, LENGTH, KEYS)
    peer.compare("MultiHeadAttention", [Q, K, V, None, None, bias], attributes={"num_heads": HEADS, "scale": 0.2})


def test_key_and_value_as_caches() -> None:
    cache_k, cache_v = normal(BATCH, HEADS, KEYS, SIZE), normal(BATCH, HEADS, KEYS, SIZE)
    peer.compare("MultiHeadAttention", [Q, cache_k, cache_v, normal(3 * WIDTH)], attributes={"num_heads": HEADS})


@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_causal_self_attention_with_past_and_scores(past: bool, masked: bool) -> None:
    mask = kept(BATCH, LENGTH + (PAST if past else 0)) if masked else None
    given = [Q, SELF_K, SELF_V, normal(3 * WIDTH), mask, None, *((PAST_K, PAST_V) if past else ())]
    peer.compare("MultiHeadAttention", given, 4, CAUSAL)


@pytest.mark.parametrize("new", [1, LENGTH])
def test_a_shared_buffer(new: int) -> None:
    buffers = normal(BATCH, HEADS, 9, SIZE), normal(BATCH, HEADS, 9, SIZE)
    given = [tensor[:, :new].copy() for tensor in (Q, SELF_K, SELF_V)]
    peer.compare(
        "MultiHeadAttention",
        [*given, None, None, None, *buffers, np.array([PAST], np.int32)],
        3,
        {"num_heads": HEADS},
    )


def test_beams_read_the_cache_of_their_ancestors() -> None:
    buffers = normal(BATCH, HEADS, 9, SIZE), normal(BATCH, HEADS, 9, SIZE)
    ancestors = np.array([[[1, 0, 1, 0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 0, 0, 0, 0, 0]]], np.int32)
    given = [tensor[:, :1].copy() for tensor in (Q, SELF_K, SELF_V)]
    peer.compare(
        "MultiHeadAttention",
        [*given, None, None, None, *buffers, np.array([PAST], np.int32), ancestors],
        3,
        {"num_heads": HEADS},
    )


def test_packed_layouts_equal_the_separate_one() -> None:
    def heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(BATCH, -1, HEADS, SIZE)

    expected = peer.run("MultiHeadAttention", [Q, SELF_K, SELF_V], 3, CAUSAL)
    qkv = np.stack([heads(Q), heads(SELF_K), heads(SELF_V)], axis=3)
    kv = np.stack([heads(SELF_K), heads(SELF_V)], axis=3)
    for given in ([qkv], [Q, kv], [np.concatenate([Q, SELF_K, SELF_V], axis=-1)]):
        for ours, theirs in zip(peer.run("MultiHeadAttention", given, 3, CAUSAL), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_bias_of_the_wrong_size_is_named() -> None:
    with pytest.raises(Exception, match="'bias' is expected to have 66 elements, got 65"):
        peer.run("MultiHeadAttention", [Q, K, V, BIAS[:65].copy()], attributes={"num_heads": HEADS})
