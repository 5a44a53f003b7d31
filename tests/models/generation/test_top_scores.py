"""The best scores of rows, against NumPy's in float64."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.models.generation.top_scores import top_scores


@pytest.mark.parametrize(("rows", "words", "count"), [(1, 97, 4), (5, 5003, 10), (3, 7, 7), (2, 3, 8), (4, 64, 1)])
def test_best_scores_and_probabilities(rows: int, words: int, count: int) -> None:
    scores = np.random.default_rng(words).normal(scale=9, size=(rows, words)).astype(np.float32)
    found = top_scores(count, scores)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(found.tokens, order)
    np.testing.assert_array_equal(found.scores, np.take_along_axis(scores, order, axis=1))
    wide = scores.astype(np.float64)
    away = wide - wide.max(axis=1, keepdims=True)
    wanted = np.take_along_axis(away - np.log(np.exp(away).sum(axis=1, keepdims=True)), order, axis=1)
    np.testing.assert_allclose(found.logarithms, wanted, rtol=1e-6, atol=2e-6)


def test_of_equal_scores_the_first_ones_are_the_best() -> None:
    scores = np.zeros((2, 300), np.float32)
    scores[0, [290, 7, 150]] = 1
    scores[1, 200:] = -np.inf
    found = top_scores(4, scores)
    assert found.tokens.tolist() == [[7, 150, 290, 0], [0, 1, 2, 3]]
    np.testing.assert_allclose(found.logarithms[1], -np.log(200), rtol=1e-6)


def test_rows_with_nan_have_no_probabilities() -> None:
    scores = np.zeros((2, 50), np.float32)
    scores[1, 20] = np.nan
    found = top_scores(3, scores)
    assert np.isfinite(found.logarithms[0]).all()
    assert np.isnan(found.logarithms[1]).all()
