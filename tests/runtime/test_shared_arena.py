"""Tests of the arena that sessions share."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.runtime.memory.execution_contexts import ExecutionContext
from sardonyx.runtime.memory.memory import MemoryLimit, MemoryLimitError
from sardonyx.runtime.memory.shared_arena import ArenaGrowth, SharedExecutionContexts
from tests.runtime.native_kernels import PlanMaker


def _plan(arena: int):
    maker = PlanMaker(1)
    maker.add("put", ((0, 0), 5))
    return maker.plan(arena, 0)


class Keeper:
    """Keeps an execution context, and gives it back unless it is busy."""

    def __init__(self, pool: SharedExecutionContexts) -> None:
        self.pool, self.busy = pool, False
        self.execution_context: ExecutionContext | None = pool.lend(self)

    def close(self) -> bool:
        if self.busy:
            return False
        execution_context, self.execution_context = self.execution_context, None
        if execution_context is not None:
            self.pool.give(execution_context)
        return True


@pytest.mark.parametrize(
    ("growth", "nbytes", "before", "expected"),
    [
        (ArenaGrowth(), 5000, 0, 8192),
        (ArenaGrowth(), 8192, 0, 8192),
        (ArenaGrowth(doubles=False), 5000, 0, 5000),
        (ArenaGrowth(first=1 << 20), 5000, 0, 1 << 20),
        (ArenaGrowth(doubles=False, first=70000), 5000, 0, 70000),
        (ArenaGrowth(doubles=False, first=70000), 80000, 70000, 80000),
        (ArenaGrowth(second=1 << 21), 5000, 4096, 1 << 21),
        (ArenaGrowth(doubles=False, second=1 << 21), 5000, 4096, 5000),
        (ArenaGrowth(most_doubled=4096), 5000, 0, 5000),
    ],
)
def test_sizes_of_arenas(growth: ArenaGrowth, nbytes: int, before: int, expected: int) -> None:
    assert growth(nbytes, before) == expected


def test_arenas_grow_as_they_are_told() -> None:
    pool = SharedExecutionContexts(ArenaGrowth(first=1 << 16, second=1 << 18))
    execution_context = pool.take()
    execution_context.prepare(_plan(5000))
    assert execution_context.arena_bytes == 1 << 16
    execution_context.prepare(_plan((1 << 16) + 1))
    assert execution_context.arena_bytes == 1 << 18


def test_an_arena_takes_less_than_it_would_like_where_there_is_no_more() -> None:
    limit = MemoryLimit(100_000, "a test")
    execution_context = SharedExecutionContexts(ArenaGrowth(), limit).take()
    execution_context.prepare(_plan(70_000))
    assert 70_000 <= execution_context.arena_bytes < 100_000
    with pytest.raises(MemoryLimitError):
        execution_context.prepare(_plan(100_000))


def test_a_lane_that_somebody_keeps_goes_to_who_needs_one() -> None:
    pool = SharedExecutionContexts(ArenaGrowth())
    first = Keeper(pool)
    assert first.execution_context is not None
    first.execution_context.prepare(_plan(4096))
    kept = first.execution_context
    second = Keeper(pool)
    assert second.execution_context is kept
    assert first.execution_context is None
    second.busy = True
    other = pool.take()
    assert other is not kept
    pool.give(other)
    assert pool.lend(second) is other  # nobody calls back what he asks for himself


def test_shrinking_takes_what_is_kept_and_not_in_use() -> None:
    pool = SharedExecutionContexts(ArenaGrowth())
    keeper = Keeper(pool)
    assert keeper.execution_context is not None
    keeper.execution_context.prepare(_plan(1 << 16))
    assert pool.shrink() >= 1 << 16
    assert keeper.execution_context is None
    busy = Keeper(pool)
    busy.busy = True
    assert busy.execution_context is not None
    busy.execution_context.prepare(_plan(1 << 16))
    pool.shrink()
    assert busy.execution_context.arena_bytes == 1 << 16
    np.testing.assert_equal(
        len([execution_context for execution_context, _ in pool.execution_contexts if execution_context.nbytes]), 1
    )
