"""What changes the scores of the next token before it is chosen: penalties, bans, forced tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.models.generation.settings import Settings

Array = np.ndarray[Any, Any]

# Takes the tokens so far (rows, length) and the scores (rows, vocabulary), which it changes in place.
Processor = Callable[[Array, Array], None]

_NEVER = -np.inf


def processors_of(
    settings: Settings,
    prompt: int,
    most: int,
    least: int,
    vocabulary: int | None = None,
    padding: Array | None = None,
) -> list[Processor]:
    """The processors that settings ask for, in the order in which transformers applies them.

    `prompt` is the number of tokens of the prompt, `most` and `least` those that a row has in the end; `padding` says
    how many at the beginning of each row are none (None: they all are).
    `errors.InvalidArgument` where a setting names a token outside of a vocabulary of this size.
    """
    if vocabulary is not None:
        _require_known(settings, vocabulary)
    found: list[Processor] = []
    ends = list(settings.eos_token_id)
    if settings.sequence_bias:
        found.append(_biases(settings.sequence_bias))
    if settings.repetition_penalty != 1:
        found.append(_repetition(settings.repetition_penalty, padding))
    if settings.no_repeat_ngram_size:
        found.append(_no_repeated_ngram(settings.no_repeat_ngram_size))
    banned = [word for word in settings.bad_words_ids if not (len(word) == 1 and word[0] in ends)]
    if banned:
        found.append(_biases([(word, _NEVER) for word in banned]))
    if ends and least > prompt:
        found.append(_while_shorter(least, ends))
    if settings.forced_bos_token_id is not None:
        found.append(_forced(1, [settings.forced_bos_token_id]))
    if settings.forced_eos_token_id:
        found.append(_forced(most - 1, list(settings.forced_eos_token_id)))
    if settings.remove_invalid_values:
        found.append(_finite)
    if settings.exponential_decay_length_penalty is not None and ends:
        begin, factor = settings.exponential_decay_length_penalty
        found.append(_growing_end(prompt + begin, factor, ends))
    if settings.suppress_tokens:
        found.append(suppressed(list(settings.suppress_tokens)))
    if settings.begin_suppress_tokens:
        begin = prompt if prompt > 1 or settings.forced_bos_token_id is None else prompt + 1
        found.append(suppressed(list(settings.begin_suppress_tokens), begin))
    return found


def _require_known(settings: Settings, vocabulary: int) -> None:
    named: dict[str, Sequence[int]] = {
        "eos_token_id": settings.eos_token_id,
        "suppress_tokens": settings.suppress_tokens,
        "begin_suppress_tokens": settings.begin_suppress_tokens,
        "forced_eos_token_id": settings.forced_eos_token_id,
        "forced_bos_token_id": [one for one in (settings.forced_bos_token_id,) if one is not None],
        "pad_token_id": [one for one in (settings.pad_token_id,) if one is not None],
        "bad_words_ids": [one for word in settings.bad_words_ids for one in word],
        "sequence_bias": [one for sequence, _ in settings.sequence_bias for one in sequence],
    }
    for name, tokens in named.items():
        wrong = [one for one in tokens if one >= vocabulary]
        if wrong:
            raise errors.InvalidArgument(
                f"{name} has the token {wrong[0]}, which is outside of the model's vocabulary of {vocabulary} tokens"
            )


def _biases(biases: Sequence[tuple[tuple[int, ...], float]]) -> Processor:
    """Add to the last token of each sequence whose other tokens are those that came last."""
    singles = [(sequence[0], bias) for sequence, bias in biases if len(sequence) == 1]
    longer = [(np.array(sequence[:-1]), sequence[-1], bias) for sequence, bias in biases if len(sequence) > 1]
    places, added = [one for one, _ in singles], np.array([bias for _, bias in singles], np.float32)

    def process(tokens: Array, scores: Array) -> None:
        if places:
            scores[:, places] += added
        for before, last, bias in longer:
            if len(before) <= tokens.shape[1]:
                scores[(tokens[:, -len(before) :] == before).all(axis=1), last] += bias

    return process


def _repetition(penalty: float, padding: Array | None) -> Processor:
    """Tokens that a row has lose: what is above 0 is divided, what is below is multiplied."""

    def process(tokens: Array, scores: Array) -> None:
        if padding is not None:  # a token of the row stands for its padding: none loses twice
            is_padding = np.arange(tokens.shape[1]) < padding[:, None]
            tokens = np.where(is_padding, tokens[:, -1:], tokens)
        held = np.take_along_axis(scores, tokens, axis=1)
        np.put_along_axis(scores, tokens, np.where(held < 0, held * penalty, held / penalty), axis=1)

    return process


def _no_repeated_ngram(size: int) -> Processor:
    """No run of `size` tokens comes twice in a row."""

    def process(tokens: Array, scores: Array) -> None:
        length = tokens.shape[1]
        if length + 1 < size or not length:
            return
        runs = np.lib.stride_tricks.sliding_window_view(tokens, size, axis=1) if length >= size else None
        if runs is None:
            return
        last = tokens[:, length - size + 1 :]
        same = (runs[:, :, :-1] == last[:, None]).all(axis=2)
        rows, places = np.nonzero(same)
        scores[rows, runs[rows, places, -1]] = _NEVER

    return process


def _while_shorter(least: int, ends: Sequence[int]) -> Processor:
    """No row ends while it has fewer than `least` tokens."""

    def process(tokens: Array, scores: Array) -> None:
        if tokens.shape[1] < least:
            scores[:, ends] = _NEVER

    return process


def _forced(length: int, chosen: Sequence[int]) -> Processor:
    """Nothing but these tokens behind `length` tokens."""

    def process(tokens: Array, scores: Array) -> None:
        if tokens.shape[1] == length:
            scores[:] = _NEVER
            scores[:, chosen] = 0

    return process


def _finite(tokens: Array, scores: Array) -> None:
    """NaN becomes 0, infinities the ends of the range."""
    limits = np.finfo(scores.dtype)
    np.nan_to_num(scores, copy=False, nan=0, posinf=limits.max, neginf=limits.min)


def _growing_end(begin: int, factor: float, ends: Sequence[int]) -> Processor:
    """Behind `begin` tokens what ends a row gains, more with each."""

    def process(tokens: Array, scores: Array) -> None:
        beyond = tokens.shape[1] - begin
        if beyond > 0:
            scores[:, ends] += np.abs(scores[:, ends]) * (factor**beyond - 1)

    return process


def suppressed(never: Sequence[int], only_at: int | None = None) -> Processor:
    """These tokens never, or not behind `only_at` tokens; those outside of the vocabulary mean nothing."""
    places = np.array([token for token in never if token >= 0], np.int64)

    def process(tokens: Array, scores: Array) -> None:
        if only_at is None or tokens.shape[1] == only_at:
            scores[:, places[places < scores.shape[1]]] = _NEVER

    return process
