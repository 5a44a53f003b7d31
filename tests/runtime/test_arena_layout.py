"""Buffers that live at the same time never overlap, and the arena is no larger than it has to be by much."""

from __future__ import annotations

import random

import pytest

from sardonyx.runtime.memory.arena_layout import ALIGNMENT, Lifetime, lay_out


def peak(lifetimes: list[Lifetime]) -> int:
    """The most bytes that live at one step: no layout can be smaller."""
    steps = range(max(item.last for item in lifetimes) + 1)
    return max(sum(item.nbytes for item in lifetimes if item.first <= step <= item.last) for step in steps)


@pytest.mark.parametrize("seed", range(30))
def test_no_two_living_buffers_overlap(seed: int) -> None:
    rng = random.Random(seed)
    lifetimes = []
    for buffer in range(rng.randint(1, 60)):
        first = rng.randint(0, 50)
        lifetimes.append(Lifetime(buffer, first, first + rng.randint(0, 10), rng.choice([1, 64, 1000, 4096, 100_000])))
    layout = lay_out(lifetimes)
    assert layout.nbytes >= peak(lifetimes)
    for index, one in enumerate(lifetimes):
        start = layout.offsets[one.buffer]
        assert start % ALIGNMENT == 0
        assert start + one.nbytes <= layout.nbytes
        for other in lifetimes[index + 1 :]:
            if one.meets(other):
                begin = layout.offsets[other.buffer]
                assert start + one.nbytes <= begin or begin + other.nbytes <= start


def test_a_chain_needs_two_buffers() -> None:
    chain = [Lifetime(index, index, index + 1, 1024) for index in range(100)]
    assert lay_out(chain).nbytes == 2 * 1024


def test_a_gap_is_used_again() -> None:
    long, early, late = Lifetime(0, 0, 9, 640), Lifetime(1, 0, 1, 320), Lifetime(2, 3, 4, 320)
    layout = lay_out([long, early, late])
    assert layout.offsets[1] == layout.offsets[2]
    assert layout.nbytes == 960


def test_nothing_to_place() -> None:
    assert lay_out([]).nbytes == 0
