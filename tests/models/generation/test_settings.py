"""Settings are those of a GenerationConfig; what is out of range, or not ours, is said."""

from __future__ import annotations

from typing import Any

import pytest

from sardonyx import errors
from sardonyx.models.generation.settings import Settings


def test_a_configuration_that_asks_for_nothing_is_ours() -> None:
    transformers = pytest.importorskip("transformers")
    settings = Settings.of(transformers.GenerationConfig())
    assert settings.unsupported == ()
    assert settings.lengths(7, None) == (27, 0)
    assert settings.lengths(7, 10) == (10, 0)


def test_what_a_configuration_says_is_taken() -> None:
    transformers = pytest.importorskip("transformers")
    given = {
        "max_new_tokens": 9,
        "min_new_tokens": 2,
        "do_sample": True,
        "temperature": 0.5,
        "top_k": 7,
        "eos_token_id": [3, 4],
        "pad_token_id": 0,
        "bad_words_ids": [[1, 2], [3]],
        "stop_strings": "END",
    }
    settings = Settings.of(transformers.GenerationConfig(**given))
    assert settings.lengths(5, None) == (14, 7)
    assert (settings.do_sample, settings.temperature, settings.top_k) == (True, 0.5, 7)
    assert (settings.eos_token_id, settings.padding) == ((3, 4), 0)
    assert (settings.bad_words_ids, settings.stop_strings) == (((1, 2), (3,)), ("END",))
    assert Settings.of(transformers.GenerationConfig(max_length=50)).lengths(5, None) == (50, 0)
    assert Settings.of(transformers.GenerationConfig(), max_length=20).lengths(5, None) == (20, 0)


def test_what_is_not_ours_is_named() -> None:
    given = {
        "guidance_scale": 1.5,
        "prompt_lookup_num_tokens": 3,
        "num_beam_groups": 1,
        "cache_implementation": "static",
    }
    settings = Settings.of(given)
    assert settings.unsupported == ("guidance_scale", "prompt_lookup_num_tokens")
    with pytest.raises(errors.NotImplemented, match="guidance_scale, prompt_lookup_num_tokens"):
        settings.require_supported()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 0),
        ("max_length", -1),
        ("max_new_tokens", 2.5),
        ("temperature", 0.0),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 1.5),
        ("top_p", float("nan")),
        ("min_p", -0.1),
        ("typical_p", 0.0),
        ("repetition_penalty", 0.0),
        ("no_repeat_ngram_size", -2),
        ("num_beams", 0),
        ("length_penalty", float("nan")),
        ("early_stopping", "soon"),
        ("num_return_sequences", 2),
        ("eos_token_id", -1),
        ("eos_token_id", "x"),
        ("pad_token_id", [1, 2]),
        ("bad_words_ids", [[]]),
        ("bad_words_ids", 5),
        ("sequence_bias", [[1, 2]]),
        ("stop_strings", [""]),
        ("do_sample", "yes"),
        ("max_time", -1),
        ("exponential_decay_length_penalty", (1,)),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match=name):
        Settings.of({name: value})
