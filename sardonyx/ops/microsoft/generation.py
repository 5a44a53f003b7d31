"""Text generation as one operator: a decoder subgraph run token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.ops.framework.facts import Fact, tensor, unknown_dim
from sardonyx.ops.framework.operator import ControlFlow, operator
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.ngram import repeated
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference

_LOWEST = np.finfo(np.float32).min


@operator("GreedySearch", domain=DOMAIN)
class GreedySearch(ControlFlow):
    """The most likely token after the prompt, again and again, up to max_length or the end token.

    A sequence that reaches the end token goes on with pad tokens, from that place on.

    The decoder (GPT-2's contract) takes input_ids, position_ids, attention_mask and one past (2, batch, heads, length,
    size) for each layer, and gives logits (batch, length, vocabulary) and one present for each layer. Pad tokens of
    the prompt do not count as positions, and are masked where no attention mask is given.
    """

    inputs: ClassVar[str] = (
        "input_ids, max_length, min_length?, repetition_penalty?, vocab_mask?, prefix_vocab_mask?, attention_mask?"
    )
    outputs: ClassVar[str] = "sequences"
    decoder: ir.Graph
    encoder: ir.Graph | None = None
    init_decoder: ir.Graph | None = None
    decoder_start_token_id: int = -1
    eos_token_id: int
    pad_token_id: int
    model_type: int = 0
    no_repeat_ngram_size: int = 0
    vocab_size: int = -1

    def run_bodies(self, bodies: dict[str, Callable[..., list[Any]]], inputs: Sequence[Any]) -> Sequence[Any]:
        if self.model_type != 0 or self.init_decoder is not None or self.encoder is not None:
            raise errors.NotImplemented("GreedySearch runs a single decoder of model_type 0 only")
        ids, longest, shortest, penalty, allowed, first_allowed, mask = padded(inputs, 7)
        batch, length = ids.shape
        limit = int(longest.reshape(()))
        if length >= limit:
            raise ValueError(f"'max_length' {limit} must exceed the prompt's length {length}")
        real = (ids != self.pad_token_id).astype(np.int32)
        mask = real if mask is None else mask.astype(np.int32)
        positions = np.where(real > 0, np.cumsum(real, axis=1) - 1, 0).astype(np.int32)
        following = real.sum(axis=1, dtype=np.int32)
        sequences, given = ids.copy(), ids
        done = np.zeros(batch, np.bool_)
        pasts = [self.empty_past(value, batch) for value in self.decoder.inputs[3:]]
        while sequences.shape[1] < limit and not done.all():
            logits, *pasts = bodies["decoder"](given, positions, mask, *pasts)
            scores = logits[:, -1, : self.vocab_size if self.vocab_size > 0 else None].astype(np.float32)
            first = sequences.shape[1] == length
            self.process(scores, sequences, shortest, penalty, allowed, first_allowed if first else None)
            best = scores.argmax(axis=1)
            done |= best == self.eos_token_id
            chosen = np.where(done, self.pad_token_id, best).astype(np.int32)
            sequences = np.concatenate([sequences, chosen[:, None]], axis=1)
            given, positions = chosen[:, None], following[:, None].copy()
            following = following + 1
            mask = np.concatenate([mask, np.ones((batch, 1), np.int32)], axis=1)
        rest = np.full((batch, limit - sequences.shape[1]), self.pad_token_id, np.int32)
        return (np.concatenate([sequences, rest], axis=1),)

    def process(
        self,
        scores: Array,
        sequences: Array,
        shortest: Array | None,
        penalty: Array | None,
        allowed: Array | None,
        first_allowed: Array | None,
    ) -> None:
        """Change the scores in place as the inputs demand."""
        if penalty is not None and float(penalty.reshape(())) != 1:
            factor = np.float32(penalty.reshape(()))
            for row, tokens in zip(scores, sequences, strict=True):
                seen = np.unique(tokens)
                row[seen] = np.where(row[seen] < 0, row[seen] * factor, row[seen] / factor)
        for row, tokens in zip(scores, sequences, strict=True):
            row[repeated(tokens, self.no_repeat_ngram_size)] = _LOWEST
        for mask in (allowed, first_allowed):
            if mask is not None:
                scores[np.broadcast_to(mask == 0, scores.shape)] = _LOWEST
        if shortest is not None and sequences.shape[1] < int(shortest.reshape(())):
            scores[:, self.eos_token_id] = _LOWEST

    def empty_past(self, value: ir.Value, batch: int) -> Array:
        """A past of length 0 for one layer; the subgraph's input tells heads and sizes."""
        shape = value.shape
        if shape is None or len(shape) != 5 or not isinstance(shape[2], int) or not isinstance(shape[4], int):
            raise ValueError(f"the decoder's input '{value.name}' must be (2, batch, heads, length, size), not {shape}")
        kind = np.float32 if value.dtype is None else value.dtype.numpy()
        return np.zeros((2, batch, shape[2], 0, shape[4]), kind)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        inference.graph(self.decoder)
        longest = None if len(inputs) < 2 or inputs[1] is None else inputs[1].elements
        return [tensor(ir.DataType.INT32, (dim(inputs[0], 0), longest[0] if longest else unknown_dim()))]
