"""BeamSearch: text generation that follows the likeliest sequences rather than the likeliest next word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import Dim, Fact, tensor, unknown_dim
from sardonyx.ops.framework.operator import operator
from sardonyx.ops.microsoft.beam_scorer import BeamScorer
from sardonyx.ops.microsoft.generation import WHISPER, Generation, check_limit, known_limit, number
from sardonyx.ops.microsoft.generation_models import Bodies, Model
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.logits_rules import LogitsRules
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim
from sardonyx.runtime.memory import memory

# Bytes for the token of a sequence and its score, at least.
_BYTES_PER_STEP = 16

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


class Beams(Generation):
    """The search that BeamSearch and its form for Whisper share.

    Each step takes the 2 * beams best continuations of all beams of an entry; those that end become hypotheses, where
    they are among the best beams, and the others go on. An entry is done when none can become better than its worst
    hypothesis, or with `early_stopping` when it has as many hypotheses as beams.
    """

    early_stopping: int = 0

    def search(
        self, model: Model, rules: LogitsRules, limit: int, beams: int, returned: int, length_penalty: float
    ) -> tuple[Array, Array, Array, Array]:
        """Sequences (batch, returned, limit), their scores, those of every step, and the first log probabilities.

        The scores of every step are (limit - prompt, batch, beams, vocabulary), 0 where the search ended before; the
        last result is (batch * beams, vocabulary).
        """
        if not 1 <= returned <= beams:
            raise ValueError(f"'num_return_sequences' {returned} must lie between 1 and 'num_beams' {beams}")
        sequences = model.prompt
        rows, length = sequences.shape
        check_limit(limit, length)
        scorer = BeamScorer(rows // beams, beams, self.eos_token_id, self.pad_token_id, length_penalty)
        scorer.early_stopping = self.early_stopping == 1
        memory.require((limit - length) * rows * _BYTES_PER_STEP, "the scores of a search")
        origin = np.arange(rows)
        history: list[Array] = []
        first = np.zeros((rows, 0), np.float32)
        while sequences.shape[1] < limit and not scorer.done.all():
            begun = sequences.shape[1] > length
            scores = log_softmax(self.known(model.following(sequences, origin) if begun else model.first()))
            if not begun:
                first = scores.copy()
            rules.apply(scores, sequences, not begun)
            scores += scorer.scores[:, None]
            history.append(scores.reshape(rows // beams, beams, -1))
            tokens, origin = scorer.advance(sequences, scores)
            sequences = np.concatenate([sequences[origin], tokens[:, None]], axis=1)
        found, found_scores = scorer.best(sequences, returned, limit)
        memory.require((limit - length) * history[0].nbytes, "the scores of a search")
        steps = np.zeros((limit - length, *history[0].shape), np.float32)
        steps[: len(history)] = history
        return found, found_scores, steps, first

    def whisper(self, bodies: Bodies, features: Array, start: Array | None, beams: int) -> Model:
        """Whisper for features (batch, features, frames); `start` (batch, length) are its first tokens."""
        if features.ndim != 3:
            raise ValueError(f"input 'input_ids' must be (batch, features, frames), got shape {features.shape}")
        start = self.start_tokens(len(features)) if start is None else start
        if start.ndim != 2 or len(start) != len(features) or start.shape[1] == 0:
            raise ValueError(f"input 'decoder_input_ids' must be ({len(features)}, length), got shape {start.shape}")
        return self.encoder_decoder(bodies, {"encoder_input_ids": features}, start, beams)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        self.infer_bodies(inference)
        batch, limit = dim(inputs[0], 0), known_limit(inputs)
        beams, returned = (constant(inputs, index) for index in (3, 4))
        kind = self.score_type(inputs)
        return [
            tensor(ir.DataType.INT32, (batch, returned, limit)),
            tensor(kind, (batch, returned)),
            tensor(kind, (unknown_dim(), batch, beams, unknown_dim())),
        ]

    def score_type(self, inputs: Sequence[Fact | None]) -> ir.DataType:
        """The type of scores: that of the penalties, where there are any."""
        penalties = [fact.dtype for fact in inputs[5:7] if fact is not None and fact.dtype is not None]
        return penalties[0] if penalties else ir.DataType.FLOAT


@operator("BeamSearch", domain=DOMAIN)
class BeamSearch(Beams):
    """The likeliest sequences of a decoder, of an encoder and a decoder (`model_type` 1), or of Whisper (2)."""

    inputs: ClassVar[str] = (
        "input_ids, max_length, min_length?, num_beams, num_return_sequences, length_penalty?, repetition_penalty?, "
        "vocab_mask?, prefix_vocab_mask?, attention_mask?, decoder_input_ids?, logits_processor?"
    )
    outputs: ClassVar[str] = "sequences, sequences_scores?, scores?"

    def run_bodies(self, bodies: Bodies, inputs: Sequence[Any]) -> Sequence[Any]:
        inputs = padded(inputs, 12)
        beams, returned = int(number(inputs[3], 1)), int(number(inputs[4], 1))
        if self.model_type == WHISPER:
            if int(number(inputs[11], 0)) == 1:
                raise ValueError(
                    "'logits_processor' 1 needs the operator WhisperBeamSearch, whose attributes name tokens"
                )
            model = self.whisper(bodies, inputs[0], inputs[10], beams)
        else:
            model = self.model(bodies, inputs[0], inputs[9], beams)
        penalty = number(inputs[5], 1.0)
        limit = int(number(inputs[1], 0))
        sequences, *scores, _ = self.search(model, self.rules(inputs[2], *inputs[6:9]), limit, beams, returned, penalty)
        kind = given_type(inputs[5:7])
        return sequences, *(score.astype(kind, copy=False) for score in scores)


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def constant(inputs: Sequence[Fact | None], index: int) -> Dim:
    """The value of an input of one element, where it is known before the run."""
    fact = inputs[index] if index < len(inputs) else None
    return fact.elements[0] if fact is not None and fact.elements else unknown_dim()


def given_type(inputs: Sequence[Array | None]) -> np.dtype[Any]:
    """The type of the first input that is given, float32 where none is."""
    return next((value.dtype for value in inputs if value is not None), np.dtype(np.float32))
