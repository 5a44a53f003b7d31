"""WhisperBeamSearch with a small model against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.microsoft import peer
from tests.ops.microsoft.generation_graphs import Layer
from tests.ops.microsoft.test_beam_search import both, check, f32
from tests.ops.microsoft.test_generation import i32

# Ten words, then the tokens of Whisper with a meaning, then timestamps: more than the 50 that may come first.
EOS, SOT, TRANSLATE, TRANSCRIBE, LANGUAGE_MODEL, SILENCE, NO_TIMESTAMPS, TIME, VOCABULARY = (*range(10, 18), 90)
LAYER = Layer(4, VOCABULARY)
LAYER.tables = {name: table * np.float32(0.4) for name, table in LAYER.tables.items()}
BASE = {
    "encoder": LAYER.encoder(whisper=True),
    "decoder": LAYER.decoder(whisper=True),
    "eos_token_id": EOS,
    "pad_token_id": EOS,
    "decoder_start_token_id": SOT,
    "translate_token_id": TRANSLATE,
    "transcribe_token_id": TRANSCRIBE,
    "start_of_lm_token_id": LANGUAGE_MODEL,
    "no_speech_token_id": SILENCE,
    "no_timestamps_token_id": NO_TIMESTAMPS,
    "beginning_timestamp_token_id": TIME,
}
FEATURES = np.random.default_rng(1).standard_normal((3, 4, 6)).astype(np.float32)
STARTS = {
    "none": None,
    "words": np.array([[SOT, 5, TRANSCRIBE], [SOT, 6, TRANSCRIBE], [SOT, 7, TRANSLATE]], np.int32),
    "time": np.array([[SOT, 5, TIME + 2], [SOT, TIME + 1, TIME + 1], [SOT, TIME + 4, 3]], np.int32),
}


def inputs(beams: int, start: str = "words", processor: int = 0, temperature: float | None = None) -> list[Any]:
    scalars = [i32(14), i32(0), i32(beams), i32(1), f32(1.0)]
    warmth = None if temperature is None else f32(temperature)
    return [FEATURES, *scalars, None, None, None, None, STARTS[start], i32(processor), None, None, warmth]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("processor", [0, 1])
@pytest.mark.parametrize("temperature", [None, 2.0])
def test_against_onnxruntime(beams: int, start: str, processor: int, temperature: float | None) -> None:
    found, expected = both(inputs(beams, start, processor, temperature), BASE, "WhisperBeamSearch")
    prompt = STARTS[start]
    check(found, expected, 1 if prompt is None else prompt.shape[1], EOS)


@pytest.mark.parametrize("seed", range(6))
def test_timestamps_of_other_models(seed: int) -> None:
    layer = Layer(100 + seed, VOCABULARY)
    models = {"encoder": layer.encoder(whisper=True), "decoder": layer.decoder(whisper=True, hidden=False)}
    found, expected = both(inputs(2, processor=1), {**BASE, **models}, "WhisperBeamSearch")
    check(found, expected, 3, EOS)


def test_the_probability_of_silence() -> None:
    # onnxruntime's CPU kernel leaves this output unset; its scores of the first step are log probabilities.
    given = inputs(1)
    _, expected = both(given, BASE, "WhisperBeamSearch")
    _, _, _, silence = peer.run("WhisperBeamSearch", given, [6, 1, 1, 0, 1], BASE)
    assert silence.shape == (3,)
    np.testing.assert_allclose(silence, np.exp(expected[2][0, :, 0, SILENCE]), rtol=1e-4)


@pytest.mark.parametrize(
    ("changed", "outputs", "message"),
    [
        ({"no_speech_token_id": VOCABULARY}, [6, 1, 1, 0, 1], "'no_speech_token_id' 90 is no token of 90"),
        ({"decoder_output_cross_qk": 1}, [6], "does not collect the scores of cross-attention"),
        ({"beginning_timestamp_token_id": VOCABULARY}, [6], "'beginning_timestamp_token_id' 90 is no token"),
        ({"beginning_timestamp_token_id": -1}, [6], "'beginning_timestamp_token_id' -1 is no token"),
    ],
)
def test_wrong_requests_are_refused(changed: dict[str, int], outputs: list[int], message: str) -> None:
    with pytest.raises(Exception, match=message):
        peer.run("WhisperBeamSearch", inputs(2, processor=1), outputs, {**BASE, **changed})


@pytest.mark.parametrize("start", STARTS)
def test_beam_search_runs_whisper_too(start: str) -> None:
    shared = ("encoder", "decoder", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    attributes = {**{name: BASE[name] for name in shared}, "model_type": 2}
    found, expected = both(inputs(2, start)[:12], attributes)
    prompt = STARTS[start]
    check(found, expected, 1 if prompt is None else prompt.shape[1], EOS)
    with pytest.raises(Exception, match="needs the operator WhisperBeamSearch"):
        peer.run("BeamSearch", inputs(2, start, processor=1)[:12], [6], attributes)
