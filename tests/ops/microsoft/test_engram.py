"""Engram's gate and hashes against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(8)
SIZES = np.array([11, 13, 17, 19])
BASE = {"max_ngram_size": 3, "n_head_per_ngram": 2, "pad_id": 5}


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("normed", [True, False])
def test_gate(normed: bool) -> None:
    given = [normal(2, 3, 4, 8), normal(2, 3, 4, 8), normal(2, 3, 8), *(normal(4, 8) for _ in range(2 + normed))]
    peer.compare("EngramGate", given, 1 + normed)


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize("reset", [0, 1])
@pytest.mark.parametrize("segments", [True, False])
def test_hashes(dtype: type, past: bool, reset: int, segments: bool) -> None:
    high = 2**62 if dtype == np.int64 else 2**30
    given = [
        RNG.integers(0, 9, (2, 7)).astype(dtype),
        RNG.integers(1, high, 3).astype(dtype),
        SIZES.astype(dtype),
        RNG.integers(0, 9, (2, 2)).astype(dtype) if past else None,
        np.array([0, 11, 24, 41], dtype),
        np.array(2, dtype) if reset else None,
        np.array([[0, 0, 1, 1, 1, 2, 2], [0] * 7], np.int32) if segments else None,
    ]
    kind = 7 if dtype == np.int64 else 6
    peer.compare("NGramHashMapping", given, [kind, kind], {**BASE, "reset_on_eos": reset})


@pytest.mark.parametrize("reset", [0, 1])
@pytest.mark.parametrize("capacity", [0, 2])
def test_hashes_of_packed_sequences(reset: int, capacity: int) -> None:
    given = [
        RNG.integers(0, 9, 7),
        RNG.integers(1, 2**62, 3),
        SIZES,
        np.array([0, 3, 7], np.int32),
        RNG.integers(0, 9, (2, 2)),
        None,
        np.array(2) if reset else None,
        None,
        None,
        np.array([1, 5], np.int32) if capacity else None,
    ]
    outputs = [7, 7, 0, 7] if capacity else [7, 7]
    attributes = {**BASE, "reset_on_eos": reset, "state_update_capacity": capacity}
    peer.compare("VarlenNGramHashMapping", given, outputs, attributes)


@pytest.mark.parametrize("reset", [0, 1])
@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize("past_segments", [True, False])
def test_segments_of_packed_sequences(reset: int, past: bool, past_segments: bool) -> None:
    """Ids before a segment do not count for those in it; a history without segments belongs to the first one."""
    for lengths in ((3, 4), (1, 6), (7, 1)):
        count = sum(lengths)
        given = [
            RNG.integers(0, 9, count),
            RNG.integers(1, 2**62, 3),
            SIZES,
            np.cumsum([0, *lengths], dtype=np.int32),
            RNG.integers(0, 9, (2, 2)) if past else None,
            None,
            np.array(2) if reset else None,
            RNG.integers(0, 2, count).astype(np.int32),
            RNG.integers(0, 2, (2, 2)).astype(np.int32) if past_segments else None,
        ]
        peer.compare("VarlenNGramHashMapping", given, [7, 7, 6], {**BASE, "reset_on_eos": reset})


def test_past_segments_need_segments() -> None:
    given = [np.array([1]), np.array([1, 3, 5]), SIZES, np.array([0, 1], np.int32), *[None] * 4]
    with pytest.raises(Exception, match="need the input 'segment_ids'"):
        peer.run("VarlenNGramHashMapping", [*given, np.zeros((1, 2), np.int32)], [7], BASE)


def test_a_vocabulary_of_zero_is_refused() -> None:
    given = [np.array([[1]]), np.array([1, 3, 5]), np.array([1, 2, 3, 0])]
    with pytest.raises(Exception, match="'vocab_sizes' must be positive"):
        peer.run("NGramHashMapping", given, [7], BASE)
