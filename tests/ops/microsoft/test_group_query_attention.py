"""GroupQueryAttention against onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from tests.ops.microsoft import peer

RNG = np.random.default_rng(0)
BATCH, LENGTH, HEADS, KEY_HEADS, SIZE, PAST = 2, 4, 4, 2, 16, 5
BASE = {"num_heads": HEADS, "kv_num_heads": KEY_HEADS}
OP = "GroupQueryAttention"
# What is known before the run decides where the node runs: its kernel must know the total length.
HOST: dict[str, Any] = {}
NATIVE: dict[str, Any] = {"constants": (6,), "symbolic": False}
PLACES = pytest.mark.parametrize("place", [HOST, NATIVE], ids=["host", "native"])


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def qkv(length: int, batch: int = BATCH) -> list[np.ndarray]:
    return [normal(batch, length, heads * SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]


def cache(length: int = PAST, batch: int = BATCH) -> list[np.ndarray]:
    return [normal(batch, KEY_HEADS, length, SIZE) for _ in range(2)]


ANGLES = RNG.random((20, SIZE // 2)).astype(np.float32) * 6
ROTATION = [np.cos(ANGLES), np.sin(ANGLES)]
PROMPT: list[Any] = [*qkv(LENGTH), None, None, i32(3, 3), i32(4)]
STEP: list[Any] = [*qkv(1), *cache(), i32(3, 5), i32(6)]


@pytest.mark.parametrize("lengths", [(3, 3), (2, 3), (1, 0)])
def test_prompt(lengths: tuple[int, int]) -> None:
    peer.compare(OP, [*PROMPT[:5], i32(*lengths), i32(4)], 3, BASE)


def test_packed_queries_keys_and_values() -> None:
    peer.compare(OP, [np.concatenate(PROMPT[:3], axis=-1), *[None] * 4, *PROMPT[5:]], 3, BASE)


@pytest.mark.parametrize("lengths", [(5, 5), (3, 5)])
@pytest.mark.parametrize("capacity", [5, 12])
def test_one_new_token(lengths: tuple[int, int], capacity: int) -> None:
    peer.compare(OP, [*qkv(1), *cache(capacity), i32(*lengths), i32(6)], 3, BASE)


def test_a_prompt_into_a_buffer() -> None:
    peer.compare(OP, [*qkv(LENGTH), *cache(12), i32(3, 3), i32(4)], 3, BASE)


def test_several_new_tokens_after_a_past() -> None:
    peer.compare(OP, [*qkv(4, 1), *cache(5, 1), i32(8), i32(9)], 3, BASE)


def cached_only(queries: int, capacity: int, *ends: int) -> list[Any]:
    batch = len(ends)
    new = [normal(batch, queries, HEADS * SIZE), *(normal(batch, 0, KEY_HEADS * SIZE) for _ in range(2))]
    return [*new, *cache(capacity, batch), i32(*(end - 1 for end in ends)), i32(max(ends))]


@pytest.mark.parametrize(
    "given",
    [cached_only(1, 8, 8), cached_only(1, 8, 5, 3), cached_only(3, 8, 8), cached_only(8, 8, 8), cached_only(2, 9, 6)],
    ids=["one", "batch", "several", "prompt", "buffer"],
)
@pytest.mark.parametrize("attributes", [{}, {"do_rotary": 1}, {"local_window_size": 2}], ids=str)
@PLACES
def test_all_keys_lie_in_the_cache_of_another_layer(
    given: list[Any], attributes: dict[str, Any], place: dict[str, Any]
) -> None:
    inputs = [*given, *ROTATION] if "do_rotary" in attributes else given
    peer.compare(OP, inputs, 3, {**BASE, **attributes}, **place)


@pytest.mark.parametrize("given", [cached_only(3, 8, 8), cached_only(8, 8, 8)], ids=["several", "prompt"])
def test_scores_over_the_cache_of_another_layer(given: list[Any]) -> None:
    peer.compare(OP, [*given, *ROTATION], 4, {**BASE, "do_rotary": 1, "qk_output": 1})


@PLACES
def test_a_cache_that_does_not_hold_all_keys_is_named(place: dict[str, Any]) -> None:
    for given, new in ((cached_only(1, 4, 5), 0), ([*qkv(1, 1), *cache(4, 1), i32(5), i32(6)], 1)):
        words = f"a total length of {5 + new} is more than a cache of 4 rows and {new} new keys have"
        with pytest.raises(Exception, match=words):
            peer.run(OP, given, 3, BASE, **place)


@pytest.mark.parametrize(
    ("index", "shape", "words"),
    [
        (3, (1, KEY_HEADS, PAST, SIZE), "a cache of shape .*1, 2, 5, 16.* does not fit new keys and values"),
        (4, (BATCH, KEY_HEADS, PAST, SIZE + 1), "a cache of shape .*2, 2, 5, 17.* does not fit new keys and values"),
        (4, (PAST, SIZE), "'past_value' is expected to have 4 dimensions"),
        (10, (1, 1, 0, PAST + 1), "a bias of shape .*1, 1, 0, 6.* does not fit scores of shape .*2, 4, 1, 6"),
    ],
)
@PLACES
def test_shapes_that_do_not_fit_are_named(
    index: int, shape: tuple[int, ...], words: str, place: dict[str, Any]
) -> None:
    given = [*STEP, *[None] * 4]
    given[index] = normal(*shape)
    with pytest.raises(Exception, match=words):
        peer.run(OP, given, 3, BASE, **place)


@PLACES
def test_an_entry_without_keys_is_named(place: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"'seqlens_k'.* -5.* does not fit"):
        peer.run(OP, [*PROMPT[:5], i32(3, -5), i32(4)], 3, BASE, **place)


@pytest.mark.parametrize("given", ["prompt", "step", "positions"])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotation(given: str, interleaved: int) -> None:
    inputs = [*(PROMPT if given == "prompt" else STEP), *ROTATION]
    if given == "positions":
        inputs.append(np.array([[7], [2]]))
    peer.compare(OP, inputs, 3, {**BASE, "do_rotary": 1, "rotary_interleaved": interleaved})


@PLACES
def test_a_prompt_counts_from_the_first_of_its_positions(place: dict[str, Any]) -> None:
    positions = np.array([[3, 1, 4, 1], [0, 1, 2, 3]])
    peer.compare(OP, [*PROMPT, *ROTATION, positions], 3, {**BASE, "do_rotary": 1}, **place)


@pytest.mark.parametrize(
    "attributes",
    [{"local_window_size": 2}, {"softcap": 2.0}, {"smooth_softmax": 1}, {"scale": 0.1}, {"local_window_size": 1}],
)
@pytest.mark.parametrize("given", [PROMPT, STEP], ids=["prompt", "step"])
def test_attributes(attributes: dict[str, Any], given: list[Any]) -> None:
    peer.compare(OP, given, 3, {**BASE, **attributes})


def test_bidirectional() -> None:
    peer.compare(OP, PROMPT, 3, {**BASE, "causal": 0})


def test_head_sink() -> None:
    peer.compare(OP, [*PROMPT, None, None, None, None, normal(HEADS)], 3, BASE)


@pytest.mark.parametrize("shape", [(1, HEADS), (BATCH, 1)])
def test_attention_bias_comes_after_the_soft_cap(shape: tuple[int, int]) -> None:
    peer.compare(OP, [*PROMPT, None, None, None, normal(*shape, LENGTH, LENGTH)], 3, {**BASE, "softcap": 2.0})


@pytest.mark.parametrize("chosen", [1, 2])
def test_scores_as_an_output(chosen: int) -> None:
    peer.compare(OP, PROMPT, 4, {**BASE, "qk_output": chosen})


def test_half_precision() -> None:
    half = [array.astype(np.float16) for array in PROMPT[:3]]
    peer.compare(OP, [*half, *PROMPT[3:]], 3, BASE, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_cache(kind: str, bits: int) -> None:
    shape = (1,) if kind == "PER_TENSOR" else (1, KEY_HEADS, 1, SIZE)
    scales = [(RNG.random(shape) * 0.05 + 0.02).astype(np.float32) * (1 if bits == 8 else 10) for _ in range(2)]
    if bits == 8:
        past = [RNG.integers(-128, 128, (BATCH, KEY_HEADS, PAST, SIZE)).astype(np.int8) for _ in range(2)]
    else:
        past = [RNG.integers(0, 256, (BATCH, KEY_HEADS, PAST, SIZE // 2)).astype(np.uint8) for _ in range(2)]
    peer.compare(
        OP,
        [*STEP[:3], *past, i32(5, 5), i32(6), *[None] * 5, *scales],
        [1, 3, 3] if bits == 8 else [1, 2, 2],
        {**BASE, "k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": bits},
        atol=1e-3,
    )


@pytest.mark.parametrize("capacity", [4, 6])
def test_a_windowed_cache_over_many_steps(capacity: int) -> None:
    """Both engines step through the same tokens, each with its own cache; resident rows and outputs agree."""
    attributes = {**BASE, "sliding_window_cache": 1, "local_window_size": 4}
    ours = theirs = [np.zeros((1, KEY_HEADS, capacity, SIZE), np.float32) for _ in range(2)]
    step = capacity - 4 + 1
    for total in range(1, 14):
        held = total if total <= capacity else total - step * -(-(total - capacity) // step)
        given = [*qkv(1, 1), None, None, i32(total - 1), i32(total)]
        model = peer.one_node(OP, [*given[:3], *ours, *given[5:]], 3, attributes)
        found = peer.sardonyx(model, peer.feeds(model, [*given[:3], *ours, *given[5:]]))
        expected = peer.onnxruntime(model, peer.feeds(model, [*given[:3], *theirs, *given[5:]]))
        ours, theirs = found[1:], expected[1:]
        peer.check(found[:1], expected[:1], 1e-4, 1e-5)
        peer.check([x[:, :, :held] for x in ours], [x[:, :, :held] for x in theirs], 1e-6, 1e-6)


def test_norm_weights_apply_before_the_rotation() -> None:
    weights = [normal(SIZE), normal(SIZE)]
    found = peer.run(OP, [*PROMPT, *ROTATION, *[None] * 5, *weights], 3, {**BASE, "do_rotary": 1})

    def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        heads = x.reshape(*x.shape[:2], -1, SIZE)
        return (heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-6) * weight).reshape(x.shape)

    plain = [normed(PROMPT[0], weights[0]), normed(PROMPT[1], weights[1]), *PROMPT[2:]]
    expected = peer.run(OP, [*plain, *ROTATION], 3, {**BASE, "do_rotary": 1})
    peer.check(found, expected, 1e-4, 1e-5)


def test_lengths_that_do_not_fit_are_named() -> None:
    with pytest.raises(Exception, match=r"'seqlens_k' \[9, 3\] does not fit batch 2 and total length 4"):
        peer.run(OP, [*PROMPT[:5], i32(9, 3), i32(4)], 3, BASE)


def test_a_float8_cache_equals_the_floats_it_holds() -> None:
    scales = [np.array([0.5], np.float32), np.array([0.25], np.float32)]
    stored = [array.astype(ml_dtypes.float8_e4m3fn) for array in cache()]
    kinds = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
    lengths = [i32(5, 5), i32(6)]
    kind = TensorProto.FLOAT8E4M3FN
    found = peer.run(OP, [*STEP[:3], *stored, *lengths, *[None] * 5, *scales], [1, kind, kind], {**BASE, **kinds})
    new = [
        (x.reshape(BATCH, 1, KEY_HEADS, SIZE).transpose(0, 2, 1, 3) / scale).astype(ml_dtypes.float8_e4m3fn)
        for x, scale in zip(STEP[1:3], scales, strict=True)
    ]
    for present, past, added in zip(found[1:], stored, new, strict=True):
        np.testing.assert_array_equal(present.astype(np.float32), np.concatenate([past, added], 2).astype(np.float32))
    plain = [x.astype(np.float32) * scale for x, scale in zip(stored, scales, strict=True)]
    rounded = [
        (x.astype(np.float32) * scale).transpose(0, 2, 1, 3).reshape(BATCH, 1, -1)
        for x, scale in zip(new, scales, strict=True)
    ]
    (expected, *_) = peer.run(OP, [STEP[0], *rounded, *plain, *lengths], 3, BASE)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)
