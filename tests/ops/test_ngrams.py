"""Counts of n-grams against onnxruntime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peer import compare, ours

RNG = np.random.default_rng(41)
VOCABULARY = 5


def vectorizer(mode: str, shortest: int, longest: int, skips: int, *, strings: bool, weights: bool) -> dict[str, Any]:
    """Attributes for a random pool of up to seven n-grams of each length, their coordinates shuffled."""
    pool: list[int] = []
    starts, count = [], 0
    for length in range(1, longest + 1):
        starts.append(len(pool))
        grams = list(itertools.product(range(VOCABULARY), repeat=length))
        for index in RNG.choice(len(grams), min(len(grams), int(RNG.integers(2, 8))), replace=False):
            pool += grams[index]
            count += 1
    found: dict[str, Any] = {
        "mode": mode,
        "min_gram_length": shortest,
        "max_gram_length": longest,
        "max_skip_count": skips,
        "ngram_counts": starts,
        "ngram_indexes": RNG.permutation(count).tolist(),
    }
    found.update({"pool_strings": [f"t{token}" for token in pool]} if strings else {"pool_int64s": pool})
    if weights:
        found["weights"] = RNG.normal(size=count).astype(np.float32).tolist()
    return found


def tokens(shape: tuple[int, ...], *, strings: bool) -> Any:
    numbers = RNG.integers(0, VOCABULARY + 1, size=shape)
    return np.array([f"t{number}" for number in numbers.ravel()], object).reshape(shape) if strings else numbers


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 2), (2, 2), (1, 3), (2, 3)])
@pytest.mark.parametrize("skips", [0, 1, 3])
@pytest.mark.parametrize("strings", [False, True])
def test_counts(mode: str, lengths: tuple[int, int], skips: int, strings: bool) -> None:
    for weights in (False, True):
        attributes = vectorizer(mode, *lengths, skips, strings=strings, weights=weights)
        compare("TfIdfVectorizer", [tokens((12,), strings=strings)], **attributes)
        compare("TfIdfVectorizer", [tokens((3, 9), strings=strings)], **attributes)


@pytest.mark.parametrize("shape", [(0,), (2, 0), (2, 1)])
@pytest.mark.parametrize("strings", [False, True])
def test_short_rows(shape: tuple[int, ...], strings: bool) -> None:
    attributes = vectorizer("TF", 1, 3, 1, strings=strings, weights=False)
    compare("TfIdfVectorizer", [tokens(shape, strings=strings)], **attributes)


@pytest.mark.parametrize(("count", "factor"), [(3, 1), (3, 10**14), (300, 1), (300, -(10**14))])
def test_large_vocabularies(count: int, factor: int) -> None:
    """Tokens and n-grams in tables of every number, or far apart."""
    pool = (RNG.permutation(count) * factor).tolist()
    pairs = [[pool[first], pool[second]] for first, second in {*map(tuple, RNG.integers(0, count, (40, 2)).tolist())}]
    grams = len(pool) + len(pairs)
    attributes = {
        "mode": "TFIDF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 2,
        "ngram_counts": [0, len(pool)], "ngram_indexes": RNG.permutation(grams).tolist(),
        "pool_int64s": [*pool, *(token for pair in pairs for token in pair)],
        "weights": RNG.normal(size=grams).astype(np.float32).tolist(),
    }  # fmt: skip
    data = RNG.integers(-2, count + 2, (4, 60)) * factor
    data[0, :2] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    compare("TfIdfVectorizer", [data], **attributes)


def test_int32_tokens() -> None:
    attributes = vectorizer("TFIDF", 1, 2, 2, strings=False, weights=True)
    compare("TfIdfVectorizer", [tokens((2, 9), strings=False).astype(np.int32)], **attributes)


@pytest.mark.parametrize("mode", ["TF", "TFIDF"])
def test_shared_coordinates(mode: str) -> None:
    compare(
        "TfIdfVectorizer", [np.array([1, 2, 3, 1, 2, 1])], mode=mode, min_gram_length=1, max_gram_length=2,
        max_skip_count=1, ngram_counts=[0, 2], ngram_indexes=[0, 1, 1, 0], pool_int64s=[1, 2, 1, 3, 1, 2],
        weights=[0.5, 0.25, 2.0, 4.0],
    )  # fmt: skip


def test_shared_coordinates_add_up_in_every_mode() -> None:
    """Here onnxruntime keeps the weight of the n-gram that it found last, which the specification does not say."""
    (found,) = ours(
        "TfIdfVectorizer", [np.array([1, 2, 2])], mode="IDF", min_gram_length=1, max_gram_length=1, max_skip_count=0,
        ngram_counts=[0], ngram_indexes=[1, 1], pool_int64s=[1, 2], weights=[0.5, 0.25],
    )  # fmt: skip
    assert found.tolist() == [0.0, 0.75]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "BM25"}, "mode 'BM25' is none of"),
        ({"min_gram_length": 3}, "min_gram_length must be from 1"),
        ({"ngram_indexes": [0]}, "ngram_indexes must have 3 entries"),
        ({"ngram_counts": [0, 1]}, "does not cut 4 tokens"),
        ({"weights": [1.0]}, "weights has 1 entries for 3"),
        ({"pool_int64s": [1, 2, 3, 4, 3, 4], "ngram_indexes": [0, 1, 2, 3]}, r"n-gram \[3, 4\] twice"),
        ({"pool_strings": ["a"]}, "one of pool_strings and pool_int64s"),
    ],
)
def test_attributes_that_contradict_each_other(changes: dict[str, Any], message: str) -> None:
    attributes = {
        "mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0, "ngram_counts": [0, 2],
        "ngram_indexes": [0, 1, 2], "pool_int64s": [1, 2, 1, 2],
    }  # fmt: skip
    with pytest.raises(errors.OnnxRuntimeError, match=message):
        ours("TfIdfVectorizer", [np.array([1, 2])], **{**attributes, **changes})


def test_inputs_that_do_not_fit() -> None:
    attributes = vectorizer("TF", 1, 2, 0, strings=False, weights=False)
    with pytest.raises(errors.OnnxRuntimeError, match="with B > 0"):
        ours("TfIdfVectorizer", [np.zeros((0, 4), np.int64)], **attributes)
    with pytest.raises(errors.OnnxRuntimeError, match="the pool is of integers"):
        ours("TfIdfVectorizer", [np.array(["a"], object)], **attributes)
