"""Tests of the memory of runs."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx import errors
from sardonyx.runtime.memory import memory
from sardonyx.runtime.memory.execution_contexts import (
    ALIGNMENT,
    ExecutionContext,
    ExecutionContextField,
    ExecutionContextPool,
    Memory,
)
from sardonyx.runtime.threads.thread_pool import ThreadPool, ThreadPoolOptions
from tests.runtime.native_kernels import PlanMaker, chain, chained, code, numbers

LINUX = Path("/proc/self/statm").exists()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _plan(arena: int = 0, scratch: int = 0, steps: int = 1) -> Any:
    maker = PlanMaker(2)
    for _ in range(steps):
        maker.add("put", ((1, 0), 5))
    return maker.plan(arena, scratch)


@pytest.mark.parametrize("nbytes", [0, 1, 64, 4097, 1 << 20, 9 << 20])
def test_memory_is_aligned_zeroed_and_writable(nbytes: int) -> None:
    block = Memory(nbytes)
    data = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(block.address))
    assert block.address % ALIGNMENT == 0
    assert (data == 0).all()
    data[:] = 255
    assert data.sum() == 255 * nbytes


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_memory_goes_back_to_the_system() -> None:
    before = _resident()
    for _ in range(20):
        block = Memory(32 << 20)
        ctypes.memset(block.address, 1, block.nbytes)
        del block
    assert _resident() - before < 64 << 20


def test_memory_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 30)
    execution_context, small = ExecutionContext(), _plan(arena=1 << 16)
    execution_context.prepare(small)
    with pytest.raises(errors.Fail, match="arena"):
        execution_context.prepare(_plan(arena=1 << 40))
    thread_pool, word = ThreadPool(code(), ThreadPoolOptions(1)), np.zeros(1, np.int64)
    thread_pool.run(small, execution_context, (word.ctypes.data,))  # the execution context is as good as before
    assert word[0] == 5
    assert execution_context.nbytes >= 1 << 16


def test_a_lane_grows_and_keeps_what_it_has() -> None:
    execution_context = ExecutionContext()
    execution_context.prepare(_plan(arena=5000, scratch=100))
    arena = execution_context.arena
    assert arena % ALIGNMENT == 0
    execution_context.prepare(_plan(arena=4000, steps=50))
    assert execution_context.arena == arena
    execution_context.prepare(_plan(arena=1 << 20), threads=4)
    assert execution_context.threads == 4
    ctypes.memset(execution_context.arena, 7, 1 << 20)


def test_plans_that_are_reserved_together_do_not_move_the_arena() -> None:
    plans = [_plan(arena=size, scratch=size // 2, steps=i + 1) for i, size in enumerate((100, 9000, 3000))]
    execution_context = ExecutionContext()
    execution_context.reserve(plans, 2)
    arena, address = execution_context.arena, execution_context.address
    for plan in plans:
        execution_context.prepare(plan, 2)
        assert (execution_context.arena, execution_context.address) == (arena, address)
        assert execution_context.plan is plan


def test_scratch_memory_of_threads_is_apart_and_not_a_page_apart() -> None:
    execution_context = ExecutionContext()
    execution_context.prepare(_plan(scratch=4096), threads=3)
    fields = (ctypes.c_int64 * ExecutionContextField.COUNT).from_address(execution_context.address)
    stride = fields[ExecutionContextField.SCRATCH_STRIDE]
    assert fields[ExecutionContextField.SCRATCH] % ALIGNMENT == 0
    assert stride % ALIGNMENT == 0
    assert stride >= 4096
    assert stride % 4096 != 0
    ctypes.memset(fields[ExecutionContextField.SCRATCH], 1, 3 * stride)


def test_a_pool_hands_out_the_lane_that_was_used_last() -> None:
    pool = ExecutionContextPool(2)
    first, second = pool.take(), pool.take()
    assert first is not second
    assert first.threads == 2
    pool.give(second)
    pool.give(first)
    assert pool.take() is first
    with pool.execution_context() as execution_context:
        assert execution_context is second


def test_a_pool_keeps_no_more_lanes_than_it_may() -> None:
    pool = ExecutionContextPool(kept=1)
    execution_contexts = [pool.take() for _ in range(3)]
    for execution_context in execution_contexts:
        execution_context.prepare(_plan(arena=1 << 12))
        pool.give(execution_context)
    assert pool.take() is execution_contexts[0]
    assert pool.take() not in execution_contexts
    none = ExecutionContextPool(kept=0)
    execution_context = none.take()
    none.give(execution_context)
    assert none.take() is not execution_context


def test_shrinking_frees_idle_lanes_now_and_busy_ones_later() -> None:
    pool = ExecutionContextPool()
    busy, idle = pool.take(), pool.take()
    for execution_context in (busy, idle):
        execution_context.prepare(_plan(arena=1 << 20))
    pool.give(idle)
    assert pool.nbytes >= 1 << 20
    assert pool.shrink() >= 1 << 20
    assert pool.nbytes == 0
    pool.give(busy)
    assert pool.nbytes == 0
    assert pool.take() not in (busy, idle)


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_shrinking_gives_memory_back_to_the_system() -> None:
    pool = ExecutionContextPool()
    with pool.execution_context() as execution_context:
        execution_context.prepare(_plan(arena=64 << 20))
        ctypes.memset(execution_context.arena, 1, 64 << 20)
        full = _resident()
    del execution_context
    pool.shrink()
    gc.collect()
    assert full - _resident() > 48 << 20


def test_concurrent_runs_have_lanes_of_their_own() -> None:
    pool, thread_pool = ExecutionContextPool(2), ThreadPool(code(), ThreadPoolOptions(2))
    plan, wrong = chain(20, 30, 4), []

    def run(seed: int) -> None:
        source, target = numbers(30, seed), np.zeros(30, np.int64)
        expected = chained(source, 20)
        for _ in range(100):
            target[:] = 0
            with pool.execution_context() as execution_context:
                thread_pool.run(plan, execution_context, (source.ctypes.data, target.ctypes.data))
            if not np.array_equal(target, expected):
                wrong.append(seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    thread_pool.close()
    assert wrong == []


class _Interruption(BaseException):
    """What the handler of a signal raises."""


def _interrupted(call: Any, place: int) -> bool:
    """Whether a call was ended where it, or what it calls, enters a function for the `place`-th time."""
    left = [place]

    def look(frame: Any, event: str, _: Any) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call" and file.endswith(("execution_contexts.py", "memory.py")) and not name.startswith("<"):
            left[0] -= 1
            if left[0] == 0:
                raise _Interruption

    before = sys.gettrace()
    sys.settrace(look)
    try:
        call()
    except _Interruption:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupted_preparation_leaves_no_place_that_is_gone() -> None:
    """Wherever a signal ends it, the execution context is right for the next run."""
    small, large = _plan(arena=1 << 12, scratch=64), _plan(arena=1 << 16, scratch=1 << 12, steps=40)
    place = 1
    while True:
        execution_context = ExecutionContext()
        execution_context.prepare(small)
        was_interrupted = _interrupted(
            lambda execution_context=execution_context: execution_context.prepare(large), place
        )
        for plan in (small, large):
            execution_context.prepare(plan)
            fields = (ctypes.c_int64 * ExecutionContextField.COUNT).from_address(execution_context.address)
            first_base = ctypes.c_int64.from_address(fields[ExecutionContextField.BASES]).value
            assert execution_context._control is not None
            assert (
                execution_context._control.address
                <= fields[ExecutionContextField.WORDS]
                < execution_context._control.address + execution_context.control_bytes
            )
            assert execution_context._arena is not None
            assert first_base == execution_context.arena == execution_context._arena.address
            assert execution_context._scratch is not None
            assert fields[ExecutionContextField.SCRATCH] == execution_context._scratch.address
        if not was_interrupted:
            break
        place += 1
    assert place > 5
