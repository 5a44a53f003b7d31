"""The attention of one new token against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(8)
BATCH, HEADS, SIZE = 2, 3, 8
WIDTH = HEADS * SIZE
OP = "DecoderMaskedMultiHeadAttention"


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


NEW = [normal(BATCH, 1, WIDTH) for _ in range(3)]
BUFFERS = [normal(BATCH, HEADS, 9, SIZE) for _ in range(2)]
PAST = np.array([3], np.int32)
SHARED = {"num_heads": HEADS, "past_present_share_buffer": 1}


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_shared_buffer(masked: bool, bias: bool) -> None:
    mask = np.array([[1, 0, 1, 1], [1, 1, 1, 1]], np.int32) if masked else None
    added = normal(1, HEADS, 1, 4) if bias else None
    given = [*NEW, mask, added, *BUFFERS, PAST, None, None, normal(3 * WIDTH) if bias else None]
    peer.compare(OP, given, 3, SHARED)


def test_beams() -> None:
    ancestors = RNG.integers(0, 2, (1, 2, 9)).astype(np.int32)
    peer.compare(OP, [*NEW, None, None, *BUFFERS, PAST, np.array([2], np.int32), ancestors], 3, SHARED)


@pytest.mark.parametrize("bias", [True, False])
def test_cross_attention_and_its_scores(bias: bool) -> None:
    given = [NEW[0], *BUFFERS, *[None] * 7, normal(3 * WIDTH) if bias else None]
    peer.compare(OP, given, [1, 0, 0, 1], {"num_heads": HEADS, "output_qk": 1})


def test_a_growing_cache_equals_a_shared_one() -> None:
    expected = peer.run(OP, [*NEW, None, None, *BUFFERS, PAST], 3, SHARED)
    short = [buffer[:, :, :3].copy() for buffer in BUFFERS]
    found = peer.run(OP, [*NEW, None, None, *short], 3, {"num_heads": HEADS})
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    np.testing.assert_array_equal(found[1], expected[1][:, :, :4])


def test_more_than_one_token_is_refused() -> None:
    with pytest.raises(Exception, match="must hold one token a sequence"):
        peer.run(OP, [normal(2, 2, WIDTH)] * 3, 1, {"num_heads": HEADS})
