"""Beam search: several continuations of each prompt, of which the likeliest go on.

Hypotheses and scores are those of transformers. A beam is a row of the decoder's cache; which row it is stays as it is
where it can, so that only rows of beams that split are copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.models.generation import selection
from sardonyx.models.generation.processors import Processor
from sardonyx.models.generation.sampling import Sampler
from sardonyx.models.generation.settings import Settings
from sardonyx.models.generation.stopping import Stops

Array = np.ndarray[Any, Any]

# What is added to the score of a beam that must not be chosen, and the score of one that is none yet.
_OUT = np.float32(-1e9)


class Beams:
    """The beams of some prompts, step by step.

    `prompt` is (prompts, tokens); `most` the tokens that a row may have. The scores that `step` takes have a row for
    each beam of each prompt, those of a prompt behind each other.
    """

    def __init__(self, settings: Settings, prompt: Array, most: int, sampler: Sampler | None) -> None:
        prompts, length = prompt.shape
        beams = settings.num_beams
        self._settings, self._sampler = settings, sampler
        self._prompt, self._most, self._length = length, most, length
        # Enough to go on with when as many end as there are tokens that end a row.
        self._count = max(2, 1 + len(settings.eos_token_id)) * beams
        fill = -1
        if settings.eos_token_id:
            fill = settings.pad_token_id or settings.eos_token_id[0]
        self._tokens = np.full((prompts, beams, most), fill, np.int64)
        self._tokens[:, :, :length] = prompt[:, None]
        self._scores = np.full((prompts, beams), _OUT, np.float32)
        self._scores[:, 0] = 0
        # The row of each beam among those of its prompt.
        self._rows = np.tile(np.arange(beams), (prompts, 1))
        # What has ended, the best first.
        self._done_tokens = self._tokens.copy()
        self._done_scores = np.full((prompts, beams), _OUT, np.float32)
        self._done_lengths = np.zeros((prompts, beams), np.int64)
        self._is_done = np.zeros((prompts, beams), bool)
        self._may_improve = np.ones(prompts, bool)

    @property
    def running(self) -> Array:
        """The tokens of each row so far: (rows, length)."""
        prompts, beams = self._scores.shape
        tokens = np.empty((prompts, beams, self._length), np.int64)
        np.put_along_axis(tokens, self._rows[:, :, None], self._tokens[:, :, : self._length], axis=1)
        return tokens.reshape(-1, self._length)

    def step(self, logits: Array, changes: list[Processor], stops: Stops) -> tuple[Array, Array] | None:
        """Choose the next tokens by logits (rows, vocabulary).

        Gives the row that each row goes on from and the token that it goes on with, (rows,) each; None at the end.
        """
        beams = self._scores.shape[1]
        top = logits.max(axis=1, keepdims=True)
        total = np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
        if changes or self._sampler is not None:
            logits = (logits - top) - total
            top = total = np.zeros_like(top)
            tokens = self.running
            for change in changes:
                change(tokens, logits)
        scores, parents, chosen = self._candidates(logits, top, total)
        if np.isnan(scores).any():
            raise selection.no_number()
        length = self._length
        # (prompts, candidates, length + 1)
        longer = np.concatenate(
            [np.take_along_axis(self._tokens[:, :, :length], parents[:, :, None], axis=1), chosen[:, :, None]], axis=2
        )
        ended = stops.ended(longer.reshape(-1, length + 1))
        hits = ended.reshape(scores.shape)
        if length + 1 == self._most:
            hits[:] = True
        before = self._rows
        kept = np.argsort(-(scores + hits * _OUT), axis=1, kind="stable")[:, :beams]
        self._note_ended(scores, longer, hits)
        self._scores = np.take_along_axis(scores + hits * _OUT, kept, axis=1)
        self._tokens[:, :, : length + 1] = np.take_along_axis(longer, kept[:, :, None], axis=1)
        self._length = length = length + 1
        self._look_ahead()
        early = self._settings.early_stopping is True
        if not self._may_improve.any() or (early and self._is_done.all()) or hits.all():
            return None
        return self._placed(before, np.take_along_axis(parents, kept, axis=1))

    def result(self) -> tuple[Array, Array]:
        """The best sequences of each prompt (prompts * num_return_sequences, length), and their scores."""
        count = self._settings.num_return_sequences
        length = self._prompt + int(self._done_lengths[:, :count].max())
        return self._done_tokens[:, :count, :length].reshape(-1, length), self._done_scores[:, :count].reshape(-1)

    def _candidates(self, logits: Array, top: Array, total: Array) -> tuple[Array, Array, Array]:
        """Scores, beams and next tokens of the best continuations of each prompt, the best first: (prompts, count)."""
        prompts, beams = self._scores.shape
        shape = (prompts, self._count)
        scores, parents, chosen = np.empty(shape, np.float32), np.empty(shape, np.int64), np.empty(shape, np.int64)
        for prompt in range(prompts):
            found: list[tuple[Array, Array]] = []
            for beam in range(beams):
                row = prompt * beams + self._rows[prompt, beam]
                if self._sampler is None:
                    tokens = np.sort(selection.largest(self._count, logits[row]))
                    values = (logits[row, tokens] - top[row]) - total[row]
                else:
                    tokens, values = self._sampler.kept(logits[row])
                found.append((tokens, values.astype(np.float32) + self._scores[prompt, beam]))
            all_scores = np.concatenate([values for _, values in found])
            best = self._best(all_scores)
            scores[prompt] = all_scores[best]
            parents[prompt] = np.repeat(np.arange(beams), [len(tokens) for tokens, _ in found])[best]
            chosen[prompt] = np.concatenate([tokens for tokens, _ in found])[best]
        return scores, parents, chosen

    def _best(self, scores: Array) -> Array:
        if self._sampler is None:
            return selection.largest(self._count, scores)
        drawn = self._sampler.draw_apart(self._count, scores)
        return drawn[np.argsort(-scores[drawn], kind="stable")]

    def _note_ended(self, scores: Array, longer: Array, hits: Array) -> None:
        """Keep the best of what has ended, now and before."""
        beams = self._scores.shape[1]
        length = longer.shape[2]
        ended = hits.copy()
        ended[:, beams:] = False  # the rest is there to go on with
        # A power of Python's, and one division: as torch does it.
        values = scores / np.float32((length - self._prompt) ** self._settings.length_penalty)
        if self._settings.early_stopping is True:
            values = values + self._is_done.all(axis=1, keepdims=True) * _OUT
        values = values + (~self._may_improve[:, None]) * _OUT
        values = values + (~ended) * _OUT
        merged = np.concatenate([self._done_scores, values], axis=1)
        best = np.argsort(-merged, axis=1, kind="stable")[:, :beams]
        if (best < beams).all() and (best == np.arange(beams)).all():
            return
        tokens = np.concatenate([self._done_tokens, self._filled(longer)], axis=1)
        lengths = np.concatenate([self._done_lengths, np.full(scores.shape, length - self._prompt)], axis=1)
        self._done_scores = np.take_along_axis(merged, best, axis=1)
        self._done_tokens = np.take_along_axis(tokens, best[:, :, None], axis=1)
        self._done_lengths = np.take_along_axis(lengths, best, axis=1)
        self._is_done = np.take_along_axis(np.concatenate([self._is_done, ended], axis=1), best, axis=1)

    def _filled(self, longer: Array) -> Array:
        fill = self._tokens[0, 0, -1]
        behind = np.full((*longer.shape[:2], self._most - longer.shape[2]), fill, np.int64)
        return np.concatenate([longer, behind], axis=2)

    def _look_ahead(self) -> None:
        """Whether a beam can still be better than what has ended."""
        settings = self._settings
        hopes_for_longest = settings.early_stopping == "never" and settings.length_penalty > 0
        length = (self._most if hopes_for_longest else self._length) - self._prompt
        best = self._scores[:, :1] / np.float32(length**settings.length_penalty)
        worst = np.where(self._is_done, self._done_scores.min(axis=1, keepdims=True), _OUT)
        self._may_improve &= (best > worst).any(axis=1)

    def _placed(self, before: Array, parents: Array) -> tuple[Array, Array]:
        """A row for each beam: that of its parent for the first one of it, a free one for its siblings."""
        prompts, beams = parents.shape
        sources = np.tile(np.arange(beams), (prompts, 1))
        rows = np.full((prompts, beams), -1)
        for prompt in range(prompts):
            wanted = before[prompt, parents[prompt]]
            _, firsts = np.unique(wanted, return_index=True)
            rows[prompt, firsts] = wanted[firsts]
            free = np.setdiff1d(np.arange(beams), wanted)
            siblings = np.flatnonzero(rows[prompt] < 0)
            rows[prompt, siblings] = free[: len(siblings)]
            sources[prompt, rows[prompt]] = wanted
        self._rows = rows
        tokens = np.empty((prompts, beams), np.int64)
        np.put_along_axis(tokens, rows, self._tokens[:, :, self._length - 1], axis=1)
        offsets = np.arange(prompts)[:, None] * beams
        return (sources + offsets).reshape(-1), tokens.reshape(-1)
