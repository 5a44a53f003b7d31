"""The native plan: a table of steps that one native function executes, and the memory layouts it shares with Python.

A kernel is ``void kernel(i64 *arguments, i64 begin, i64 end, i8 *scratch)`` and does the chunks [begin, end) of its
step. All arguments of all kernels lie in one array of words, of which each concurrent run has a copy: `fixups` say
which words hold addresses that differ from run to run (places in the arena, the caller's inputs and outputs).

Steps between two barriers are independent of each other. They form a *phase*; the threads of a thread pool do the
chunks of a phase in any order, and go on when all of them are done.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

import numpy as np

from sardonyx.light_dataclass import dataclass
from sardonyx.light_enum import Bits, Numbers

Words = np.ndarray[Any, np.dtype[np.int64]]


class StepColumn(Numbers):
    """The columns of `NativePlan.steps`."""

    FUNCTION = 0  # address of the kernel
    ARGUMENTS = 1  # index of its first argument in the words
    CHUNKS = 2  # how many chunks there are; 0 leaves the step out
    CLAIM = 3  # how many chunks a thread takes at once, at least 1
    FLAGS = 4  # `StepFlag`s
    TARGET = 5  # filled in by the plan: the count at which the step is done, never 0
    CLAIMS = 6  # filled in by the plan: how many claims the step is made of
    COUNT = 8


class StepFlag(Bits):
    """What `StepColumn.FLAGS` may hold."""

    BARRIER = 1  # everything before this step is done before it begins
    CALLER = 2  # the thread that called `run` does the whole step


class PlanField(Numbers):
    """The words of `NativePlan.header`, which the executor reads."""

    WORDS = 0
    WORD_COUNT = 1
    FIXUPS = 2  # those of the arena first
    ARENA_FIXUPS = 3
    FIXUP_COUNT = 4
    STEPS = 5
    STEP_COUNT = 6
    PHASES = 7
    PHASE_COUNT = 8
    EXTERNALS = 9  # how many addresses a caller gives: all bases but the arena
    WIDTH = 10  # how many threads find work at once in the widest phase
    SERIAL = 11  # the same for plans of the same words
    WAKE_AFTER = 12  # nanoseconds of a run after which it wakes workers that sleep
    FLUSH_DENORMALS = 13  # 1 where denormal numbers are read and written as zero
    LONG = 14  # 1 where a step may take so long that a run looks in its midst whether it shall end
    COUNT = 16


class PhaseColumn(Numbers):
    """The columns of the table of phases."""

    FIRST = 0  # its first step
    END = 1  # the step after its last one
    SHARED = 2  # 1 where other threads than the caller find work in it
    COUNT = 4


# Bytes from one entry of these tables to the next, as powers of two for the executor's address arithmetic.
STEP_WORDS = int(StepColumn.COUNT)
PHASE_WORDS = int(PhaseColumn.COUNT)
FIXUP_WORDS = 3

# Estimated nanoseconds from which a run is long.
LONG_NS = 5_000_000

# What it costs a caller to wake a worker on an idle core, and how long a run is of which the worker does a good part.
_WAKE_NANOSECONDS = 20_000
_WORTH_WAKING = 100_000

_SERIALS = itertools.count(1)


@dataclass(frozen=True, eq=False)
class NativePlan:
    """Steps, in order, with everything that does not change between runs.

    words: int64[n], the arguments of all steps, with the addresses of constants in place.
    fixups: int64[m, 3], rows (word, base, offset): words[word] = bases[base] + offset before a run. bases[0] is the
        arena, then come the caller's inputs and then the caller's outputs.
    steps: int64[s, 8], columns as in `StepColumn`. The plan has a copy of them in which it fills in what follows
        from the rest: `TARGET`, `CLAIMS` and the flag `CALLER` of steps that nobody else could share.
    arena_bytes, scratch_bytes: what a run needs, the latter for every thread.
    base_count: the arena and all external addresses.
    labels: one for each step, for profiles and messages.
    owners: what has to live as long as the plan, such as the arrays of constants and the kernels.
    nanoseconds: an estimate of what one thread takes for all of it. Where it is short, workers that sleep are woken
        only if the run lasts about as long as it takes to wake them; otherwise, or without an estimate, at once.
    flush_denormals: kernels read and write denormal numbers as zero, whichever thread they run on.
    serial: tells its words and fixups from those of other plans of the process.
    width: how many threads find work at once in the widest phase; 1 for a plan that the caller does alone.

    Raises ValueError where a table contradicts itself.
    """

    words: Words
    fixups: Words
    steps: Words
    arena_bytes: int
    scratch_bytes: int
    base_count: int
    labels: tuple[str, ...]
    owners: tuple[Any, ...] = ()
    nanoseconds: int | None = None
    flush_denormals: bool = False
    serial: int = field(default_factory=_SERIALS.__next__)
    width: int = field(init=False)
    header: Words = field(init=False, repr=False)
    address: int = field(init=False, repr=False)  # of the header
    pack: Callable[..., bytes] = field(init=False, repr=False)  # external addresses, as `ThreadPool.run_packed` takes

    def __post_init__(self) -> None:
        words = np.ascontiguousarray(self.words, np.int64)
        fixups = np.ascontiguousarray(self.fixups, np.int64).reshape(-1, FIXUP_WORDS)
        steps = np.array(self.steps, np.int64, order="C").reshape(-1, STEP_WORDS)
        self._check(words, fixups, steps)
        bases = fixups[:, 1].tolist()
        in_arena = bases.count(0)
        if any(bases[:in_arena]):
            fixups = np.ascontiguousarray(fixups[np.argsort(fixups[:, 1] != 0, kind="stable")])
        phases, width = _phases(steps)
        header = np.zeros(PlanField.COUNT, np.int64)
        header[: PlanField.LONG + 1] = (
            _address(words),
            len(words),
            _address(fixups),
            in_arena,
            len(fixups),
            _address(steps),
            len(steps),
            _address(phases),
            len(phases),
            self.base_count - 1,
            width,
            self.serial,
            _WAKE_NANOSECONDS if self.nanoseconds is not None and self.nanoseconds < _WORTH_WAKING else 0,
            int(self.flush_denormals),
            int(self.is_long),
        )
        for array in (words, fixups, steps, phases, header):
            array.flags.writeable = False
        put = object.__setattr__
        put(self, "words", words)
        put(self, "fixups", fixups)
        put(self, "steps", steps)
        put(self, "width", width)
        put(self, "owners", (*self.owners, phases))
        put(self, "header", header)
        put(self, "address", _address(header))
        put(self, "pack", struct.Struct(f"{self.base_count - 1}q").pack)

    @property
    def is_long(self) -> bool:
        """Whether a run may take long enough to be ended before it is done; so it is without an estimate."""
        return self.nanoseconds is None or self.nanoseconds >= LONG_NS

    def part(self, first: int, end: int) -> NativePlan:
        """The steps from `first` on, up to the one before `end`, as a plan over the same words and the same arena."""
        return replace(self, steps=self.steps[first:end], labels=self.labels[first:end])

    def _check(self, words: Words, fixups: Words, steps: Words) -> None:
        """ValueError for a table that the executor would follow out of its memory."""
        if self.base_count < 1:
            raise ValueError(f"a native plan has the arena as its first base, not {self.base_count} bases")
        if self.arena_bytes < 0 or self.scratch_bytes < 0:
            raise ValueError(f"sizes are not negative: arena {self.arena_bytes}, scratch {self.scratch_bytes}")
        if len(self.labels) != len(steps):
            raise ValueError(f"{len(steps)} steps with {len(self.labels)} labels")
        # Without signs, negative numbers are larger than all that is allowed.
        if len(fixups):
            _, most = _extremes(fixups)
            _in_range("a fixup's word", fixups[:, 0], most[0], len(words))
            _in_range("a fixup's base", fixups[:, 1], most[1], self.base_count)
        if len(steps):
            least, most = _extremes(steps)
            place = StepColumn.ARGUMENTS
            _in_range("a step's first argument", steps[:, place], most[place], len(words) + 1)
            if least[StepColumn.FUNCTION] == 0:
                raise ValueError("a step without a function")
            negative = max(most[StepColumn.CHUNKS], most[StepColumn.CLAIM]) > _MOST_SIGNED
            if negative or least[StepColumn.CLAIM] < 1:
                raise ValueError("a step has at least 0 chunks, of which a thread claims at least 1")


_MOST_SIGNED = (1 << 63) - 1


def _address(array: Words) -> int:
    return int(array.__array_interface__["data"][0])


def _extremes(table: Words) -> tuple[list[int], list[int]]:
    """The least and the most of every column, taken without signs."""
    numbers = table.view(np.uint64)
    return np.minimum.reduce(numbers).tolist(), np.maximum.reduce(numbers).tolist()


def _in_range(what: str, numbers: Words, most: int, bound: int) -> None:
    """ValueError where `most`, the largest of these numbers without signs, is not below `bound`."""
    if most >= bound:
        raise ValueError(f"{what} lies outside [0, {bound}): {numbers.min()} to {numbers.max()}")


_BARRIER, _CALLER = int(StepFlag.BARRIER), int(StepFlag.CALLER)


def _phases(steps: Words) -> tuple[Words, int]:
    """The table of phases, which completes the table of steps, and how many threads find work in the widest at once.

    The caller gets the steps that have a phase to themselves and only one claim, and those that are left out: a phase
    is then never done before the one in front of it is, which is what lets a thread wait for the last phase only.
    In the width, the caller's own steps count as one.
    """
    if not len(steps):
        return np.zeros((0, PHASE_WORDS), np.int64), 1
    chunks, flags = steps[:, StepColumn.CHUNKS], steps[:, StepColumn.FLAGS]
    claims = -(-chunks // steps[:, StepColumn.CLAIM])
    begins = (flags & _BARRIER).astype(bool)
    begins[0] = True
    first = begins.nonzero()[0]
    end = np.append(first[1:], len(steps))
    is_single = (end - first == 1) & (claims[first] <= 1)
    own = (chunks == 0) | (flags & _CALLER).astype(bool)
    own[first] |= is_single
    flags |= own * np.int64(_CALLER)
    shared = np.add.reduceat(np.where(own, 0, claims), first)
    steps[:, StepColumn.TARGET] = np.maximum(chunks, 1)
    steps[:, StepColumn.CLAIMS] = claims
    phases = np.zeros((len(first), PHASE_WORDS), np.int64)
    phases[:, PhaseColumn.FIRST], phases[:, PhaseColumn.END] = first, end
    phases[:, PhaseColumn.SHARED] = shared > 0
    return phases, max(1, int((shared + np.logical_or.reduceat(own, first)).max()))
