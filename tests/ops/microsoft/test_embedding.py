"""Embedding lookups against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ids(high: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, high, shape).astype(np.int32)


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("positions", [None, 1, 3])
def test_embed_layer_normalization(segments: bool, mask: bool, positions: int | None) -> None:
    kept = np.ones((3, 6), np.int32)
    kept[1, 4:] = 0
    kept[2, 2] = 0
    peer.compare(
        "EmbedLayerNormalization",
        [
            ids(20, 3, 6),
            ids(2, 3, 6) if segments else None,
            normal(20, 8),
            normal(10, 8),
            normal(2, 8) if segments else None,
            normal(8),
            normal(8),
            kept if mask else None,
            None if positions is None else ids(10, positions, 6),
        ],
        [1, 6, 1],
        {"epsilon": 1e-6, "mask_index_type": 1},
        constants=(2, 3, 4, 5, 6),
    )


def test_an_unknown_word_is_named() -> None:
    with pytest.raises(Exception, match="'input_ids' holds an id outside of its table of 4 rows"):
        peer.run(
            "EmbedLayerNormalization",
            [np.full((1, 3), 4, np.int32), None, normal(4, 8), normal(5, 8), None, normal(8), normal(8)],
            [1, 6],
        )


def test_torch_embedding() -> None:
    weight, indices = normal(9, 4), RNG.integers(0, 9, (2, 3, 5))
    (found,) = peer.run("TorchEmbedding", [weight, indices, np.array(0)])
    np.testing.assert_array_equal(found, weight[indices])
    with pytest.raises(Exception, match="outside of the 9 rows"):
        peer.run("TorchEmbedding", [weight, np.array([9])])


@pytest.mark.parametrize("window", [1, 2, 3])
def test_word_convolution_embedding(window: int) -> None:
    words = ids(12, 8, 7)
    words[words == 0] = 1
    words[0, 3:] = 0
    words[2, 1:] = 0
    words[5, 5:] = 0
    peer.compare(
        "WordConvEmbedding",
        [words, normal(6, 1, window, 5), normal(6), normal(12, 5)],
        [1],
        constants=(1, 2, 3),
    )


def test_zeros_inside_of_a_word_shorten_it() -> None:
    words = np.array([[1, 2, 0, 3, 1, 0], [3, 0, 0, 1, 2, 1], [1, 2, 3, 0, 0, 1]], np.int32)
    peer.compare("WordConvEmbedding", [words, normal(4, 1, 2, 5), normal(4), normal(4, 5)], [1], constants=(1, 2, 3))


def test_an_empty_word_gives_zeros() -> None:
    words = np.array([[0, 0, 0], [1, 0, 0]], np.int32)
    (found,) = peer.run("WordConvEmbedding", [words, np.ones((2, 1, 2, 3), np.float32), normal(2), normal(4, 3)], [1])
    assert not found[0].any()
    assert found[1].all()
