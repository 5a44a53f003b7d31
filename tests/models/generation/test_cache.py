"""Caches hold what they say, whatever is done to their rows."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx import errors
from sardonyx.models.generation.bound_decoder import BoundCache
from sardonyx.models.generation.growing_decoder import GrowingCache
from sardonyx.models.generation.signature import State

STATES = (
    State("past.0", "present.0", np.dtype(np.float32), (None, 2, None, 3), 2),
    State("past.1", "present.1", np.dtype(np.float32), (None, 2, None, None), 2),
)


class _Naive:
    """Rows of numbers that are copied whole; what is read is the content of a position."""

    def __init__(self, rows: int) -> None:
        self.rows: list[list[float]] = [[] for _ in range(rows)]


def _write(cache: BoundCache | GrowingCache, ids: np.ndarray, values: np.ndarray) -> None:
    """What a step does: the values (rows, count) of its positions go into every element of both caches."""
    count = ids.shape[1]
    cache.reserve(cache.length + count)
    cache.put(ids, None)
    new = np.broadcast_to(values[:, None, :, None], (cache.rows, 2, count, 3)).astype(np.float32)
    if isinstance(cache, BoundCache):
        for place in range(len(STATES)):
            cache.now(place)[: cache.rows, :, cache.length : cache.length + count] = new
    else:
        cache.arrays = [np.concatenate([array, new], axis=2) for array in cache.arrays]
    cache.advance(count)


def _held(cache: BoundCache | GrowingCache) -> list[np.ndarray]:
    if isinstance(cache, BoundCache):
        return [cache.now(place)[: cache.rows, :, : cache.length] for place in range(len(STATES))]
    return cache.arrays


def _made(kind: type[BoundCache | GrowingCache], rows: int, spread: int = 1, capacity: int = 8) -> BoundCache:
    return kind(STATES, 3, rows, capacity, None, spread)  # type: ignore[return-value]


@pytest.fixture(params=[BoundCache, GrowingCache], ids=["bound", "growing"])
def kind(request: pytest.FixtureRequest) -> type[BoundCache | GrowingCache]:
    return request.param


@pytest.mark.parametrize("seed", range(6))
def test_reordered_rows_hold_what_copied_rows_hold(kind: type[BoundCache], seed: int) -> None:
    rng = np.random.default_rng(seed)
    cache = _made(kind, 2, spread=3)
    naive = np.zeros((2, 0))
    for step in range(24):
        count = 4 if step == 0 else int(rng.integers(1, 3))
        values = rng.random((cache.rows, count)).astype(np.float32)
        _write(cache, (values * 1000).astype(np.int64), values)
        naive = np.concatenate([naive, values], axis=1)
        if step == 0:
            cache.fan_out(3)
            naive = np.repeat(naive, 3, axis=0)
        if step == 15:
            cache.crop(9)
            naive = naive[:, :9]
        rows = rng.integers(0, 6, 6)
        cache.reorder(rows)
        naive = naive[rows]
        for held in _held(cache):
            np.testing.assert_array_equal(held, np.broadcast_to(naive[:, None, :, None], held.shape).astype(np.float32))
        np.testing.assert_array_equal(cache.tokens, (naive.astype(np.float32) * 1000).astype(np.int64))


def test_what_rows_have_in_common_is_not_copied() -> None:
    cache = _made(BoundCache, 1, spread=3)
    _write(cache, np.array([[1, 2, 3]]), np.array([[1.0, 2.0, 3.0]]))
    cache.fan_out(3)
    _write(cache, np.array([[4], [5], [6]]), np.array([[4.0], [5.0], [6.0]]))
    moved: list[tuple[list[int], list[int], int]] = []
    original = cache._move
    cache._move = lambda to, of, first: (  # type: ignore[method-assign]
        moved.append((to, of, first)),
        original(to, of, first),
    )[1]
    cache.reorder(np.array([0, 0, 2]))
    cache.reorder(np.array([1, 0, 2]))  # rows 0 and 1 are the same by now
    assert moved == [([1], [0], 3)]


def test_what_is_stopped_halfway_leaves_an_empty_cache(kind: type[BoundCache]) -> None:
    cache = _made(kind, 2)
    _write(cache, np.array([[1], [2]]), np.array([[1.0], [2.0]]))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    cache._move = stop  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        cache.reorder(np.array([1, 0]))
    assert cache.length == 0
    _write(cache, np.array([[7], [8]]), np.array([[7.0], [8.0]]))
    assert [float(held[1, 0, 0, 0]) for held in _held(cache)] == [8.0, 8.0]


def test_states_of_fixed_size_take_turns_and_cannot_go_back() -> None:
    states = (*STATES, State("past_conv", "present_conv", np.dtype(np.float32), (None, 4, 2), None))
    cache = BoundCache(states, 3, 1, 8, None, 1)
    assert cache.now(2) is not cache.next(2)
    assert cache.now(0) is cache.next(0)
    cache.put(np.array([[1, 2]]), None)
    cache.advance(2)
    with pytest.raises(errors.InvalidArgument, match="cut it to 0"):
        cache.crop(1)
    cache.crop(0)
    assert cache.length == 0


def test_matching_looks_at_tokens_and_at_the_mask() -> None:
    cache = _made(BoundCache, 1)
    cache.put(np.array([[5, 6, 7, 8]]), np.array([[0, 1, 1, 1]]))
    cache.advance(4)
    assert cache.matching(np.array([[5, 6, 7, 8, 9]]), np.array([[0, 1, 1, 1, 1]])) == 4
    assert cache.matching(np.array([[5, 6, 9]]), np.array([[0, 1, 1]])) == 2
    assert cache.matching(np.array([[5, 6, 7]])) == 0


@pytest.mark.parametrize("rows", [[0], [0, 2], [0, -1], [[0, 1]], [[0], [1]]])
def test_rows_that_are_none_are_refused(rows: list[int]) -> None:
    with pytest.raises(errors.InvalidArgument, match="does not name a row"):
        _made(BoundCache, 2).reorder(np.array(rows))


def test_more_positions_than_the_model_has_are_refused() -> None:
    cache = BoundCache(STATES, 3, 1, 8, 20, 1)
    cache.reserve(20)
    assert cache.capacity == 20
    with pytest.raises(errors.InvalidArgument, match="longer than the 20"):
        cache.reserve(21)
    with pytest.raises(errors.InvalidArgument, match="longer than the 20"):
        BoundCache(STATES, 3, 1, 21, 20, 1)
