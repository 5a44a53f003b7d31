"""Execution contexts: the memory of one concurrent run, taken from a pool and given back.

An execution context has its own copy of the kernels' arguments, the counters of the steps, an arena and scratch memory
for every thread. It grows to the largest plan that it ran and keeps its memory, whose pages are then there already.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from sardonyx.light_enum import Numbers
from sardonyx.runtime.memory.memory import MemoryLimit, require, unavailable
from sardonyx.runtime.native_plan import NativePlan

ALIGNMENT = 64
# The counters of a plan: for each step a cache line with the chunks that are done; then for each part of the steps a
# row with a word for each step, the claims made in it, in whole cache lines. Threads begin with different parts.
MOST_PARTS = 16
LINE_WORDS = 8

_HUGE = 2 << 20
# Scratch memory of neighbours starts at different places of a page: strides of 4096 bytes meet in one cache set.
_SCRATCH_GAP = 256
_WORD = ctypes.sizeof(ctypes.c_int64)


class ExecutionContextField(Numbers):
    """The words at `ExecutionContext.address`, which the executor reads."""

    WORDS = 0
    COUNTERS = 1
    BASES = 2
    SCRATCH = 3
    SCRATCH_STRIDE = 4
    PREPARED = 5  # serial number of the plan whose words are in the execution context, with the addresses of this arena
    PROGRESS = 8  # the phase that the caller is in; a line of its own
    NEVER = 9  # always 0: the words of `interrupts.StopField` of runs that nobody ends
    COUNT = 16


class Memory:
    """Zeroed memory of the process, private after a fork, given back to the system with the object.

    It counts against `limit`.
    """

    __slots__ = ("_charge", "_first", "_map", "address", "nbytes")

    def __init__(self, nbytes: int, what: str = "a buffer", limit: MemoryLimit | None = None) -> None:
        require(nbytes, what)
        self._charge = None if limit is None else limit.charge(nbytes, what)
        huge = nbytes >= 2 * _HUGE
        whole = max(1, nbytes) + (_HUGE if huge else 0)
        try:
            self._map = (
                mmap.mmap(-1, whole)
                if os.name == "nt"
                else mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            )
        except (OSError, MemoryError):
            raise unavailable(nbytes, what) from None
        self._first = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._first)
        self.nbytes = nbytes
        if huge:  # whole huge pages save the translations of 512 small ones each
            self.address += -self.address % _HUGE
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with contextlib.suppress(OSError):  # a kernel without them
                    self._map.madvise(mmap.MADV_HUGEPAGE)

    def words(self, count: int) -> ctypes.Array[ctypes.c_int64]:
        """The first words, as an array that keeps no reference to the memory."""
        return (ctypes.c_int64 * count).from_address(self.address)


# How many bytes an arena gets that needs so many, where the one before it, if any, had so many.
Growth = Callable[[int, int], int]


class ExecutionContext:
    """The memory of one run at a time; `address` is what the executor is given.

    `threads` is how many threads have scratch memory in it, `arena` the address of the arena (0 before there is one).
    Its memory counts against `limit`; `growth` chooses the size of the arena, which is as large as needed without.
    """

    __slots__ = (
        "__weakref__", "_arena", "_control", "_fields", "_growth", "_limit", "_room", "_scratch", "_scratch_each",
        "address", "arena", "epoch", "plan", "threads",
    )  # fmt: skip

    def __init__(self, threads: int = 1, limit: MemoryLimit | None = None, growth: Growth | None = None) -> None:
        self._limit, self._growth = limit, growth
        self._control: Memory | None = None
        self._arena: Memory | None = None
        self._scratch: Memory | None = None
        self._scratch_each = 0
        self._room = (0, 0, 0)  # words, steps, bases
        self._fields: ctypes.Array[ctypes.c_int64]  # in the control memory, from the first reservation on
        self.threads = max(1, threads)
        self.address = 0
        self.arena = 0
        self.epoch = 0
        self.plan: NativePlan | None = None

    def prepare(self, plan: NativePlan, threads: int = 1) -> None:
        """Make room for a plan that up to `threads` threads run; an arena that was large enough keeps its contents."""
        self.reserve((plan,), threads)
        self.plan = plan

    def reserve(self, plans: Iterable[NativePlan], threads: int = 1) -> None:
        """Make room for each of the plans, so that none of them moves the arena when its turn comes.

        Raises `errors.Fail` where the memory is not there; the execution context may then be prepared for a smaller
        plan.
        """
        self.plan = None
        plans = tuple(plans)
        room = (
            max((len(plan.words) for plan in plans), default=0),
            max((len(plan.steps) for plan in plans), default=0),
            max((plan.base_count for plan in plans), default=1),
        )
        if self._control is None or any(new > old for new, old in zip(room, self._room, strict=True)):
            self._grow_control(room)
        self._grow_scratch(max((plan.scratch_bytes for plan in plans), default=0), threads)
        self._grow_arena(max((plan.arena_bytes for plan in plans), default=0))

    @property
    def nbytes(self) -> int:
        """Bytes that the execution context holds."""
        return self.control_bytes + self.arena_bytes + self.scratch_bytes

    @property
    def arena_bytes(self) -> int:
        return 0 if self._arena is None else self._arena.nbytes

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the kernels' scratch memory, of all threads."""
        return 0 if self._scratch is None else self._scratch.nbytes

    @property
    def control_bytes(self) -> int:
        """Bytes of the arguments and counters of a plan's steps."""
        return 0 if self._control is None else self._control.nbytes

    def _grow_control(self, room: tuple[int, int, int]) -> None:
        words, steps, bases = (max(new, old) for new, old in zip(room, self._room, strict=True))
        counters = LINE_WORDS * steps + MOST_PARTS * (steps + LINE_WORDS - 1)
        parts = [_WORD * count for count in (ExecutionContextField.COUNT, words, counters, bases)]
        starts = [0]
        for nbytes in parts:
            starts.append(starts[-1] + -(-nbytes // ALIGNMENT) * ALIGNMENT)
        control = Memory(starts[-1], "the steps of a plan", self._limit)
        fields = control.words(ExecutionContextField.COUNT)
        if self._control is not None:
            ctypes.memmove(fields, self._fields, ctypes.sizeof(fields))
        fields[ExecutionContextField.WORDS] = control.address + starts[1]
        fields[ExecutionContextField.COUNTERS] = control.address + starts[2]
        fields[ExecutionContextField.BASES] = control.address + starts[3]
        self._place_arena(fields, self.arena)
        # At once, here and below: a signal's handler may end the call in between, and others have the execution context
        # then.
        self._control, self._fields, self._room, self.address = control, fields, (words, steps, bases), control.address

    def _grow_scratch(self, nbytes: int, threads: int) -> None:
        if nbytes <= self._scratch_each and threads <= self.threads:
            return
        each, threads = max(nbytes, self._scratch_each), max(threads, self.threads)
        stride = -(-each // ALIGNMENT) * ALIGNMENT + _SCRATCH_GAP
        scratch = Memory(stride * threads, "scratch memory of kernels", self._limit)
        self._scratch, self._scratch_each, self.threads = scratch, each, threads
        self._fields[ExecutionContextField.SCRATCH] = scratch.address
        self._fields[ExecutionContextField.SCRATCH_STRIDE] = stride

    def _grow_arena(self, nbytes: int) -> None:
        if self._arena is not None and nbytes <= self._arena.nbytes:
            return
        if nbytes == 0:
            return
        before = self.arena_bytes
        self._arena, self.arena = None, 0  # the old one goes before the new one comes
        wanted = nbytes if self._growth is None else self._growth(nbytes, before)
        arena = Memory(wanted, "the arena of a run", self._limit)
        self._place_arena(self._fields, arena.address)
        self._arena, self.arena = arena, arena.address

    @staticmethod
    def _place_arena(fields: ctypes.Array[ctypes.c_int64], address: int) -> None:
        """Tell the executor where the arena is; addresses in it have to be written anew."""
        fields[ExecutionContextField.PREPARED] = 0
        bases = (ctypes.c_int64 * 1).from_address(fields[ExecutionContextField.BASES])
        bases[0] = address


class Borrower(Protocol):
    """Who keeps an execution context between runs."""

    def close(self) -> bool:
        """Give the execution context back; False where that is not possible now."""


class ExecutionContextPool:
    """The execution contexts of a session. As many are kept as ran at the same time, `kept` at most; all count against
    `limit`."""

    def __init__(
        self,
        threads: int = 1,
        kept: int | None = None,
        limit: MemoryLimit | None = None,
        growth: Growth | None = None,
    ) -> None:
        self.threads = threads
        self.limit = limit
        self._growth = growth
        self._kept = (os.cpu_count() or 1) if kept is None else kept
        # One end only: the execution context that was used last has the warmest memory. Its methods are atomic.
        self._idle: deque[ExecutionContext] = deque()
        self._made: weakref.WeakValueDictionary[int, ExecutionContext] = weakref.WeakValueDictionary()  # by their `id`
        self._epoch = 0

    def take(self) -> ExecutionContext:
        """An execution context that nobody uses; give it back after the run."""
        try:
            return self._idle.pop()
        except IndexError:
            execution_context = ExecutionContext(self.threads, self.limit, self._growth)
            execution_context.epoch = self._epoch
            self._made[id(execution_context)] = execution_context
            return execution_context

    def lend(self, borrower: Borrower) -> ExecutionContext:
        """An execution context that `borrower` keeps for more than one run, and gives back when it is closed."""
        return self.take()

    def give(self, execution_context: ExecutionContext) -> None:
        """Put an execution context back."""
        if execution_context.epoch == self._epoch and len(self._idle) < self._kept:
            self._idle.append(execution_context)

    @contextmanager
    def execution_context(self) -> Iterator[ExecutionContext]:
        """An execution context for the block."""
        execution_context = self.take()
        try:
            yield execution_context
        finally:
            self.give(execution_context)

    def shrink(self) -> int:
        """Give the memory of idle execution contexts back to the system, that of busy ones after their run; the bytes
        freed now."""
        self._epoch += 1
        freed = 0
        while True:
            try:
                freed += self._idle.pop().nbytes
            except IndexError:
                return freed

    @property
    def nbytes(self) -> int:
        """Bytes that idle execution contexts hold."""
        return sum(execution_context.nbytes for execution_context in tuple(self._idle))

    @property
    def execution_contexts(self) -> list[tuple[ExecutionContext, bool]]:
        """All execution contexts that there are, and whether each is idle."""
        idle = set(map(id, tuple(self._idle)))
        made = [execution_context for found in self._made.valuerefs() if (execution_context := found()) is not None]
        return [(execution_context, id(execution_context) in idle) for execution_context in made]
