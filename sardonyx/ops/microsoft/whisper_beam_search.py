"""WhisperBeamSearch: BeamSearch with Whisper's rules for timestamps, and its probability of silence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx import errors
from sardonyx.ops.framework.facts import Fact, tensor
from sardonyx.ops.framework.operator import operator
from sardonyx.ops.microsoft.beam_search import Beams, given_type
from sardonyx.ops.microsoft.generation import WHISPER, number
from sardonyx.ops.microsoft.generation_models import Bodies
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.logits_rules import TimestampRules
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


@operator("WhisperBeamSearch", domain=DOMAIN)
class WhisperBeamSearch(Beams):
    """The likeliest transcripts of features (batch, features, frames).

    `logits_processor` 1 applies the rules for timestamps; the last output is the probability that the model gives the
    token `no_speech_token_id` after the prompt.
    """

    inputs: ClassVar[str] = (
        "input_ids, max_length, min_length?, num_beams, num_return_sequences, length_penalty?, repetition_penalty?, "
        "vocab_mask?, prefix_vocab_mask?, attention_mask?, decoder_input_ids?, logits_processor?, "
        "cross_qk_layer_head?, extra_decoding_ids?, temperature?"
    )
    outputs: ClassVar[str] = "sequences, sequences_scores?, scores?, cross_qk?, non_speech_probs?"
    model_type: int = WHISPER
    decoder_output_cross_qk: int = 0
    no_speech_token_id: int = -1
    translate_token_id: int = -1
    transcribe_token_id: int = -1
    start_of_lm_token_id: int = -1
    no_timestamps_token_id: int = -1
    beginning_timestamp_token_id: int = -1

    def run_bodies(self, bodies: Bodies, inputs: Sequence[Any]) -> Sequence[Any]:
        inputs = padded(inputs, 15)
        features, start, processor, temperature = inputs[0], inputs[10], inputs[11], inputs[14]
        if self.decoder_output_cross_qk or self.has_output(3) or inputs[13] is not None:
            raise errors.NotImplemented("WhisperBeamSearch does not collect the scores of cross-attention")
        rules = replace(self.rules(inputs[2], *inputs[6:9]), temperature=number(temperature, 1.0))
        if int(number(processor, 0)) == 1:
            rules = replace(rules, last=self.timestamps())
        beams, returned = int(number(inputs[3], 1)), int(number(inputs[4], 1))
        model = self.whisper(bodies, features, start, beams)
        sequences, found_scores, steps, first = self.search(
            model, rules, int(number(inputs[1], 0)), beams, returned, number(inputs[5], 1.0)
        )
        kind = given_type(inputs[5:7])
        cross = np.zeros((0,) * 5, np.float32)
        silence = self.silence(first[::beams]) if self.has_output(4) else np.zeros(0, np.float32)
        return sequences, found_scores.astype(kind), steps.astype(kind), cross, silence.astype(kind)

    def silence(self, first: Array) -> Array:
        """The probability of silence (batch,) from the first log probabilities (batch, vocabulary)."""
        if not 0 <= self.no_speech_token_id < first.shape[1]:
            raise ValueError(f"'no_speech_token_id' {self.no_speech_token_id} is no token of {first.shape[1]}")
        return np.asarray(np.exp(first[:, self.no_speech_token_id]))

    def timestamps(self) -> TimestampRules:
        return TimestampRules(
            end_of_text=self.eos_token_id,
            start_of_transcript=self.decoder_start_token_id,
            start_of_language_model=self.start_of_lm_token_id,
            translate=self.translate_token_id,
            transcribe=self.transcribe_token_id,
            no_timestamps=self.no_timestamps_token_id,
            first_timestamp=self.beginning_timestamp_token_id,
        )

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        facts = list(super().infer(inputs, inference))
        kind = self.score_type(inputs)
        return [*facts, tensor(kind, None), tensor(kind, (dim(inputs[0], 0),))]
