"""Attention with a merged projection against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(0)
BATCH, LENGTH, HEADS, SIZE, PAST = 2, 4, 3, 8, 3
WIDTH = HEADS * SIZE


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


X, W, B = normal(BATCH, LENGTH, 10), normal(10, 3 * WIDTH) / 2, normal(3 * WIDTH)
CACHE = normal(2, BATCH, HEADS, PAST, SIZE)
MASKS = {
    "none": None,
    "lengths": np.array([3, 4], np.int32),
    "ends and starts": np.array([3, 4, 0, 1], np.int32),
    "lengths and sums": np.array([3, 4, 0, 3, 7, 0, 3, 7], np.int32),
    "raw": np.array([[1, 1, 0, 1], [1, 1, 1, 0]], np.int32),
    "all masked": np.zeros((BATCH, LENGTH), np.int32),
    "for each query": (RNG.random((BATCH, LENGTH, LENGTH)) > 0.3).astype(np.int32),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_masks(mask: str, unidirectional: int) -> None:
    peer.compare("Attention", [X, W, B, MASKS[mask]], attributes={"num_heads": HEADS, "unidirectional": unidirectional})


def test_a_mask_over_two_axes_of_the_longest_length_takes_its_corner() -> None:
    tall = (RNG.random((BATCH, 1, 9, 9)) > 0.3).astype(np.int32)
    (found,) = peer.run("Attention", [X, W, B, tall], attributes={"num_heads": HEADS})
    (expected,) = peer.run("Attention", [X, W, B, tall[:, 0, :LENGTH, :LENGTH].copy()], attributes={"num_heads": HEADS})
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_present_without_past(unidirectional: int) -> None:
    peer.compare("Attention", [X, W, B], 2, {"num_heads": HEADS, "unidirectional": unidirectional})


@pytest.mark.parametrize("masked", [False, True])
def test_past(masked: bool) -> None:
    mask = np.array([[1, 1, 1, 0, 1, 0, 1], [0, 0, 1, 1, 1, 1, 1]], np.int32) if masked else None
    peer.compare("Attention", [X, W, B, mask, CACHE], 2, {"num_heads": HEADS, "unidirectional": 1})


@pytest.mark.parametrize("length", [1, WIDTH, 3 * WIDTH - 1, 3 * WIDTH + 1])
@pytest.mark.parametrize("mask", [None, np.ones((BATCH, 1, 9, 9), np.int32)], ids=["native", "host"])
def test_a_bias_of_another_length_is_refused(length: int, mask: np.ndarray | None) -> None:
    with pytest.raises(Exception, match=rf"'bias' is expected to have shape \({3 * WIDTH},\), got \({length},\)"):
        peer.run("Attention", [X, W, normal(length), mask], attributes={"num_heads": HEADS})


@pytest.mark.parametrize("shape", [(1, HEADS), (BATCH, HEADS)])
def test_attention_bias_and_scale(shape: tuple[int, int]) -> None:
    bias = normal(*shape, LENGTH, LENGTH)
    peer.compare("Attention", [X, W, B, None, None, bias], attributes={"num_heads": HEADS, "scale": 0.3})


def test_mask_filter_value() -> None:
    peer.compare("Attention", [X, W, B, MASKS["raw"]], attributes={"num_heads": HEADS, "mask_filter_value": -5.0})


def test_values_of_another_width() -> None:
    columns = 2 * WIDTH + HEADS * 5
    sizes = [WIDTH, WIDTH, HEADS * 5]
    peer.compare(
        "Attention",
        [X, normal(10, columns), normal(columns)],
        attributes={"num_heads": HEADS, "qkv_hidden_sizes": sizes},
    )


def test_a_shared_buffer_gives_what_a_growing_one_gives() -> None:
    buffer = np.full((2, BATCH, HEADS, 10, SIZE), 7, np.float32)
    buffer[:, :, :, :PAST] = CACHE
    attributes = {"num_heads": HEADS, "unidirectional": 1}
    expected, grown = peer.run("Attention", [X, W, B, None, CACHE], 2, attributes)
    found, present = peer.run(
        "Attention",
        [X, W, B, None, buffer, None, np.array([PAST], np.int32)],
        2,
        {**attributes, "past_present_share_buffer": 1},
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(present[:, :, :, : PAST + LENGTH], grown, rtol=1e-5, atol=1e-6)
    assert (present[:, :, :, PAST + LENGTH :] == 7).all()


def test_a_mask_that_does_not_fit_is_named() -> None:
    with pytest.raises(Exception, match=r"'mask_index' of shape \(2, 5\) is no mask for batch 2, 4 queries and 4 keys"):
        peer.run("Attention", [X, W, B, np.ones((2, 5), np.int32)], attributes={"num_heads": HEADS})
