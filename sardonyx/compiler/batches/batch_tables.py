"""The tables of a native plan that does other plans several times, one after the other, in one arena."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.native_plan import NativePlan, StepColumn, StepFlag, Words

# Places in the arena begin at multiples of so many bytes.
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where an external address of a plan lies in the joined one: `start` bytes behind a base, and in each round
    `stride` bytes further on."""

    base: int
    start: int = 0
    stride: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """A plan that is done `rounds` times; `places` are those of its bases, that of its own arena first."""

    plan: NativePlan
    rounds: int
    places: Sequence[Place]


def aligned(nbytes: int) -> int:
    """The next size from which another place in the arena can begin."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def joined(turns: Sequence[Turn], arena_bytes: int, base_count: int) -> NativePlan:
    """The plan that takes the turns in order, with so many bytes of arena and so many bases.

    Turns and their rounds share the arena, so that each begins when the one before it is done.
    """
    words: list[Words] = []
    fixups: list[Words] = []
    steps: list[Words] = []
    first = 0
    for turn in turns:
        plan, rounds = turn.plan, turn.rounds
        count = len(plan.words)
        starts = first + count * np.arange(rounds, dtype=np.int64)
        words.append(np.tile(plan.words, rounds))
        fixups.append(_fixups(turn, starts))
        table = np.tile(plan.steps, (rounds, 1))
        table[:, StepColumn.ARGUMENTS] += np.repeat(starts, len(plan.steps))
        table[:: max(1, len(plan.steps)), StepColumn.FLAGS] |= int(StepFlag.BARRIER)
        steps.append(table)
        first += rounds * count
    plans = [turn.plan for turn in turns]
    return NativePlan(
        words=np.concatenate(words),
        fixups=np.concatenate(fixups),
        steps=np.concatenate(steps),
        arena_bytes=arena_bytes,
        scratch_bytes=max(plan.scratch_bytes for plan in plans),
        base_count=base_count,
        labels=tuple([label for turn in turns for label in turn.plan.labels * turn.rounds]),
        owners=tuple([owner for plan in plans for owner in plan.owners]),
        nanoseconds=sum((turn.plan.nanoseconds or 0) * turn.rounds for turn in turns),
        flush_denormals=any(plan.flush_denormals for plan in plans),
    )


def _fixups(turn: Turn, starts: Words) -> Words:
    """The fixups of all rounds of a turn, the words of which begin at `starts`."""
    own = turn.plan.fixups
    table = np.tile(own, (turn.rounds, 1))
    bases, begins, strides = (
        np.array(column, np.int64)[table[:, 1]]
        for column in zip(*((place.base, place.start, place.stride) for place in turn.places), strict=True)
    )
    number = np.repeat(np.arange(turn.rounds, dtype=np.int64), len(own))
    table[:, 0] += np.repeat(starts, len(own))
    table[:, 1] = bases
    table[:, 2] += begins + number * strides
    return table
