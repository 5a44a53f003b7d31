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
from sardonyx.models.generation.tables import widened
from sardonyx.models.generation.top_scores import top_scores

Array = np.ndarray[Any, Any]

# What is added to the score of a beam that must not be chosen, and the score of one that is none yet.
_OUT = np.float32(-1e9)
# Tokens behind a prompt that there is room for from the start.
_ROOM = 1024


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
        self._fill = -1
        if settings.eos_token_id:
            self._fill = settings.pad_token_id or settings.eos_token_id[0]
        self._tokens = widened(np.repeat(prompt[:, None], beams, axis=1), min(most, length + _ROOM), self._fill)
        self._scores = np.full((prompts, beams), _OUT, np.float32)
        self._scores[:, 0] = 0
        # The row of each beam among those of its prompt, and among all.
        self._rows = [list(range(beams)) for _ in range(prompts)]
        self._all_rows = np.arange(prompts * beams).reshape(prompts, beams)
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
        np.put_along_axis(tokens, np.array(self._rows)[:, :, None], self._tokens[:, :, : self._length], axis=1)
        return tokens.reshape(-1, self._length)

    def step(self, logits: Array, changes: list[Processor], stops: Stops) -> tuple[list[int], list[int]] | None:
        """Choose the next tokens by logits (rows, vocabulary).

        Gives the row that each row goes on from and the token that it goes on with; None at the end.
        """
        beams, length = self._scores.shape[1], self._length
        if length == self._tokens.shape[2]:
            self._widen(min(self._most, 2 * length))
        scores, parents, chosen = self._candidates(logits, changes)
        if np.isnan(scores).any():
            raise selection.no_number()
        hits = self._hits(parents, chosen, stops)
        if hits is None:
            # Nothing ends, and what comes is in order. Nor would any of it be noted among what has ended, unless its
            # score were so large that it can be told from that of none.
            if scores[:, 0].max() > 0:
                self._note_ended(scores, parents, chosen, np.zeros(scores.shape, bool))
            self._scores, parents, chosen = scores[:, :beams], parents[:, :beams], chosen[:, :beams]
        else:
            kept = np.argsort(-(scores + hits * _OUT), axis=1, kind="stable")[:, :beams]
            self._note_ended(scores, parents, chosen, hits)
            self._scores = np.take_along_axis(scores + hits * _OUT, kept, axis=1)
            parents, chosen = (np.take_along_axis(one, kept, axis=1) for one in (parents, chosen))
        self._tokens[:, :, :length] = self._histories(parents)
        self._tokens[:, :, length] = chosen
        self._length = length + 1
        self._look_ahead()
        early = self._settings.early_stopping is True
        if not self._may_improve.any() or (early and self._is_done.all()) or (hits is not None and hits.all()):
            return None
        return self._placed(parents.tolist(), chosen.tolist())

    def result(self) -> tuple[Array, Array]:
        """The best sequences of each prompt (prompts * num_return_sequences, length), and their scores."""
        count = self._settings.num_return_sequences
        length = self._prompt + int(self._done_lengths[:, :count].max())
        return self._done_tokens[:, :count, :length].reshape(-1, length), self._done_scores[:, :count].reshape(-1)

    def _candidates(self, logits: Array, changes: list[Processor]) -> tuple[Array, Array, Array]:
        """Scores, beams and next tokens of the best continuations of each prompt, the best first: (prompts, count)."""
        if not changes and self._sampler is None:
            best = top_scores(self._count, logits)
            return self._best_of_rows(best.logarithms, best.tokens)
        top = logits.max(axis=1, keepdims=True)
        logits = (logits - top) - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
        tokens = self.running
        for change in changes:
            change(tokens, logits)
        if self._sampler is None:
            best = top_scores(self._count, logits)
            return self._best_of_rows(best.scores, best.tokens)
        return self._drawn(logits, self._sampler)

    def _best_of_rows(self, values: Array, tokens: Array) -> tuple[Array, Array, Array]:
        """`_candidates` among some tokens of each row (rows, count) with their values."""
        prompts = len(self._scores)
        # By tokens, as of equal scores the first counts; rows of beams behind each other.
        order = tokens.argsort(axis=1)
        values = np.take_along_axis(values, order, axis=1)[self._all_rows]
        tokens = np.take_along_axis(tokens, order, axis=1)[self._all_rows].reshape(prompts, -1)
        each = values.shape[2]
        scores = (values + self._scores[:, :, None]).reshape(prompts, -1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, : self._count]
        return (
            np.take_along_axis(scores, best, axis=1),
            best // each,
            np.take_along_axis(tokens, best, axis=1),
        )

    def _drawn(self, logits: Array, sampler: Sampler) -> tuple[Array, Array, Array]:
        """`_candidates` that chance chooses among those that the sampler leaves."""
        prompts, beams = self._scores.shape
        shape = (prompts, self._count)
        scores, parents, chosen = np.empty(shape, np.float32), np.empty(shape, np.int64), np.empty(shape, np.int64)
        for prompt in range(prompts):
            found: list[tuple[Array, Array]] = []
            for beam in range(beams):
                tokens, values = sampler.kept(logits[self._all_rows[prompt, beam]])
                found.append((tokens, values.astype(np.float32) + self._scores[prompt, beam]))
            all_scores = np.concatenate([values for _, values in found])
            drawn = sampler.draw_apart(self._count, all_scores)
            best = drawn[np.argsort(-all_scores[drawn], kind="stable")]
            scores[prompt] = all_scores[best]
            parents[prompt] = np.repeat(np.arange(beams), [len(tokens) for tokens, _ in found])[best]
            chosen[prompt] = np.concatenate([tokens for tokens, _ in found])[best]
        return scores, parents, chosen

    def _hits(self, parents: Array, chosen: Array, stops: Stops) -> Array | None:
        """Which candidates end (prompts, count); None where none does."""
        if self._length + 1 == self._most:
            return np.ones(chosen.shape, bool)
        if not stops.may_end(chosen.reshape(-1).tolist()):
            return None
        longer = self._longer(parents, chosen)
        hits = stops.ended(longer.reshape(-1, longer.shape[2])).reshape(chosen.shape)
        return hits if hits.any() else None

    def _histories(self, parents: Array) -> Array:
        """The tokens of these beams so far: (prompts, count, length)."""
        return np.take_along_axis(self._tokens[:, :, : self._length], parents[:, :, None], axis=1)

    def _longer(self, parents: Array, chosen: Array) -> Array:
        """The tokens of candidates, with the next one: (prompts, count, length + 1)."""
        return np.concatenate([self._histories(parents), chosen[:, :, None]], axis=2)

    def _note_ended(self, scores: Array, parents: Array, chosen: Array, hits: Array) -> None:
        """Keep the best of what has ended, now and before."""
        beams = self._scores.shape[1]
        length = self._length + 1
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
        longer = widened(self._longer(parents, chosen), self._done_tokens.shape[2], self._fill)
        tokens = np.concatenate([self._done_tokens, longer], axis=1)
        lengths = np.concatenate([self._done_lengths, np.full(scores.shape, length - self._prompt)], axis=1)
        self._done_scores = np.take_along_axis(merged, best, axis=1)
        self._done_tokens = np.take_along_axis(tokens, best[:, :, None], axis=1)
        self._done_lengths = np.take_along_axis(lengths, best, axis=1)
        self._is_done = np.take_along_axis(np.concatenate([self._is_done, ended], axis=1), best, axis=1)

    def _widen(self, width: int) -> None:
        self._tokens = widened(self._tokens, width, self._fill)
        self._done_tokens = widened(self._done_tokens, width, self._fill)

    def _look_ahead(self) -> None:
        """Whether a beam can still be better than what has ended."""
        settings = self._settings
        if not self._is_done.any() and settings.length_penalty >= 0 and self._scores[:, 0].min() > _OUT:
            return
        hopes_for_longest = settings.early_stopping == "never" and settings.length_penalty > 0
        length = (self._most if hopes_for_longest else self._length) - self._prompt
        best = self._scores[:, :1] / np.float32(length**settings.length_penalty)
        worst = np.where(self._is_done, self._done_scores.min(axis=1, keepdims=True), _OUT)
        self._may_improve &= (best > worst).any(axis=1)

    def _placed(self, parents: list[list[int]], chosen: list[list[int]]) -> tuple[list[int], list[int]]:
        """A row for each beam: that of its parent for the first one of it, a free one for its siblings."""
        beams = len(parents[0])
        sources, tokens, placed = [], [], []
        for prompt, before in enumerate(self._rows):
            wanted = [before[parent] for parent in parents[prompt]]
            firsts = {row: beam for beam, row in reversed(list(enumerate(wanted)))}
            free = iter([row for row in range(beams) if row not in firsts])
            rows = [row if firsts[row] == beam else next(free) for beam, row in enumerate(wanted)]
            beam_of = {row: beam for beam, row in enumerate(rows)}
            sources += [prompt * beams + wanted[beam_of[row]] for row in range(beams)]
            tokens += [chosen[prompt][beam_of[row]] for row in range(beams)]
            placed.append(rows)
        self._rows = placed
        self._all_rows = np.array(placed) + np.arange(len(placed))[:, None] * beams
        return sources, tokens
