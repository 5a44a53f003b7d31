"""Steps: chunks, prefixes, room, Ctrl-C and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx import errors
from sardonyx.models.generation import decoder as decoder_module
from sardonyx.models.generation.decoder import Decoder
from sardonyx.models.generation.loop import generate
from sardonyx.models.generation.settings import Settings
from tests.models.generation.conftest import POSITIONS, VOCABULARY, Tiny
from tests.models.generation.test_loop import padded, random_prompt


@pytest.fixture(params=["in place", "growing"])
def decoder(request: pytest.FixtureRequest, gpt2: Tiny) -> Decoder:
    return gpt2.decoder if request.param == "in place" else gpt2.growing


def test_chunks_give_the_logits_of_one_step(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, mask = padded([50, 39])
    wanted = decoder.step(ids, decoder.cache(2), mask).copy()
    monkeypatch.setattr(decoder, "_chunk", lambda rows: 16)
    cache = decoder.cache(2)
    np.testing.assert_allclose(decoder.read(ids, cache, mask), wanted, rtol=1e-4, atol=1e-5)
    assert cache.length == 50
    np.testing.assert_array_equal(cache.mask, mask)


def test_chunks_bound_the_memory_of_logits(gpt2: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "LOGITS_BYTES", 4 * VOCABULARY * 100)
    assert Decoder._chunk(gpt2.growing, 1) == 96
    assert Decoder._chunk(gpt2.growing, 2) == 48
    assert Decoder._chunk(gpt2.growing, 1000) == 16


class _Counted:
    """A decoder that counts the tokens which it reads."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder, self.read_tokens = decoder, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def read(self, ids: np.ndarray, *rest: Any) -> np.ndarray:
        self.read_tokens += ids.shape[1]
        return self._decoder.read(ids, *rest)


def test_a_chat_reads_only_what_is_new(decoder: Decoder) -> None:
    settings = Settings(max_new_tokens=5)
    first = generate(decoder, random_prompt(1, 8), settings)
    prompt = np.concatenate([first.sequences, random_prompt(1, 3, seed=9)], axis=1)
    counted = _Counted(decoder)
    again = generate(counted, prompt, settings, cache=first.cache)  # type: ignore[arg-type]
    assert counted.read_tokens == 4  # the last token of the answer was never read
    np.testing.assert_array_equal(again.sequences, generate(decoder, prompt, settings).sequences)


def test_a_chat_that_turns_off_reads_from_there_on(decoder: Decoder) -> None:
    settings = Settings(max_new_tokens=4)
    first = generate(decoder, random_prompt(1, 8), settings)
    other = random_prompt(1, 8)
    other[0, 5] = other[0, 5] % (VOCABULARY - 1) + 1
    counted = _Counted(decoder)
    again = generate(counted, other, settings, cache=first.cache)  # type: ignore[arg-type]
    assert counted.read_tokens == 3
    np.testing.assert_array_equal(again.sequences, generate(decoder, other, settings).sequences)
    same = generate(counted, other, settings, cache=again.cache)  # type: ignore[arg-type]
    assert counted.read_tokens == 4  # at least the last token of a prompt is read
    np.testing.assert_array_equal(same.sequences, again.sequences)


def test_caches_grow_up_to_the_positions_of_the_model(decoder: Decoder) -> None:
    cache = decoder.cache(1, 10)
    assert cache.capacity == 64
    prompt = random_prompt(1, 60)
    logits = decoder.read(prompt, cache).copy()
    rest = random_prompt(1, 9, seed=1)
    for token in rest[0]:
        logits = decoder.step([[token]], cache).copy()
    assert cache.capacity == 128
    whole = decoder.read(np.concatenate([prompt, rest], axis=1), decoder.cache(1, 69))
    np.testing.assert_allclose(logits, whole, rtol=1e-3, atol=1e-4)
    assert decoder.cache(1, POSITIONS).capacity == POSITIONS


