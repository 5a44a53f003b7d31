"""Text generation as one operator: a decoder subgraph run token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.ops.framework.facts import Fact, tensor, unknown_dim
from sardonyx.ops.framework.operator import ControlFlow, operator
from sardonyx.ops.microsoft.generation_models import Bodies, EncoderDecoder, Gpt, Model, left_padding
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.logits_rules import LogitsRules
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim

if TYPE_CHECKING:
    from sardonyx.ops.framework.facts import Dim
    from sardonyx.ops.framework.inference import Inference
    from sardonyx.runtime.control_flow import Flow

GPT, ENCODER_DECODER, WHISPER = 0, 1, 2


class Generation(ControlFlow):
    """What all operators of text generation share: the models, and the rules that their inputs state."""

    decoder: ir.Graph
    encoder: ir.Graph | None = None
    init_decoder: ir.Graph | None = None
    decoder_start_token_id: int = -1
    eos_token_id: int
    pad_token_id: int
    model_type: int = GPT
    no_repeat_ngram_size: int = 0
    vocab_size: int = -1
    is_chained: ClassVar[bool] = False

    def flow(self) -> Flow:
        return self

    def run_bodies(self, bodies: Bodies, inputs: Sequence[Any]) -> Sequence[Any]:
        raise NotImplementedError

    def model(self, bodies: Bodies, ids: Array, mask: Array | None, beams: int = 1) -> Model:
        """The model of `model_type` for the input `input_ids`; its prompt is that of the decoder."""
        if self.model_type == GPT:
            return Gpt(bodies, self.decoder, ids, mask, self.pad_token_id, beams)
        if self.model_type != ENCODER_DECODER:
            raise errors.NotImplemented(f"{self.op_type} has no model_type {self.model_type}")
        mask = left_padding(ids, self.pad_token_id) if mask is None else mask.astype(np.int32)
        source = {"encoder_input_ids": ids, "encoder_attention_mask": mask}
        return self.encoder_decoder(bodies, source, self.start_tokens(len(ids)), beams)

    def encoder_decoder(self, bodies: Bodies, source: dict[str, Array], start: Array, beams: int) -> EncoderDecoder:
        if self.encoder is None:
            raise ValueError(f"model_type {self.model_type} needs attribute 'encoder'")
        return EncoderDecoder(bodies, self.encoder, self.decoder, source, start, beams)

    def start_tokens(self, batch: int) -> Array:
        if self.decoder_start_token_id < 0:
            raise ValueError(f"model_type {self.model_type} needs attribute 'decoder_start_token_id'")
        return np.full((batch, 1), self.decoder_start_token_id, np.int32)

    def known(self, logits: Array) -> Array:
        """A copy of the logits of the words of the vocabulary, where `vocab_size` is smaller than that of the model."""
        return logits[:, : self.vocab_size if self.vocab_size > 0 else None].copy()

    def rules(
        self, shortest: Array | None, penalty: Array | None, allowed: Array | None, first_allowed: Array | None
    ) -> LogitsRules:
        """The rules of the attributes, and of the inputs from min_length and repetition_penalty to the two masks."""
        return LogitsRules(
            end_token=self.eos_token_id,
            repetition_penalty=number(penalty, 1.0),
            ngram_size=self.no_repeat_ngram_size,
            allowed=allowed,
            first_allowed=first_allowed,
            min_length=int(number(shortest, 0)),
        )

    def infer_bodies(self, inference: Inference) -> None:
        for graph in (self.decoder, self.encoder, self.init_decoder):
            if graph is not None:
                inference.graph(graph)


class TokenByToken(Generation):
    """Generation that chooses one token after the other, up to max_length or the end token.

    A sequence that reaches the end token goes on with pad tokens, from that place on.
    """

    def generate(self, model: Model, rules: LogitsRules, limit: int, choose: Callable[[Array], Array]) -> Array:
        """Sequences (rows, limit); `choose` gives a token (rows,) for processed scores (rows, vocabulary)."""
        sequences = model.prompt
        batch, length = sequences.shape
        check_limit(limit, length)
        rows, done = np.arange(batch), np.zeros(batch, np.bool_)
        while sequences.shape[1] < limit and not done.all():
            first = sequences.shape[1] == length
            scores = self.known(model.first() if first else model.following(sequences, rows))
            rules.apply(scores, sequences, first)
            chosen = choose(scores)
            done |= chosen == self.eos_token_id
            following = np.where(done, self.pad_token_id, chosen).astype(np.int32)
            sequences = np.concatenate([sequences, following[:, None]], axis=1)
        rest = np.full((batch, limit - sequences.shape[1]), self.pad_token_id, np.int32)
        return np.concatenate([sequences, rest], axis=1)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        self.infer_bodies(inference)
        return [tensor(ir.DataType.INT32, (dim(inputs[0], 0), known_limit(inputs)))]


@operator("GreedySearch", domain=DOMAIN)
class GreedySearch(TokenByToken):
    """The most likely token after the prompt, again and again."""

    inputs: ClassVar[str] = (
        "input_ids, max_length, min_length?, repetition_penalty?, vocab_mask?, prefix_vocab_mask?, attention_mask?"
    )
    outputs: ClassVar[str] = "sequences"

    def run_bodies(self, bodies: Bodies, inputs: Sequence[Any]) -> Sequence[Any]:
        ids, longest, shortest, penalty, allowed, first_allowed, mask = padded(inputs, 7)
        rules = self.rules(shortest, penalty, allowed, first_allowed)
        model = self.model(bodies, ids, mask)
        return (self.generate(model, rules, int(number(longest, 0)), lambda scores: scores.argmax(axis=1)),)


def number(scalar: Array | None, default: float) -> float:
    """The value of an input of one element, or the default where it is absent."""
    return default if scalar is None else float(scalar.reshape(()))


def check_limit(limit: int, length: int) -> None:
    if length >= limit:
        raise ValueError(f"'max_length' {limit} must exceed the prompt's length {length}")


def known_limit(inputs: Sequence[Fact | None]) -> Dim:
    """The length that 'max_length', the second input, gives where it is a constant."""
    longest = None if len(inputs) < 2 or inputs[1] is None else inputs[1].elements
    return longest[0] if longest else unknown_dim()
