"""Buffers that serve one call after the other, and calls of several threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import errors
from sardonyx.models.generation import bound_decoder
from sardonyx.models.generation.bound_decoder import BoundDecoder
from sardonyx.models.generation.bound_step import LOOK_SECONDS
from sardonyx.models.generation.decoder import Decoder
from sardonyx.models.generation.loop import generate
from sardonyx.models.generation.settings import Settings
from tests.models.generation.conftest import Tiny
from tests.models.generation.test_grouped import grouped
from tests.models.generation.test_loop import padded, random_prompt

WAYS: list[dict[str, Any]] = [
    {"max_new_tokens": 30},
    {"max_new_tokens": 5, "num_beams": 3},
    {"max_new_tokens": 12, "num_beams": 3, "num_return_sequences": 2},
    {"max_new_tokens": 40},
    {"max_new_tokens": 9, "do_sample": True, "num_return_sequences": 3},
    {"max_new_tokens": 7, "repetition_penalty": 1.5},
]


def opened(tiny: Tiny) -> BoundDecoder:
    decoder = Decoder.open(tiny.path, tiny.config)
    assert isinstance(decoder, BoundDecoder)
    return decoder


def of_call(decoder: Decoder, number: int, ids: np.ndarray, **more: Any) -> np.ndarray:
    settings = Settings(pad_token_id=0, **WAYS[number % len(WAYS)])
    return generate(decoder, ids, settings, seed=number, gives_cache=False, **more).sequences


@pytest.fixture(params=["gpt2", "llama", "grouped", "grouped with a state"])
def make(request: pytest.FixtureRequest, tiny_of: Callable[[str], Tiny]) -> Callable[[], BoundDecoder]:
    """Makes decoders of one model that share nothing."""
    name = request.param
    if name.startswith("grouped"):
        return lambda: grouped(with_state=name != "grouped")
    return lambda: opened(tiny_of(name))


def test_calls_on_kept_buffers_give_the_tokens_of_new_ones(make: Callable[[], BoundDecoder]) -> None:
    decoder = make()
    prompts = [random_prompt(1, length, seed) % 30 + 1 for seed, length in enumerate((7, 3, 20, 7, 1, 7, 4, 40))]
    for number, ids in enumerate(prompts):
        np.testing.assert_array_equal(of_call(decoder, number, ids), of_call(make(), number, ids))
    assert len(decoder._kept) == 2  # of one row and of three


def test_batches_on_kept_buffers_have_no_padding_of_earlier_ones(make: Callable[[], BoundDecoder]) -> None:
    decoder = make()
    if decoder.cache(1).turned:
        pytest.skip("states take no padding")
    for seed, lengths in enumerate(([9, 2], [5, 5], [1, 6], [9, 2])):
        ids, mask = padded(lengths, seed)
        ids = (ids % 30 + 1) * mask
        found = of_call(decoder, seed, ids, attention_mask=mask)
        np.testing.assert_array_equal(found, of_call(make(), seed, ids, attention_mask=mask))


def test_one_buffer_serves_calls_that_it_has_room_for(gpt2: Tiny) -> None:
    decoder = opened(gpt2)
    ids = random_prompt(1, 5)
    wanted = generate(gpt2.decoder, ids, Settings(max_new_tokens=20)).sequences
    generate(decoder, ids, Settings(max_new_tokens=100), gives_cache=False)
    (kept,) = decoder._kept
    for buffer in kept.buffers:  # what lies there is never read
        buffer[:] = np.nan
    again = generate(decoder, ids, Settings(max_new_tokens=20))
    assert again.cache is kept
    assert not decoder._kept  # it is the caller's now
    np.testing.assert_array_equal(again.sequences, wanted)
    longer = generate(decoder, ids, Settings(max_new_tokens=20), cache=kept, gives_cache=False)
    assert longer.cache is None
    assert not decoder._kept  # a cache that a caller passes stays the caller's
    np.testing.assert_array_equal(longer.sequences, wanted)


def test_buffers_are_kept_within_bounds(gpt2: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = opened(gpt2)
    for rows in (1, 2, 3, 4, 5, 6):
        of_call(decoder, 0, random_prompt(rows, 4))
    assert [one.rows for one in decoder._kept] == [3, 4, 5, 6]
    monkeypatch.setattr(bound_decoder, "KEPT_BYTES", decoder._kept[0].nbytes)
    of_call(decoder, 0, random_prompt(1, 4))
    assert [one.rows for one in decoder._kept] == [1]
    monkeypatch.setattr(bound_decoder, "KEPT_BYTES", 1)
    of_call(decoder, 0, random_prompt(1, 4))
    assert not decoder._kept


def test_threads_get_the_tokens_of_each_alone(make: Callable[[], BoundDecoder]) -> None:
    prompts = [random_prompt(1, 3 + number, number) % 30 + 1 for number in range(12)]
    alone = make()
    wanted = [of_call(alone, number, ids) for number, ids in enumerate(prompts)]
    decoder, begin = make(), threading.Barrier(4)

    def calls(first: int) -> list[np.ndarray]:
        begin.wait()
        return [of_call(decoder, number, prompts[number]) for number in range(first, len(prompts), 4)]

    with ThreadPoolExecutor(4) as pool:
        for first, found in enumerate(pool.map(calls, range(4))):
            for number, tokens in zip(range(first, len(prompts), 4), found, strict=True):
                np.testing.assert_array_equal(tokens, wanted[number])


class _Calling:
    """A streamer that calls `generate` with the cache of the call that it serves."""

    def __init__(self, decoder: Decoder, cache: Any) -> None:
        self.decoder, self.cache, self.refused = decoder, cache, 0

    def put(self, value: np.ndarray) -> None:
        with pytest.raises(errors.InvalidArgument, match="serves another call"):
            generate(self.decoder, [[1, 2]], Settings(max_new_tokens=2), cache=self.cache)
        self.refused += 1

    def end(self) -> None:
        """Nothing."""


def test_a_cache_serves_one_call_at_a_time(gpt2: Tiny) -> None:
    ids, settings = random_prompt(1, 5), Settings(max_new_tokens=4)
    cache = gpt2.decoder.cache(1)
    streamer = _Calling(gpt2.decoder, cache)
    found = generate(gpt2.decoder, ids, settings, cache=cache, streamer=streamer)
    assert streamer.refused == 5
    np.testing.assert_array_equal(found.sequences, generate(gpt2.decoder, ids, settings).sequences)
    again = generate(gpt2.decoder, ids, settings, cache=found.cache)  # which is free again
    np.testing.assert_array_equal(again.sequences, found.sequences)


class _Writing:
    """A streamer that writes to the model's weights at the third token, and waits until that is looked at again."""

    def __init__(self, weights: Path) -> None:
        self.weights, self.calls = weights, 0

    def put(self, value: np.ndarray) -> None:
        self.calls += 1
        if self.calls == 4:
            with self.weights.open("r+b") as file:
                file.write(b"\0")
                file.truncate(self.weights.stat().st_size + 1)
            time.sleep(2 * LOOK_SECONDS)

    def end(self) -> None:
        """Nothing."""


def test_a_text_does_not_go_on_over_weights_that_somebody_writes_to(gpt2: Tiny, tmp_path: Path) -> None:
    model = onnx.load(gpt2.path)
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights", size_threshold=64)
    decoder = Decoder.open(tmp_path / "model.onnx", gpt2.config)
    ids, settings = random_prompt(1, 5), Settings(max_new_tokens=12)
    np.testing.assert_array_equal(
        generate(decoder, ids, settings).sequences, generate(gpt2.decoder, ids, settings).sequences
    )
    streamer = _Writing(tmp_path / "weights")
    with pytest.raises(RuntimeError, match="weights"):
        generate(decoder, ids, settings, streamer=streamer)
    assert streamer.calls < 12
