"""Tests of limits on memory: what is taken counts, what would be too much is refused before it is taken."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from sardonyx import errors
from sardonyx.runtime.memory.constant_memory import constant_empty
from sardonyx.runtime.memory.execution_contexts import ExecutionContext, ExecutionContextPool, Memory
from sardonyx.runtime.memory.memory import (
    CHECKED_BYTES,
    MemoryLimit,
    MemoryLimitError,
    PostponedError,
    ahead_of_run,
    applied_limit,
    require,
    require_tables,
)
from tests.runtime.native_kernels import PlanMaker


def _plan(arena: int, scratch: int = 0):
    maker = PlanMaker(1)
    maker.add("put", ((0, 0), 5))
    return maker.plan(arena, scratch)


def test_what_is_held_counts_as_long_as_it_is_held() -> None:
    limit = MemoryLimit(1000, "a test")
    first, second = limit.charge(300, "one"), limit.charge(200, "other")
    assert (limit.held, limit.left) == ({"one": 300, "other": 200}, 500)
    del first
    gc.collect()
    assert (limit.held, limit.left) == ({"other": 200}, 800)
    del second
    assert limit.held == {}


def test_too_much_is_refused_with_what_holds_the_rest() -> None:
    limit = MemoryLimit(1000, "the key of a test")
    held = [limit.charge(100, "arenas"), limit.charge(600, "weights")]
    with pytest.raises(MemoryLimitError) as caught:
        limit.charge(301, "a result")
    text = caught.value.message
    assert isinstance(caught.value, errors.Fail)
    for part in ("size 301", "(a result)", "1000 bytes", "the key of a test", "weights 600, arenas 100"):
        assert part in text
    assert limit.left == 300
    assert len(held) == 2


def test_a_limit_applies_to_the_thread_that_works_under_it() -> None:
    limit, seen = MemoryLimit(1000, "a test"), []
    with limit.applied():
        assert applied_limit() is limit
        require(1000, "as much as there is")
        with pytest.raises(MemoryLimitError):
            require(1001, "more")
        with pytest.raises(MemoryLimitError, match="weights"):
            constant_empty(1001, np.dtype(np.uint8))
        other = threading.Thread(target=lambda: seen.append(applied_limit()))
        other.start()
        other.join()
        with MemoryLimit(10, "an inner one").applied(), pytest.raises(MemoryLimitError, match="an inner one"):
            require(11, "more")
        assert applied_limit() is limit
    assert applied_limit() is None
    assert seen == [None]
    require(1001, "more")


def test_memory_counts_until_it_goes() -> None:
    limit = MemoryLimit(1 << 20, "a test")
    block = Memory(1 << 19, "a block", limit)
    assert limit.held == {"a block": 1 << 19}
    with pytest.raises(MemoryLimitError):
        Memory((1 << 19) + 1, "another block", limit)
    del block
    assert limit.held == {}
    Memory(1 << 20, "another block", limit)


def test_a_lane_that_would_be_too_large_is_as_good_as_before() -> None:
    limit = MemoryLimit(1 << 20, "a test")
    execution_context = ExecutionContext(limit=limit)
    execution_context.prepare(_plan(arena=1 << 18))
    with pytest.raises(MemoryLimitError, match="the arena of a run"):
        execution_context.prepare(_plan(arena=1 << 20))
    execution_context.prepare(_plan(arena=1 << 18))
    assert limit.held["the arena of a run"] == execution_context.arena_bytes == 1 << 18
    assert sum(limit.held.values()) == execution_context.nbytes
    with pytest.raises(MemoryLimitError, match="scratch"):
        execution_context.prepare(_plan(arena=1, scratch=1 << 20))


def test_the_lanes_of_a_pool_count_together() -> None:
    limit = MemoryLimit(1 << 20, "a test")
    pool = ExecutionContextPool(limit=limit)
    first, second = pool.take(), pool.take()
    first.prepare(_plan(arena=1 << 19))
    with pytest.raises(MemoryLimitError):
        second.prepare(_plan(arena=1 << 19))
    pool.give(first)
    pool.give(second)
    assert {is_idle for _, is_idle in pool.execution_contexts} == {True}
    del first, second
    pool.shrink()
    gc.collect()
    assert limit.held == {}
    assert pool.execution_contexts == []


def test_any_number_of_threads_charge_no_more_than_there_is() -> None:
    limit = MemoryLimit(100, "a test")
    taken: list[object] = []
    refused: list[Exception] = []

    def take() -> None:
        for _ in range(50):
            try:
                taken.append(limit.charge(1, "a byte"))
            except MemoryLimitError as error:
                refused.append(error)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(refused)) == (100, 100)
    taken.clear()
    assert limit.held == {}


def test_nothing_large_is_made_ahead_of_a_run_but_weights() -> None:
    require(CHECKED_BYTES, "a table")
    with ahead_of_run():
        require(CHECKED_BYTES - 1, "a table")
        require(CHECKED_BYTES, "weights", of_model=True)
        require_tables(CHECKED_BYTES - 1, "tables", beside=1 << 60)  # the result is asked for where it is made
        with pytest.raises(PostponedError, match=f"tables of {CHECKED_BYTES} bytes are made when a run asks for them"):
            require_tables(CHECKED_BYTES, "tables")
        with ahead_of_run():
            pass
        with pytest.raises(PostponedError):
            require(CHECKED_BYTES, "a table")
    require(CHECKED_BYTES, "a table")


def test_tables_are_asked_for_with_what_comes_beside() -> None:
    limit = MemoryLimit(2 * CHECKED_BYTES, "a test")
    with limit.applied():
        require_tables(CHECKED_BYTES, "tables", beside=CHECKED_BYTES)
        with pytest.raises(MemoryLimitError, match="tables"):
            require_tables(CHECKED_BYTES, "tables", beside=CHECKED_BYTES + 1)
