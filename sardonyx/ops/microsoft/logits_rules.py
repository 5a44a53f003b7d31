"""What text generation does to the scores of the next token before one is chosen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sardonyx.light_dataclass import dataclass
from sardonyx.ops.microsoft.ngram import repeated
from sardonyx.ops.microsoft.rules import Array

LOWEST = np.finfo(np.float32).min

# Changes scores (rows, vocabulary) in place, given the sequences (rows, length) so far.
Rule = Callable[[Array, Array], None]


@dataclass(frozen=True)
class LogitsRules:
    """The rules of one generation, applied in the order in which they are written here.

    Scores are those of rows = batch * beams sequences, the beams of an entry next to each other.
    """

    end_token: int
    repetition_penalty: float = 1.0
    ngram_size: int = 0
    allowed: Array | None = None  # (vocabulary,), 0 for a word that must not come
    first_allowed: Array | None = None  # (batch, vocabulary), the same for the first word only
    min_length: int = 0
    temperature: float = 1.0
    presence: Array | None = None  # (batch, vocabulary)
    presence_penalty: float = 0.0
    last: Rule | None = None

    def apply(self, scores: Array, sequences: Array, first: bool) -> None:
        """Change float32 scores (rows, vocabulary) in place; `first` tells that nothing was generated yet."""
        if self.repetition_penalty != 1:
            penalise_repetition(scores, sequences, np.float32(self.repetition_penalty))
        if self.ngram_size > 0:
            for row, tokens in zip(scores, sequences, strict=True):
                row[repeated(tokens, self.ngram_size)] = LOWEST
        for mask in (self.allowed, self.first_allowed if first else None):
            if mask is not None:
                scores[self.by_row(mask, scores, "vocab_mask") == 0] = LOWEST
        if sequences.shape[1] < self.min_length:
            scores[:, self.end_token] = LOWEST
        if self.temperature > 0 and self.temperature != 1:
            with np.errstate(over="ignore"):  # what is lowest may become -inf
                scores /= np.float32(self.temperature)
        if self.presence is not None and self.presence_penalty != 0:
            scores -= self.by_row(self.presence, scores, "presence_mask") * np.float32(self.presence_penalty)
        if self.last is not None:
            self.last(scores, sequences)

    @staticmethod
    def by_row(mask: Array, scores: Array, name: str) -> Array:
        """A mask (vocabulary,) or (batch, vocabulary) in the shape of the scores."""
        rows, vocabulary = scores.shape
        if mask.shape[-1] != vocabulary or (mask.ndim == 2 and (len(mask) == 0 or rows % len(mask))) or mask.ndim > 2:
            raise ValueError(f"input '{name}' of shape {mask.shape} does not fit scores of shape {scores.shape}")
        return np.broadcast_to(mask if mask.ndim == 1 else np.repeat(mask, rows // len(mask), axis=0), scores.shape)


def penalise_repetition(scores: Array, sequences: Array, penalty: np.float32) -> None:
    """Make each word of a sequence less likely: a negative score times the penalty, another divided by it."""
    for row, tokens in zip(scores, sequences, strict=True):
        seen = np.unique(tokens)
        row[seen] = np.where(row[seen] < 0, row[seen] * penalty, row[seen] / penalty)


@dataclass(frozen=True)
class TimestampRules:
    """Whisper's rules for timestamps, tokens from `first_timestamp` on; the numbers are those of its vocabulary.

    The first token is a timestamp of at most 50 steps; timestamps come in pairs and never decrease; and where all of
    them together are more likely than the likeliest word, one of them comes.
    """

    end_of_text: int
    start_of_transcript: int
    start_of_language_model: int
    translate: int
    transcribe: int
    no_timestamps: int
    first_timestamp: int
    latest_first: int = 50

    def __call__(self, scores: Array, sequences: Array) -> None:
        for row, tokens in zip(scores, sequences, strict=True):
            self.one_row(row, tokens)

    def one_row(self, row: Array, tokens: Array) -> None:
        start, length = self.first_timestamp, len(tokens)
        if not 0 < start < len(row):
            raise ValueError(f"'beginning_timestamp_token_id' {start} is no token of a vocabulary of {len(row)}")
        times = np.flatnonzero(tokens >= start)
        begun = int(times[0]) + 1 if times.size else length
        self.forbid(row, self.no_timestamps, self.start_of_language_model)
        if length > begun:
            self.forbid(row, self.start_of_transcript, self.translate, self.transcribe)
        after_time = bool(tokens[-1] >= start)
        paired = length <= begun or bool(tokens[-2] >= start)
        if after_time and paired:
            row[start:] = LOWEST
        elif after_time:
            row[: self.end_of_text] = LOWEST
        if times.size:
            row[start : int(tokens[times[-1]]) + (0 if after_time and not paired else 1)] = LOWEST
        if length == begun:
            row[start + self.latest_first + 1 :] = LOWEST
        possible = row[start:][row[start:] > LOWEST]
        if possible.size and np.logaddexp.reduce(possible) > row[:start].max():
            row[:start] = LOWEST

    def forbid(self, row: Array, *tokens: int) -> None:
        for token in tokens:
            if 0 <= token < len(row):
                row[token] = LOWEST
