"""DecoderMaskedSelfAttention against onnxruntime's DecoderMaskedMultiHeadAttention; DecoderAttention against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(12)
BATCH, HEADS, SIZE, LONGEST = 2, 3, 8, 9
WIDTH = HEADS * SIZE


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def blocked(keys: np.ndarray) -> np.ndarray:
    """Each x elements of a head's size for all places next to each other, where x elements have 16 bytes."""
    x = 16 // keys.itemsize
    result = np.empty_like(keys)
    for batch in range(keys.shape[0]):
        for head in range(keys.shape[1]):
            parts = [keys[batch, head, :, start : start + x] for start in range(0, keys.shape[3], x)]
            result[batch, head] = np.concatenate([part.ravel() for part in parts]).reshape(keys.shape[2:])
    return result


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("beams", [False, True])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("scale", [None, 0.2])
def test_a_shared_buffer_of_blocked_keys(masked: bool, beams: bool, added: bool, scale: float | None) -> None:
    x, weights, bias = normal(BATCH, 1, 5), normal(5, 3 * WIDTH), normal(3 * WIDTH)
    keys, values = normal(BATCH, HEADS, LONGEST, SIZE), normal(BATCH, HEADS, LONGEST, SIZE)
    past = np.array([3], np.int32)
    mask = np.array([[1, 0, 1, 1], [1, 1, 1, 1]], np.int32) if masked else None
    attention_bias = normal(1, HEADS, 1, 4) if added else None
    ancestors = RNG.integers(0, 2, (1, 2, LONGEST)).astype(np.int32) if beams else None
    width = np.array([2], np.int32) if beams else None
    attributes = {"num_heads": HEADS, "past_present_share_buffer": 1, **({"scale": scale} if scale else {})}
    buffer = np.stack([blocked(keys), values])
    output, present = peer.run(
        "DecoderMaskedSelfAttention",
        [x, weights, bias, mask, buffer, attention_bias, past, width, ancestors],
        2,
        attributes,
    )
    parts = np.split(x @ weights + bias, 3, axis=-1)
    given = [*parts, mask, attention_bias, keys, values, past, width, ancestors]
    model = peer.one_node("DecoderMaskedMultiHeadAttention", given, 3, attributes)
    expected, present_keys, present_values = peer.onnxruntime(model, peer.feeds(model, given))
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(present[0], blocked(present_keys), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(present[1], present_values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_growing_cache_equals_a_shared_one(dtype: Any) -> None:
    x, weights, bias = (
        normal(BATCH, 1, 5, dtype=dtype),
        normal(5, 3 * WIDTH, dtype=dtype),
        normal(3 * WIDTH, dtype=dtype),
    )
    keys, values = normal(BATCH, HEADS, LONGEST, SIZE, dtype=dtype), normal(BATCH, HEADS, LONGEST, SIZE, dtype=dtype)
    past = np.array([4], np.int32)
    op = "DecoderMaskedSelfAttention"
    shared = {"num_heads": HEADS, "past_present_share_buffer": 1}
    buffer = np.stack([blocked(keys), values])
    expected, long = peer.run(op, [x, weights, bias, None, buffer, None, past], 2, shared)
    short = np.stack([keys[:, :, :4], values[:, :, :4]])
    found, present = peer.run(op, [x, weights, bias, None, short, None, past], 2, {"num_heads": HEADS})
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(present[1], long[1][:, :, :5])
    assert present.shape == (2, BATCH, HEADS, 5, SIZE)


@pytest.mark.parametrize(
    ("shape", "attributes", "message"),
    [
        ((BATCH, 2, 5), {}, "must hold one token a sequence"),
        ((BATCH, 1, 5), {"do_rotary": 1}, "do_rotary"),
        ((BATCH, 1, 5), {"num_heads": 2}, "must have 48 columns"),
    ],
)
def test_wrong_self_attention_is_refused(shape: tuple[int, ...], attributes: dict[str, int], message: str) -> None:
    cache = normal(2, BATCH, attributes.get("num_heads", HEADS), 4, SIZE)
    given = [normal(*shape), normal(5, 3 * WIDTH), normal(3 * WIDTH), None, cache, None, np.array([4], np.int32)]
    with pytest.raises(Exception, match=message):
        peer.run("DecoderMaskedSelfAttention", given, 2, {"num_heads": HEADS, **attributes})


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(("use_past", "has_state"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("masked", [False, True])
def test_decoder_attention(static: bool, use_past: bool, has_state: bool, masked: bool) -> None:
    torch = pytest.importorskip("torch")
    length, source, before = 4, 6, 3
    query, key = normal(length, BATCH, WIDTH), normal(source, BATCH, WIDTH)
    q_weight, kv_weight, bias = normal(WIDTH, WIDTH), normal(WIDTH, 2 * WIDTH), normal(3 * WIDTH)
    caches = [normal(BATCH, HEADS, before, SIZE) for _ in range(2)]
    wide = [torch.from_numpy(array).double() for array in (query, key, q_weight, kv_weight, bias)]

    def heads(x: Any) -> Any:
        return x.reshape(len(x), BATCH, HEADS, SIZE).permute(1, 2, 0, 3)

    q = heads(wide[0] @ wide[2] + wide[4][:WIDTH])
    from_source = (wide[1] if static else wide[0]) @ wide[3] + wide[4][WIDTH:]
    k, v = heads(from_source[..., :WIDTH]), heads(from_source[..., WIDTH:])
    if use_past:
        old = [torch.from_numpy(cache).double() for cache in caches]
        k, v = old if static else [torch.cat(pair, 2) for pair in zip(old, (k, v), strict=True)]
    mask = RNG.random((BATCH, k.shape[2])) < 0.4
    mask[:, 0] = False
    keep = torch.from_numpy(~mask)[:, None, None, :] if masked else None
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    flags = [np.array([flag]) for flag in (static, use_past, has_state, masked)]
    given = [query, key, q_weight, kv_weight, bias, mask, *caches, *flags]
    output, new_k, new_v = peer.run("DecoderAttention", given, 3, {"num_heads": HEADS})
    by_time = expected.permute(2, 0, 1, 3).reshape(length, BATCH, WIDTH)
    np.testing.assert_allclose(output, by_time.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(new_k, k.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(new_v, v.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [((0, 1, 1, 0), "needs inputs 'key_cache'"), ((0, 0, 0, 1), "needs input 'key_padding_mask'")],
)
def test_decoder_attention_names_what_is_missing(flags: tuple[int, ...], message: str) -> None:
    weights = [normal(WIDTH, WIDTH), normal(WIDTH, 2 * WIDTH), normal(3 * WIDTH)]
    states = [np.array([bool(flag)]) for flag in flags]
    given = [normal(2, BATCH, WIDTH), normal(2, BATCH, WIDTH), *weights, None, None, None, *states]
    with pytest.raises(Exception, match=message):
        peer.run("DecoderAttention", given, 1, {"num_heads": HEADS})
