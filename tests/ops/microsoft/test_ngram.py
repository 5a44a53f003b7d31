"""N-gram helpers of text generation against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(8)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_repeated_ngrams_are_blocked(size: int) -> None:
    ids = RNG.integers(0, 3, (3, 8))
    scores = RNG.standard_normal((3, 5)).astype(np.float32)
    (found,) = peer.compare("NGramRepeatBlock", [ids, scores], [1], {"ngram_size": size})
    assert np.isneginf(found).any() == (size < 9)


SOURCE = np.array([4, 7, 2, 9, 7, 2, 5, 1])


@pytest.mark.parametrize(
    ("current", "predicted", "previous"),
    [
        ([0, 4], [7, 2, 9, 7, 2, 5, 1, 3], 1),  # everything agrees
        ([0, 4], [7, 2, 6, 7, 2, 5, 1, 3], 1),  # leaves the source at the third
        ([0, 4], [7, 2, 5, 0, 0, 0, 0, 3], 1),
        ([0, 9], None, 0),
        ([0, 7, 2], None, 0),  # twice in the source
        ([0, 3], None, 0),  # nowhere
        ([5, 1], None, 0),  # at its end
    ],
)
@pytest.mark.parametrize("sizes", [(1, 3), (2, 3), (1, 1)])
def test_bifurcation(current: list[int], predicted: list[int] | None, previous: int, sizes: tuple[int, int]) -> None:
    given = [SOURCE, np.array(current), np.array(previous), None if predicted is None else np.array(predicted)]
    peer.compare("BifurcationDetector", given, [7, 7], {"min_ngram_size": sizes[0], "max_ngram_size": sizes[1]})
