"""Beams have the tokens and the scores of transformers'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx import errors
from sardonyx.models.generation.loop import generate
from sardonyx.models.generation.settings import Settings
from tests.models.generation.conftest import Tiny
from tests.models.generation.test_loop import padded, random_prompt

ENDS = [11, 29, 43]


def _agree(tiny: Tiny, decoder: Any, ids: np.ndarray, mask: np.ndarray | None, **settings: Any) -> np.ndarray:
    wanted = tiny.full(ids, mask, do_sample=False, output_scores=True, **settings)
    found = generate(decoder, ids, Settings.of(**settings), attention_mask=mask)
    np.testing.assert_array_equal(found.sequences, wanted.sequences.numpy())
    # A score is a sum of float32, over as many tokens as there are, which a negative penalty scales up.
    np.testing.assert_allclose(found.sequences_scores, wanted.sequences_scores.numpy(), rtol=1e-4, atol=1e-5)
    return found.sequences


def test_five_beams_of_padded_rows(tiny: Tiny) -> None:
    ids, mask = padded([9, 4])
    settings = {"num_beams": 5, "max_new_tokens": 32, "pad_token_id": 0}
    _agree(tiny, tiny.decoder, ids, mask, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 4},
        {"num_beams": 4, "early_stopping": True, "num_return_sequences": 3},
        {"num_beams": 3, "early_stopping": "never"},
        {"num_beams": 3, "length_penalty": -1.0},
        {"num_beams": 3, "length_penalty": 2.0, "num_return_sequences": 2},
        {"num_beams": 2, "no_repeat_ngram_size": 2, "min_new_tokens": 5},
        {"num_beams": 2, "repetition_penalty": 1.4, "bad_words_ids": [[7], [5, 6]]},
    ],
    ids=str,
)
def test_ended_hypotheses(gpt2: Tiny, settings: dict[str, Any]) -> None:
    ids = random_prompt(2, 6, seed=3)
    _agree(gpt2, gpt2.decoder, ids, None, max_new_tokens=16, eos_token_id=ENDS, pad_token_id=0, **settings)


def test_growing_caches_follow_beams(gpt2: Tiny) -> None:
    ids = random_prompt(2, 5, seed=6)
    settings = Settings(num_beams=3, max_new_tokens=8)
    found, wanted = (generate(one, ids, settings) for one in (gpt2.growing, gpt2.decoder))
    np.testing.assert_array_equal(found.sequences, wanted.sequences)


def test_drawn_beams_are_different_hypotheses_and_repeat_with_a_seed(gpt2: Tiny) -> None:
    settings = Settings(num_beams=4, num_return_sequences=4, do_sample=True, max_new_tokens=8, temperature=3.0)
    first, again, other = (generate(gpt2.decoder, random_prompt(1, 3), settings, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.sequences, again.sequences)
    assert first.sequences.shape != other.sequences.shape or (first.sequences != other.sequences).any()
    assert len({tuple(row) for row in first.sequences.tolist()}) == 4
    assert (np.diff(first.sequences_scores) <= 0).all()


def test_beams_take_no_streamer(gpt2: Tiny) -> None:
    with pytest.raises(errors.InvalidArgument, match="one sequence for each prompt"):
        generate(gpt2.decoder, [[1, 2]], Settings(num_beams=2), streamer=object())  # type: ignore[arg-type]
