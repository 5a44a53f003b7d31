"""Sampling with a small decoder: the tokens that onnxruntime draws with the same seed, and its rules by formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.ops.microsoft.logits_rules import LogitsRules
from sardonyx.ops.microsoft.sampling import MinimalStandard, drawn
from tests.ops.microsoft import peer
from tests.ops.microsoft.test_generation import EOS, MASKED, PAD, PROMPT, VOCABULARY, decoder, i32

DECODER = decoder()
BASE = {"decoder": DECODER, "eos_token_id": EOS, "pad_token_id": PAD, "model_type": 0}


def given(seed: int | None, *optional: Any) -> list[Any]:
    padding = [None] * (6 - len(optional))
    return [PROMPT, i32(14), *optional, *padding, None if seed is None else i32(seed)]


@pytest.mark.parametrize("seed", [0, 1, 2, 1234567])
@pytest.mark.parametrize(
    ("optional", "attributes"),
    [
        ([], {"top_p": 0.7, "min_tokens_to_keep": 1}),
        ([], {"top_p": 0.9, "temperature": 4.0, "min_tokens_to_keep": 3}),
        ([], {"top_p": 0.6, "temperature": 3.0, "custom": 1}),
        ([], {"top_p": 0.95, "temperature": 5.0, "no_repeat_ngram_size": 1, "min_tokens_to_keep": 1}),
        ([i32(9), np.array([1.7], np.float32), MASKED], {"top_p": 0.8, "temperature": 2.0, "min_tokens_to_keep": 1}),
    ],
)
def test_a_seed_draws_the_tokens_of_onnxruntime(seed: int, optional: list[Any], attributes: dict[str, Any]) -> None:
    inputs = given(seed, *optional)
    model = peer.one_node("Sampling", inputs, [6], {**BASE, **attributes})
    (found,) = peer.sardonyx(model, peer.feeds(model, inputs))
    (expected,) = peer.onnxruntime(model, peer.feeds(model, inputs))
    # onnxruntime leaves what follows the end of every sequence unset; here it is the pad token.
    last = int(np.flatnonzero((found != PAD).any(axis=0))[-1]) + 1
    np.testing.assert_array_equal(found[:, :last], expected[:, :last])


@pytest.mark.parametrize("top_p", [0.0, 1e-6])
def test_the_least_share_is_greedy_search(top_p: float) -> None:
    (greedy,) = peer.run("GreedySearch", [PROMPT, i32(14)], [6], BASE)
    (sampled,) = peer.run("Sampling", given(None), [6], {**BASE, "top_p": top_p})
    np.testing.assert_array_equal(sampled, greedy)


def test_filtered_logits_are_those_of_the_likely_tokens() -> None:
    inputs = given(5)
    inputs[1] = i32(PROMPT.shape[1] + 1)
    attributes = {**BASE, "top_p": 0.9, "temperature": 8.0, "filter_value": -77.0}
    _, everything = peer.run("Sampling", inputs, [6, 1], {**attributes, "top_p": 1.0})
    sequences, kept = peer.run("Sampling", inputs, [6, 1], attributes)
    shares = np.exp(everything.astype(np.float64))
    shares /= shares.sum(axis=1, keepdims=True)
    for row, share, scores, token in zip(kept, shares, everything, sequences[:, -1], strict=True):
        order = np.argsort(-share)
        count = int(np.searchsorted(np.cumsum(share[order]), 0.9)) + 1
        expected = np.full(VOCABULARY, -77.0, np.float32)
        expected[order[:count]] = scores[order[:count]]
        np.testing.assert_array_equal(row, expected)
        assert token in order[:count] or token == PAD


def test_draws_follow_the_scores() -> None:
    shares = np.array([0.1, 0.0, 0.6, 0.3])
    with np.errstate(divide="ignore"):
        scores = np.log(shares).astype(np.float32)
    generator = MinimalStandard(17)
    counts = np.bincount([drawn(scores, generator.uniform()) for _ in range(20_000)], minlength=4) / 20_000
    np.testing.assert_allclose(counts, shares, atol=0.015)
    assert counts[1] == 0


def test_the_generator_is_that_of_park_and_miller() -> None:
    generator = MinimalStandard(1)
    for _ in range(10_000):
        generator.draw()
    assert generator.state == 1043618065  # the check value of their paper
    assert MinimalStandard(0).state == 1


def test_the_presence_penalty_lowers_the_words_of_the_mask() -> None:
    scores = np.arange(8, dtype=np.float32).reshape(2, 4)
    presence = np.array([[0, 1, 0, 1], [1, 0, 0, 0]], np.int32)
    LogitsRules(3, presence=presence, presence_penalty=2.5).apply(scores, np.zeros((2, 1), np.int32), first=True)
    np.testing.assert_array_equal(scores, [[0, -1.5, 2, 0.5], [1.5, 5, 6, 7]])


def test_without_a_seed_tokens_are_drawn_too() -> None:
    attributes = {**BASE, "top_p": 1.0, "temperature": 50.0}
    model = peer.one_node("Sampling", given(None), [6], attributes)
    first, second = (peer.sardonyx(model, peer.feeds(model, given(None)))[0] for _ in range(2))
    assert first.shape == second.shape == (2, 14)
    np.testing.assert_array_equal(first[:, :3], PROMPT)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(Exception, match="'seed' must not be negative, got -5"):
        peer.run("Sampling", given(-5), [6], BASE)


def test_scores_without_a_number_are_refused() -> None:
    with pytest.raises(ValueError, match="no token has a finite score"):
        drawn(np.array([np.nan, -np.inf], np.float32), 0.5)
