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
from sardonyx.runtime.memory.lanes import ALIGNMENT, Lane, LaneField, LanePool, Memory
from sardonyx.runtime.threads.team import TeamOptions, ThreadTeam
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
    lane, small = Lane(), _plan(arena=1 << 16)
    lane.prepare(small)
    with pytest.raises(errors.Fail, match="arena"):
        lane.prepare(_plan(arena=1 << 40))
    team, word = ThreadTeam(code(), TeamOptions(1)), np.zeros(1, np.int64)
    team.run(small, lane, (word.ctypes.data,))  # the lane is as good as before
    assert word[0] == 5
    assert lane.nbytes >= 1 << 16


def test_a_lane_grows_and_keeps_what_it_has() -> None:
    lane = Lane()
    lane.prepare(_plan(arena=5000, scratch=100))
    arena = lane.arena
    assert arena % ALIGNMENT == 0
    lane.prepare(_plan(arena=4000, steps=50))
    assert lane.arena == arena
    lane.prepare(_plan(arena=1 << 20), threads=4)
    assert lane.threads == 4
    ctypes.memset(lane.arena, 7, 1 << 20)


def test_plans_that_are_reserved_together_do_not_move_the_arena() -> None:
    plans = [_plan(arena=size, scratch=size // 2, steps=i + 1) for i, size in enumerate((100, 9000, 3000))]
    lane = Lane()
    lane.reserve(plans, 2)
    arena, address = lane.arena, lane.address
    for plan in plans:
        lane.prepare(plan, 2)
        assert (lane.arena, lane.address) == (arena, address)
        assert lane.plan is plan


def test_scratch_memory_of_threads_is_apart_and_not_a_page_apart() -> None:
    lane = Lane()
    lane.prepare(_plan(scratch=4096), threads=3)
    fields = (ctypes.c_int64 * LaneField.COUNT).from_address(lane.address)
    stride = fields[LaneField.SCRATCH_STRIDE]
    assert fields[LaneField.SCRATCH] % ALIGNMENT == 0
    assert stride % ALIGNMENT == 0
    assert stride >= 4096
    assert stride % 4096 != 0
    ctypes.memset(fields[LaneField.SCRATCH], 1, 3 * stride)


def test_a_pool_hands_out_the_lane_that_was_used_last() -> None:
    pool = LanePool(2)
    first, second = pool.take(), pool.take()
    assert first is not second
    assert first.threads == 2
    pool.give(second)
    pool.give(first)
    assert pool.take() is first
    with pool.lane() as lane:
        assert lane is second


def test_a_pool_keeps_no_more_lanes_than_it_may() -> None:
    pool = LanePool(kept=1)
    lanes = [pool.take() for _ in range(3)]
    for lane in lanes:
        lane.prepare(_plan(arena=1 << 12))
        pool.give(lane)
    assert pool.take() is lanes[0]
    assert pool.take() not in lanes
    none = LanePool(kept=0)
    lane = none.take()
    none.give(lane)
    assert none.take() is not lane


def test_shrinking_frees_idle_lanes_now_and_busy_ones_later() -> None:
    pool = LanePool()
    busy, idle = pool.take(), pool.take()
    for lane in (busy, idle):
        lane.prepare(_plan(arena=1 << 20))
    pool.give(idle)
    assert pool.nbytes >= 1 << 20
    assert pool.shrink() >= 1 << 20
    assert pool.nbytes == 0
    pool.give(busy)
    assert pool.nbytes == 0
    assert pool.take() not in (busy, idle)


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_shrinking_gives_memory_back_to_the_system() -> None:
    pool = LanePool()
    with pool.lane() as lane:
        lane.prepare(_plan(arena=64 << 20))
        ctypes.memset(lane.arena, 1, 64 << 20)
        full = _resident()
    del lane
    pool.shrink()
    gc.collect()
    assert full - _resident() > 48 << 20


def test_concurrent_runs_have_lanes_of_their_own() -> None:
    pool, team = LanePool(2), ThreadTeam(code(), TeamOptions(2))
    plan, wrong = chain(20, 30, 4), []

    def run(seed: int) -> None:
        source, target = numbers(30, seed), np.zeros(30, np.int64)
        expected = chained(source, 20)
        for _ in range(100):
            target[:] = 0
            with pool.lane() as lane:
                team.run(plan, lane, (source.ctypes.data, target.ctypes.data))
            if not np.array_equal(target, expected):
                wrong.append(seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    team.close()
    assert wrong == []


class _Interruption(BaseException):
    """What the handler of a signal raises."""


def _interrupted(call: Any, place: int) -> bool:
    """Whether a call was ended where it, or what it calls, enters a function for the `place`-th time."""
    left = [place]

    def look(frame: Any, event: str, _: Any) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call" and file.endswith(("lanes.py", "memory.py")) and not name.startswith("<"):
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
    """Wherever a signal ends it, the lane is right for the next run."""
    small, large = _plan(arena=1 << 12, scratch=64), _plan(arena=1 << 16, scratch=1 << 12, steps=40)
    place = 1
    while True:
        lane = Lane()
        lane.prepare(small)
        was_interrupted = _interrupted(lambda lane=lane: lane.prepare(large), place)
        for plan in (small, large):
            lane.prepare(plan)
            fields = (ctypes.c_int64 * LaneField.COUNT).from_address(lane.address)
            first_base = ctypes.c_int64.from_address(fields[LaneField.BASES]).value
            assert lane._control is not None
            assert lane._control.address <= fields[LaneField.WORDS] < lane._control.address + lane.control_bytes
            assert lane._arena is not None
            assert first_base == lane.arena == lane._arena.address
            assert lane._scratch is not None
            assert fields[LaneField.SCRATCH] == lane._scratch.address
        if not was_interrupted:
            break
        place += 1
    assert place > 5
