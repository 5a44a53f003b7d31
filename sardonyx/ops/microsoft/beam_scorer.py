"""The state of a beam search: the scores of the beams, and the finished hypotheses of each entry."""

from __future__ import annotations

import numpy as np

from sardonyx.ops.microsoft.rules import Array

# The score of all beams but the first at the start, so that they do not all find the same words.
_UNUSED = np.float32(-1e9)


class Hypotheses:
    """The best finished sequences of one entry, with their scores: log probability / length ** length_penalty."""

    def __init__(self, count: int, length_penalty: float) -> None:
        self.count, self.length_penalty = count, length_penalty
        self.items: list[tuple[np.float32, Array]] = []

    @property
    def full(self) -> bool:
        return len(self.items) >= self.count

    @property
    def worst(self) -> np.float32:
        return min(score for score, _ in self.items)

    def score(self, log_probability: np.float32, length: int) -> np.float32:
        return np.float32(log_probability / np.float32(length) ** np.float32(self.length_penalty))

    def add(self, tokens: Array, log_probability: np.float32) -> None:
        score = self.score(log_probability, len(tokens))
        if self.full:
            if score <= self.worst:
                return
            worst = min(range(len(self.items)), key=lambda index: self.items[index][0])
            del self.items[worst]
        self.items.append((score, tokens.copy()))

    def best(self, count: int) -> list[tuple[np.float32, Array]]:
        return sorted(self.items, key=lambda item: -item[0])[:count]


class BeamScorer:
    """What goes on and what is finished among batch * beams sequences.

    `scores` (batch * beams,) are the log probabilities of the sequences; `done` (batch,) tells finished entries.
    """

    early_stopping = False

    def __init__(self, batch: int, beams: int, end_token: int, pad_token: int, length_penalty: float) -> None:
        self.beams, self.end_token, self.pad_token = beams, end_token, pad_token
        self.hypotheses = [Hypotheses(beams, length_penalty) for _ in range(batch)]
        self.done = np.zeros(batch, np.bool_)
        self.scores: Array = np.full(batch * beams, _UNUSED, np.float32)
        self.scores[::beams] = 0

    def advance(self, sequences: Array, scores: Array) -> tuple[Array, Array]:
        """The next token of each row, and the row it continues, for scores (batch * beams, vocabulary)."""
        vocabulary = scores.shape[1]
        if self.beams * vocabulary < 2 * self.beams:
            raise ValueError(f"a vocabulary of {vocabulary} is too small for a beam search")
        flat = scores.reshape(len(self.done), -1)
        tokens = np.full(len(sequences), self.pad_token, np.int32)
        rows = np.zeros(len(sequences), np.int64)
        self.scores = np.zeros(len(sequences), np.float32)
        for entry in np.flatnonzero(~self.done):
            start = int(entry) * self.beams
            order = highest(flat[entry], 2 * self.beams)
            going = self.split(int(entry), sequences, order, flat[entry], vocabulary)
            for beam, place in enumerate(going):
                tokens[start + beam] = place % vocabulary
                rows[start + beam] = start + place // vocabulary
                self.scores[start + beam] = flat[entry, place]
            self.done[entry] = self.finished(int(entry), flat[entry].max(), sequences.shape[1])
        return tokens, rows

    def split(self, entry: int, sequences: Array, order: Array, scores: Array, vocabulary: int) -> list[int]:
        """The places of `scores` that go on, best first; those that end become hypotheses."""
        going: list[int] = []
        for rank, place in enumerate(order.tolist()):
            if place % vocabulary != self.end_token:
                going.append(place)
                if len(going) == self.beams:
                    break
            elif rank < self.beams:
                self.hypotheses[entry].add(sequences[entry * self.beams + place // vocabulary], scores[place])
        return going

    def finished(self, entry: int, best: np.float32, length: int) -> bool:
        """Whether no beam of the entry can become better than its worst hypothesis."""
        found = self.hypotheses[entry]
        return found.full and (self.early_stopping or bool(found.worst >= found.score(best, length)))

    def best(self, sequences: Array, count: int, limit: int) -> tuple[Array, Array]:
        """The best `count` sequences of each entry, padded to (batch, count, limit), and their scores."""
        tokens = np.full((len(self.done), count, limit), self.pad_token, np.int32)
        scores = np.zeros((len(self.done), count), np.float32)
        for entry, found in enumerate(self.hypotheses):
            if not self.done[entry]:
                for row in range(entry * self.beams, (entry + 1) * self.beams):
                    found.add(sequences[row], self.scores[row])
            for place, (score, words) in enumerate(found.best(count)):
                tokens[entry, place, : len(words)] = words
                scores[entry, place] = score
        return tokens, scores


def highest(scores: Array, count: int) -> Array:
    """The places of the `count` highest scores, best first; the first of those that are equal."""
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    places = np.flatnonzero(scores >= least)
    return places[np.argsort(-scores[places], kind="stable")][:count]
