"""Drawing the next token: what temperature and filters leave of the scores, and chance."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.models.generation import selection
from sardonyx.models.generation.settings import Settings

Array = np.ndarray[Any, Any]

# How many of the most likely tokens are looked at first where a filter wants those of some share.
_FIRST_LOOK = 256


def generator(seed: int | None = None) -> np.random.Generator:
    """A source of chance; without a seed it follows `torch.manual_seed`, where torch is loaded, else `np.random.seed`,
    so that programs which set these get the same tokens again."""
    if seed is None:
        torch = sys.modules.get("torch")
        if torch is not None:
            seed = int(torch.randint(0, 2**62, ()))
        else:
            seed = int(np.random.randint(0, 2**62, dtype=np.int64))
    return np.random.default_rng(seed)


class Sampler:
    """Draws tokens by the scores that temperature, top_k, top_p, min_p, typical_p, epsilon_cutoff and eta_cutoff leave,
    in this order. At least `keep` tokens stay in each row."""

    def __init__(self, settings: Settings, chance: np.random.Generator, keep: int = 1) -> None:
        self._settings = settings
        self._chance = chance
        self._keep = keep

    def draw(self, scores: Array) -> Array:
        """A token for each row of scores (rows, vocabulary)."""
        return np.array([self._drawn(row) for row in scores], np.int64)

    def draw_apart(self, count: int, scores: Array) -> Array:
        """The places of `count` different ones of these scores (of one dimension), drawn one after the other."""
        noise = self._chance.gumbel(size=len(scores))
        return selection.largest(count, scores + noise)

    def kept(self, scores: Array) -> tuple[Array, Array]:
        """The tokens that the filters leave of one row, in order, and their scores behind the temperature (float64)."""
        if self._settings.temperature != 1:
            scores = scores / np.float32(self._settings.temperature)
        settings, keep = self._settings, self._keep
        most = max(settings.top_k, keep) if settings.top_k else len(scores)
        tokens = selection.at_least_the(most, scores)
        left = scores[tokens].astype(np.float64)
        if not np.isfinite(left.max()):
            raise errors.Fail(
                f"No token can be drawn: the largest score is {left.max()}. The model gives no numbers, or all tokens "
                "are banned"
            )
        if settings.top_p < 1:
            tokens, left = _only(_likeliest(left, settings.top_p, keep), tokens, left)
        if settings.min_p is not None:
            with np.errstate(divide="ignore"):
                least = left.max() + np.log(settings.min_p)
            tokens, left = _only(_above(left, least, keep), tokens, left)
        if settings.typical_p < 1:
            tokens, left = _only(_typical(left, settings.typical_p, keep), tokens, left)
        if 0 < settings.epsilon_cutoff < 1:
            least = np.log(settings.epsilon_cutoff) + _log_sum(left)
            tokens, left = _only(_above(left, least, keep), tokens, left)
        if 0 < settings.eta_cutoff < 1:
            eta = settings.eta_cutoff
            least = np.log(min(eta, np.sqrt(eta) * np.exp(-_entropy(left)))) + _log_sum(left)
            tokens, left = _only(_above(left, least, keep), tokens, left)
        return tokens, left

    def _drawn(self, row: Array) -> int:
        tokens, scores = self.kept(row)
        below = np.cumsum(np.exp(scores - scores.max()))
        place = np.searchsorted(below, self._chance.random() * below[-1], side="right")
        return int(tokens[min(int(place), len(tokens) - 1)])


def _only(places: Array, tokens: Array, scores: Array) -> tuple[Array, Array]:
    return tokens[places], scores[places]


def _likeliest(scores: Array, share: float, keep: int) -> Array:
    """The places of the most likely tokens, so many that their probabilities reach `share`."""
    total = _log_sum(scores)
    count = max(_FIRST_LOOK, keep)
    while True:
        places = selection.largest(count, scores)
        below = np.cumsum(np.exp(scores[places] - total))
        if len(places) == len(scores) or below[-1] >= share:
            break
        count *= 8
    # A token stays if those that are likelier do not reach the share yet.
    wanted = max(1 + int(np.searchsorted(below[:-1], share, side="left")), keep)
    return np.sort(places[:wanted])


def _above(scores: Array, least: float, keep: int) -> Array:
    """The places of scores from `least` on, and of the `keep` largest."""
    enough = scores >= least
    if enough.sum() < keep:
        enough[selection.at_least_the(keep, scores)] = True
    return np.flatnonzero(enough)


def _typical(scores: Array, share: float, keep: int) -> Array:
    """The places of tokens whose surprise is nearest to the mean surprise, so many that they reach `share`."""
    probabilities = np.exp(scores - _log_sum(scores))
    away = np.abs(_log_sum(scores) - scores - _entropy(scores))
    order = np.argsort(away, kind="stable")
    count = int((np.cumsum(probabilities[order]) < share).sum())
    bound = away[order[min(count, len(order) - 1)]]
    stays = away <= bound
    stays[order[:keep]] = True
    return np.flatnonzero(stays)


def _log_sum(scores: Array) -> float:
    top = scores.max()
    return float(top + np.log(np.exp(scores - top).sum()))


def _entropy(scores: Array) -> float:
    logs = scores - _log_sum(scores)
    possible = logs > -np.inf
    return float(-(np.exp(logs[possible]) * logs[possible]).sum())
