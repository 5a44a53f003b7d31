"""Helpers of text generation: no repeated n-grams, and where aggressive decoding has to start again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx.ops.framework.facts import Fact, unknown_dim
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.rules import DOMAIN, Array, like, same

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


def windows(tokens: Array, size: int) -> Array:
    """All runs of `size` tokens, one a row."""
    if len(tokens) < size:
        return np.empty((0, size), tokens.dtype)
    return np.lib.stride_tricks.sliding_window_view(tokens, size)


def repeated(tokens: Array, size: int) -> Array:
    """The tokens that would make the last n-gram of `tokens` one that has been before."""
    if size <= 0 or len(tokens) < size:
        return np.empty(0, tokens.dtype)
    seen = windows(tokens, size)
    same_start = (seen[:, :-1] == tokens[len(tokens) - size + 1 :]).all(axis=1)
    return np.asarray(seen[same_start, -1])


@operator("NGramRepeatBlock", domain=DOMAIN)
class NGramRepeatBlock(Operator):
    """Scores with -inf at each token that would repeat an n-gram of its row of `input_ids`."""

    inputs: ClassVar[str] = "input_ids, scores"
    outputs: ClassVar[str] = "scores_out"
    host_reason: ClassVar[str] = "a search through token ids"
    ngram_size: int

    def run(self, *inputs: Any) -> Sequence[Array]:
        ids, scores = inputs
        result = scores.copy()
        for row, tokens in zip(result, ids, strict=True):
            blocked = repeated(tokens, self.ngram_size)
            if blocked.size and (blocked.min() < 0 or blocked.max() >= len(row)):
                raise ValueError(f"'input_ids' holds a token outside of the vocabulary of {len(row)}")
            row[blocked] = -np.inf
        return (result,)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [same(inputs[1])]


@operator("BifurcationDetector", domain=DOMAIN)
class BifurcationDetector(Operator):
    """The decoded tokens with those predicted up to where they leave the source; where decoding matches it again.

    Predictions are compared with the source from `prev_suffix_match_idx` on, and taken up to the first difference,
    included. The new match is the place after the only occurrence in the source of the last n tokens, for the
    smallest n from `min_ngram_size` to `max_ngram_size` with one occurrence; -1 where there is none.
    """

    inputs: ClassVar[str] = "src_tokens, cur_tokens, prev_suffix_match_idx, pred_tokens?"
    outputs: ClassVar[str] = "tokens, suffix_match_idx"
    host_reason: ClassVar[str] = "a search through token ids"
    max_ngram_size: int = 3
    min_ngram_size: int = 1

    def run(self, *inputs: Any) -> Sequence[Array]:
        source, current, previous = inputs[:3]
        predicted = inputs[3] if len(inputs) > 3 else None
        tokens = current
        if predicted is not None:
            start = int(previous.reshape(()))
            expected = source[start:]
            if len(predicted) != len(expected) + 1:
                raise ValueError(f"'pred_tokens' must have {len(expected) + 1} tokens, got {len(predicted)}")
            different = np.flatnonzero(predicted[: len(expected)] != expected)
            taken = int(different[0]) if different.size else len(expected)
            tokens = np.concatenate([current, predicted[: taken + 1]])
        return tokens, np.array(self.match(source, tokens), np.int64).reshape(previous.shape)

    def match(self, source: Array, tokens: Array) -> int:
        found = -1
        for size in range(self.min_ngram_size, self.max_ngram_size + 1):
            if size > len(tokens):
                break
            places = np.flatnonzero((windows(source, size) == tokens[len(tokens) - size :]).all(axis=1))
            if places.size == 0:
                break
            found = int(places[0]) + size
            if places.size == 1:
                return found
            found = -1
        return found

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [like(inputs[1], (unknown_dim(),)), same(inputs[2])]
