"""Filters against a reference in float64 that looks at all tokens, and what is drawn against its probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx import errors
from sardonyx.models.generation import selection
from sardonyx.models.generation.sampling import Sampler, generator
from sardonyx.models.generation.settings import Settings

CASES = [
    {"top_k": 0, "temperature": 0.7},
    {"top_k": 50},
    {"top_k": 1},
    {"top_k": 0, "top_p": 0.9},
    {"top_k": 0, "top_p": 0.9999},
    {"top_k": 0, "top_p": 0.0},
    {"top_k": 40, "top_p": 0.6, "temperature": 1.5},
    {"top_k": 0, "min_p": 0.05},
    {"top_k": 0, "min_p": 1.0},
    {"top_k": 0, "typical_p": 0.4},
    {"top_k": 30, "typical_p": 0.95, "min_p": 0.01},
    {"top_k": 0, "epsilon_cutoff": 3e-3},
    {"top_k": 0, "eta_cutoff": 2e-2},
    {"top_k": 0, "eta_cutoff": 0.9},
]


def _softmax(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores - scores[np.isfinite(scores)].max())
    return raised / raised.sum()


def _reference(scores: np.ndarray, settings: Settings, keep: int) -> np.ndarray:
    """Scores in float64, -inf where a filter takes a token away."""
    scores = (scores / np.float32(settings.temperature)).astype(np.float64)
    best = np.argsort(-scores, kind="stable")

    def without(taken: np.ndarray, first: np.ndarray) -> np.ndarray:
        taken = taken.copy()
        taken[first[:keep]] = False
        return np.where(taken, -np.inf, scores)

    if settings.top_k:
        count = max(settings.top_k, keep)
        scores = np.where(scores < np.sort(scores)[-min(count, len(scores))], -np.inf, scores)
    if settings.top_p < 1:
        shares = _softmax(scores)[best]
        taken = np.zeros(len(scores), bool)
        taken[best] = np.concatenate([[0], np.cumsum(shares)[:-1]]) >= settings.top_p
        scores = without(taken, best)
    if settings.min_p is not None:
        shares = _softmax(scores)
        scores = without(shares < settings.min_p * shares.max(), best)
    if settings.typical_p < 1:
        shares = _softmax(scores)
        with np.errstate(divide="ignore"):
            surprise = -np.log(shares)
        mean = (shares[shares > 0] * surprise[shares > 0]).sum()
        away = np.abs(surprise - mean)
        order = np.argsort(away, kind="stable")
        last = min((np.cumsum(shares[order]) < settings.typical_p).sum(), len(order) - 1)
        scores = without(away > away[order[last]], order)
    for name in ("epsilon_cutoff", "eta_cutoff"):
        cutoff = getattr(settings, name)
        if 0 < cutoff < 1:
            shares = _softmax(scores)
            if name == "eta_cutoff":
                entropy = -(shares[shares > 0] * np.log(shares[shares > 0])).sum()
                cutoff = min(cutoff, np.sqrt(cutoff) * np.exp(-entropy))
            scores = without(shares < cutoff, best)
    return scores


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("size", [97, 20011])
def test_filters_leave_what_the_reference_leaves(case: dict[str, float], keep: int, size: int) -> None:
    settings = Settings.of(do_sample=True, **case)
    for seed, spread in ((0, 1.0), (1, 4.0), (2, 0.01)):
        scores = (np.random.default_rng(seed).normal(size=size) * spread).astype(np.float32)
        tokens, left = Sampler(settings, generator(0), keep).kept(scores)
        wanted = _reference(scores, settings, keep)
        np.testing.assert_array_equal(tokens, np.flatnonzero(np.isfinite(wanted)))
        np.testing.assert_allclose(left, wanted[tokens], rtol=1e-12)


def test_tokens_come_as_often_as_they_are_likely() -> None:
    scores = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
    sampler = Sampler(Settings(do_sample=True, top_k=3), np.random.default_rng(5))
    drawn = sampler.draw(np.tile(scores, (20000, 1)))
    shares = np.bincount(drawn, minlength=4) / 20000
    np.testing.assert_allclose(shares, np.array([0.5, 0.25, 0.15, 0]) / 0.9, atol=0.015)


def test_what_is_drawn_apart_comes_as_if_one_after_the_other() -> None:
    shares = np.array([0.6, 0.3, 0.1])
    sampler = Sampler(Settings(do_sample=True), np.random.default_rng(6))
    pairs = np.array([sampler.draw_apart(2, np.log(shares)) for _ in range(20000)])
    for first in range(3):
        for second in set(range(3)) - {first}:
            found = ((pairs[:, 0] == first) & (pairs[:, 1] == second)).mean()
            assert found == pytest.approx(shares[first] * shares[second] / (1 - shares[first]), abs=0.015)


def test_seeds_of_numpy_and_of_torch_give_the_same_again() -> None:
    torch = pytest.importorskip("torch")
    for _ in range(2):
        torch.manual_seed(3)
        first = generator().random()
        torch.manual_seed(3)
        assert generator().random() == first
    assert generator(4).random() == generator(4).random()


@pytest.mark.parametrize("scores", [[-np.inf, -np.inf], [np.nan, 1.0], [np.inf, 0.0]])
def test_scores_that_are_no_numbers_are_refused(scores: list[float]) -> None:
    with pytest.raises(errors.Fail, match="No token can be drawn"):
        Sampler(Settings(do_sample=True), generator(0)).draw(np.array([scores], np.float32))


@pytest.mark.parametrize("size", [1, 5, 63, 64, 1000, 50257])
def test_the_largest_are_those_of_a_sort(size: int) -> None:
    rng = np.random.default_rng(size)
    for values in (rng.normal(size=size), rng.integers(0, 9, size).astype(float), np.full(size, 2.0)):
        values = values.astype(np.float32)
        for count in {1, min(2, size), min(10, size), min(700, size), size}:
            order = np.argsort(-values, kind="stable")
            np.testing.assert_array_equal(selection.largest(count, values), order[:count])
            least = values[order[count - 1]]
            np.testing.assert_array_equal(selection.at_least_the(count, values), np.flatnonzero(values >= least))
