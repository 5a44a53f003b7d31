"""PagedAttention against GroupQueryAttention, one sequence at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(8)
HEADS, KEY_HEADS, SIZE, BLOCK = 4, 2, 16, 4
BASE = {"num_heads": HEADS, "kv_num_heads": KEY_HEADS}
PAST = np.array([5, 9], np.int32)
SUMS = np.array([0, 3, 4], np.int32)
TABLE = np.array([[6, 1, 0], [2, 5, 3]], np.int32)
ANGLES = RNG.random((20, SIZE // 2)).astype(np.float32) * 6
ROTATION = [np.cos(ANGLES), np.sin(ANGLES)]


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def unpaged(cache: np.ndarray, entry: int, length: int) -> np.ndarray:
    """The cache of one sequence as (1, heads, length, size)."""
    rows = np.concatenate([cache[block] for block in TABLE[entry]])[:length]
    return np.ascontiguousarray(rows.swapaxes(0, 1)[None])


@pytest.mark.parametrize("attributes", [{}, {"softcap": 2.0}, {"local_window_size": 4}, {"do_rotary": 1}])
@pytest.mark.parametrize("packed", [True, False])
def test_each_sequence_equals_its_own_grouped_attention(attributes: dict[str, Any], packed: bool) -> None:
    tokens = [normal(4, heads * SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    given = [np.concatenate(tokens, -1), None, None] if packed else tokens
    caches = [normal(7, BLOCK, KEY_HEADS, SIZE) for _ in range(2)]
    rotation = ROTATION if attributes.get("do_rotary") else []
    inputs = [*given, *caches, SUMS, PAST, TABLE, *rotation]
    found, keys, values = peer.run("PagedAttention", inputs, 3, {**BASE, **attributes})
    for entry, (begin, end) in enumerate([(0, 3), (3, 4)]):
        total = int(PAST[entry]) + end - begin
        own = [x[None, begin:end].copy() for x in tokens]
        past = [unpaged(cache, entry, int(PAST[entry])) for cache in caches]
        lengths = [np.array([total - 1], np.int32), np.array([total], np.int32)]
        expected = peer.run("GroupQueryAttention", [*own, *past, *lengths, *rotation], 3, {**BASE, **attributes})
        np.testing.assert_allclose(found[begin:end], expected[0][0], rtol=1e-4, atol=1e-5)
        for cache, present in zip((keys, values), expected[1:], strict=True):
            np.testing.assert_allclose(unpaged(cache, entry, total), present, rtol=1e-6)


def test_tokens_without_a_slot_are_not_written() -> None:
    tokens = [normal(4, heads * SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    caches = [normal(7, BLOCK, KEY_HEADS, SIZE) for _ in range(2)]
    slots = np.full(4, -1, np.int32)
    _, keys, values = peer.run("PagedAttention", [*tokens, *caches, SUMS, PAST, TABLE, None, None, slots], 3, BASE)
    np.testing.assert_array_equal(keys, caches[0])
    np.testing.assert_array_equal(values, caches[1])
