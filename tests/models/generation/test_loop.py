"""Tokens equal those of PyTorch, whatever the way to them."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.models.generation.loop import generate
from sardonyx.models.generation.settings import Settings
from tests.models.generation.conftest import VOCABULARY, Tiny


def random_prompt(rows: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, VOCABULARY, (rows, length))


def padded(lengths: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A batch of prompts with padding (token 0) at the left, and its mask."""
    longest = max(lengths)
    mask = (np.arange(longest) >= longest - np.array(lengths)[:, None]).astype(np.int64)
    return random_prompt(len(lengths), longest, seed) * mask, mask


def test_greedy_search_gives_the_tokens_of_pytorch(tiny: Tiny) -> None:
    ids = random_prompt(1, 7)
    wanted = tiny.tokens(ids, max_new_tokens=64, do_sample=False)
    found = generate(tiny.decoder, ids, Settings(max_new_tokens=64))
    np.testing.assert_array_equal(found.sequences, wanted)
    growing = generate(tiny.growing, ids, Settings(max_new_tokens=12))
    np.testing.assert_array_equal(growing.sequences, wanted[:, : 7 + 12])
    assert (tiny.decoder.form, tiny.growing.form) == ("in place", "growing")
    assert len(set(found.sequences[0, 7:].tolist())) > 8  # the text does not stand still


def test_left_padded_rows_give_the_tokens_of_pytorch(tiny: Tiny) -> None:
    ids, mask = padded([9, 2, 5])
    found = generate(tiny.decoder, ids, Settings(max_new_tokens=64, pad_token_id=0), attention_mask=mask)
    wanted = tiny.tokens(ids, mask, max_new_tokens=64, do_sample=False, pad_token_id=0)
    np.testing.assert_array_equal(found.sequences, wanted)


def test_padded_rows_give_the_tokens_of_each_alone(tiny: Tiny) -> None:
    ids, mask = padded([6, 3], seed=4)
    decoder = tiny.decoder
    found = generate(decoder, ids, Settings(max_new_tokens=16), attention_mask=mask).sequences
    for row, length in enumerate([6, 3]):
        alone = generate(decoder, ids[row, 6 - length :], Settings(max_new_tokens=16)).sequences
        np.testing.assert_array_equal(found[row, 6 - length :], alone[0])


def test_padding_tokens_are_hidden_without_a_mask(gpt2: Tiny) -> None:
    ids, mask = padded([6, 3])
    decoder, settings = gpt2.decoder, Settings(max_new_tokens=8, pad_token_id=0)
    given = generate(decoder, ids, settings, attention_mask=mask).sequences
    np.testing.assert_array_equal(generate(decoder, ids, settings).sequences, given)


def test_rows_end_with_any_of_the_ending_tokens(gpt2: Tiny) -> None:
    ids = random_prompt(3, 4)
    free = gpt2.tokens(ids, max_new_tokens=20, do_sample=False)
    ends = [int(free[0, 4]), int(free[1, 12])]
    settings = Settings(max_new_tokens=20, eos_token_id=tuple(ends), pad_token_id=0)
    wanted = gpt2.tokens(ids, max_new_tokens=20, do_sample=False, eos_token_id=ends, pad_token_id=0)
    found = generate(gpt2.decoder, ids, settings).sequences
    np.testing.assert_array_equal(found, wanted)
    assert (found[0, 5:] == 0).all()
    assert found.shape[1] > 5


def test_minimal_lengths_keep_rows_going(gpt2: Tiny) -> None:
    ids = random_prompt(1, 4)
    end = int(gpt2.tokens(ids, max_new_tokens=3, do_sample=False)[0, -1])
    for name, value in {"min_new_tokens": 6, "min_length": 9}.items():
        settings = Settings(max_new_tokens=20, eos_token_id=(end,), **{name: value})
        wanted = gpt2.tokens(
            ids, max_new_tokens=20, do_sample=False, eos_token_id=end, pad_token_id=end, **{name: value}
        )
        found = generate(gpt2.decoder, ids, settings).sequences
        np.testing.assert_array_equal(found, wanted)
        assert found.shape[1] > 7


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 1},
        {"bad_words_ids": [[5], [17, 3], [8], *([token] for token in range(40, 70))]},
        {"sequence_bias": [[[4], 6.5], [[4, 4], -60.0]]},
        {"suppress_tokens": list(range(20, 50))},
        {"begin_suppress_tokens": list(range(1, 60))},
        {"forced_eos_token_id": 7, "eos_token_id": 7, "pad_token_id": 7},
        {"exponential_decay_length_penalty": (3, 1.4), "eos_token_id": 6, "pad_token_id": 6},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_processors_give_the_tokens_of_pytorch(gpt2: Tiny, settings: dict[str, object]) -> None:
    ids = random_prompt(2, 6, seed=2)
    found = generate(gpt2.decoder, ids, Settings.of(max_new_tokens=16, **settings)).sequences
    np.testing.assert_array_equal(found, gpt2.tokens(ids, max_new_tokens=16, do_sample=False, **settings))
    plain = gpt2.tokens(ids, max_new_tokens=16, do_sample=False)
    assert found.shape != plain.shape or (found != plain).any()


def test_forced_first_token_is_of_prompts_of_one(gpt2: Tiny) -> None:
    ids = random_prompt(2, 1)
    found = generate(gpt2.decoder, ids, Settings(max_new_tokens=5, forced_bos_token_id=33)).sequences
    np.testing.assert_array_equal(found, gpt2.tokens(ids, max_new_tokens=5, do_sample=False, forced_bos_token_id=33))
    assert (found[:, 1] == 33).all()


def test_bans_of_transformers_processors_are_those_of_settings(gpt2: Tiny) -> None:
    theirs = pytest.importorskip("transformers.generation.logits_process")
    ids, count = random_prompt(2, 4), 16
    free = generate(gpt2.decoder, ids, Settings(max_new_tokens=count)).sequences[:, 4:]
    never = [*np.unique(free)[::2].tolist(), VOCABULARY, -1]  # no tokens at the end
    first = np.unique(free[:, 0]).tolist()

    def plus_one(_: object, scores: object) -> object:
        return scores + 1  # type: ignore[operator]

    found = generate(
        gpt2.decoder,
        ids,
        Settings(max_new_tokens=count),
        processors=[
            plus_one,
            theirs.SuppressTokensLogitsProcessor(never),
            plus_one,
            theirs.SuppressTokensAtBeginLogitsProcessor(first, 4),
        ],
    ).sequences
    settings = Settings(max_new_tokens=count, suppress_tokens=tuple(never[:-2]), begin_suppress_tokens=tuple(first))
    np.testing.assert_array_equal(found, generate(gpt2.decoder, ids, settings).sequences)
    assert not np.isin(found[:, 4:], never).any()
    assert not np.isin(found[:, 4], first).any()