class _Stopping:
    """A streamer that behaves like a user who presses Ctrl-C at the third token."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def put(self, value: np.ndarray) -> None:
        self.tokens.extend(np.ravel(value).tolist())
        if len(self.tokens) == 8 + 3:
            raise KeyboardInterrupt

    def end(self) -> None:
        raise AssertionError("the text did not end")


def test_ctrl_c_leaves_decoder_and_cache_usable(decoder: Decoder) -> None:
    prompt, settings = random_prompt(1, 8), Settings(max_new_tokens=10)
    wanted = generate(decoder, prompt, settings).sequences
    cache, streamer = decoder.cache(1), _Stopping()
    with pytest.raises(KeyboardInterrupt):
        generate(decoder, prompt, settings, streamer=streamer, cache=cache)
    assert streamer.tokens == wanted[0, :11].tolist()
    np.testing.assert_array_equal(cache.tokens, wanted[:, :10])
    np.testing.assert_array_equal(generate(decoder, prompt, settings, cache=cache).sequences, wanted)


class _Written:
    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.tokens: list[int] = []
        self.ended = 0

    def put(self, value: np.ndarray) -> None:
        self.shapes.append(value.shape)
        self.last = value
        self.tokens.extend(np.ravel(value).tolist())

    def end(self) -> None:
        self.ended += 1


def test_streamers_get_the_prompt_then_each_token_then_the_end(gpt2: Tiny) -> None:
    streamer = _Written()
    found = generate(gpt2.decoder, random_prompt(1, 4), Settings(max_new_tokens=3), streamer=streamer)
    assert streamer.shapes == [(1, 4), (1,), (1,), (1,)]
    assert streamer.tokens == found.sequences[0].tolist()
    assert streamer.ended == 1
    assert not streamer.last.flags.writeable


def test_given_processors_and_criteria_are_applied(gpt2: Tiny) -> None:
    torch = pytest.importorskip("torch")
    seen: list[Any] = []

    def never_even(ids: Any, scores: Any) -> Any:
        seen.append((type(ids), tuple(ids.shape), scores.dtype))
        return scores.masked_fill(torch.arange(VOCABULARY) % 2 == 0, -torch.inf)

    def after_nine(ids: Any, scores: Any) -> Any:
        return torch.full((len(ids),), ids.shape[1] >= 9)

    found = generate(
        gpt2.decoder, random_prompt(2, 5), Settings(max_new_tokens=20), processors=[never_even], stopping=[after_nine]
    )
    assert found.sequences.shape == (2, 9)
    assert (found.sequences[:, 5:] % 2 == 1).all()
    assert seen[0] == (torch.Tensor, (2, 5), torch.float32)


class _Letters:
    """A tokenizer of two-letter pieces: token t is written as two letters."""

    def __len__(self) -> int:
        return VOCABULARY

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(chr(97 + token % 10) + chr(107 + token // 10) for token in tokens)


def test_stop_strings_end_rows_where_they_end(gpt2: Tiny) -> None:
    tokenizer, prompt = _Letters(), random_prompt(2, 5)
    free = generate(gpt2.decoder, prompt, Settings(max_new_tokens=12)).sequences
    text = tokenizer.decode(free[0, 5:].tolist())
    stop = text[5:8]  # the end of one piece and the whole next one
    found = generate(
        gpt2.decoder, prompt[:1], Settings(max_new_tokens=12, stop_strings=(stop,)), tokenizer=tokenizer
    ).sequences
    end = text.find(stop) + len(stop)
    assert found.shape[1] == 5 + -(-end // 2)
    np.testing.assert_array_equal(found[0], free[0, : found.shape[1]])
    with pytest.raises(errors.InvalidArgument, match="tokenizer"):
        generate(gpt2.decoder, prompt, Settings(stop_strings=("a",)))


@pytest.mark.parametrize(
    ("prompt", "settings", "more", "message"),
    [
        ([[]], {}, {}, "no token at all"),
        (np.zeros((0, 4), np.int64), {}, {}, "no token at all"),
        ([[1.5]], {}, {}, "whole numbers"),
        ([[1, VOCABULARY]], {}, {}, f"Token {VOCABULARY} is outside"),
        ([[1, -3]], {}, {}, "Token -3 is outside"),
        ([[[1]]], {}, {}, "must be .rows, tokens."),
        ([[1] * POSITIONS], {"max_new_tokens": 2}, {}, f"the model has {POSITIONS}"),
        ([[1] * 9], {"max_length": 9}, {}, "no room for a new one"),
        ([[1, 2]], {}, {"attention_mask": [[1]]}, "attention_mask has shape"),
        ([[1, 2]], {"eos_token_id": (VOCABULARY,)}, {}, "eos_token_id has the token"),
        ([[1, 2]], {}, {"tokenizer": range(VOCABULARY + 1)}, "that of another model"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_cannot_be_generated_is_refused(
    gpt2: Tiny, prompt: Any, settings: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        generate(gpt2.decoder, prompt, Settings(**settings), **more)


def test_caches_of_other_batches_are_refused(decoder: Decoder) -> None:
    with pytest.raises(errors.InvalidArgument, match="The cache is of 2 rows"):
        generate(decoder, [[1]], Settings(), cache=decoder.cache(2))
    with pytest.raises(errors.InvalidArgument, match="The cache has 2 rows"):
        decoder.step([[1]], decoder.cache(2))
    with pytest.raises(errors.InvalidArgument, match="longer than the 256"):
        decoder.cache(1, POSITIONS + 1)


def test_the_last_position_can_be_used(gpt2: Tiny) -> None:
    ids = random_prompt(1, POSITIONS - 1)
    assert generate(gpt2.decoder, ids, Settings(max_new_tokens=2)).sequences.shape == (1, POSITIONS + 1)
