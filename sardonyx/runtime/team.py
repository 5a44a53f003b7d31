"""The thread team: threads that run native plans together, the caller of a run being one of them.

Workers are daemon threads of Python that enter the native function `work` and stay there, without the interpreter's
lock: they spin for a while after a run, then sleep until the next one. A run that finds the team busy is done by its
caller alone, so nobody waits for another session, and nothing can deadlock. Teams of the same kind are shared by the
sessions of the process, which therefore do not fight for cores.

onnxruntime's pool for nodes side by side (inter_op) has no counterpart of its own: steps between two barriers are
independent of each other and are claimed by the one team, whose size the caller chooses (`processors.team_size`).
"""

from __future__ import annotations

import atexit
import ctypes
import enum
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sardonyx.log import Logger
from sardonyx.runtime.lanes import Lane, Memory
from sardonyx.runtime.native_plan import NativePlan
from sardonyx.runtime.processors import available_processors

FINISHED, TERMINATED = 0, 1  # what a run returns

# The state of a team: how many workers take part, whether others may join, and a number that each run raises.
GENERATION_SHIFT = 16
OPEN = 1 << 15
ACTIVE = OPEN - 1

_SPIN_SECONDS = 1e-3  # how long idle workers look for the next run before they sleep
# How a thread waits at a barrier: turns of spinning, and of giving way to others, before it sleeps. Where threads have
# to share cores or may not spin, both only take time from those that work.
_PATIENCE, _YIELDS = 2000, 64
_PATIENCE_IN_A_CROWD, _YIELDS_IN_A_CROWD = 50, 0
_MOST_THREADS = ACTIVE
_JOIN_SECONDS = 2.0  # how long the end of the process waits for a worker that still computes


class TeamField(enum.IntEnum):
    """The words that the threads of a team share; those written at different times lie on different cache lines."""

    STATE = 0
    BUSY = 8  # 1 while a run owns the team
    SIGNAL = 16  # i32 futex of idle workers
    SLEEPERS = 17  # workers asleep on it, or about to be
    STOP = 18
    EVENT = 24  # i32 futex of threads that wait within a run
    WAITING = 25  # how many of those
    PLAN = 32  # the run that is open
    LANE = 33
    LIMIT = 34  # how many workers it lets in
    PARTS = 35  # into how many parts its steps are divided
    THREADS = 40  # what does not change
    SPIN = 41  # nanoseconds
    PATIENCE = 42  # turns that a thread waits spinning,
    YIELDS = 43  # and then giving way to others, before it sleeps
    ROAMS = 44  # 1 where workers choose their processors themselves
    PROCESSORS = 48  # the processor that each thread was last seen on, the caller first; -1 before that


@dataclass(frozen=True)
class ExecutorCode:
    """Addresses of the native functions ``run``, ``work`` and ``stop``, and what keeps them in memory."""

    run: int
    work: int
    stop: int
    owner: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class TeamOptions:
    """What kind of team: sessions that agree in all of it share one.

    threads: including the caller.
    spinning: whether idle workers spin before they sleep, and waiting threads spin for long.
    spin_seconds: how long idle workers spin; None for the default.
    stop_after_run: idle workers sleep at once, though threads spin during a run.
    affinities: the processors of each worker, by the numbers of `os.sched_setaffinity`; empty for no choice.
    on_start: called in each worker with its number, from 1 on, before it takes work.
    """

    threads: int
    spinning: bool = True
    spin_seconds: float | None = None
    stop_after_run: bool = False
    affinities: tuple[frozenset[int], ...] = ()
    on_start: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= _MOST_THREADS:
            raise ValueError(f"a team has 1 to {_MOST_THREADS} threads, not {self.threads}")
        if self.affinities and len(self.affinities) != self.threads - 1:
            raise ValueError(
                f"{len(self.affinities)} affinities for {self.threads - 1} workers: there is one for each, "
                "the thread that calls run is not pinned"
            )

    @property
    def idle_nanoseconds(self) -> int:
        """How long an idle worker spins."""
        if not self.spinning or self.stop_after_run:
            return 0
        return round((_SPIN_SECONDS if self.spin_seconds is None else self.spin_seconds) * 1e9)


# team, plan, lane, external addresses, times, terminate; released lock: other Python threads go on meanwhile
_RUN = ctypes.CFUNCTYPE(
    ctypes.c_int64,
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
)  # fmt: skip
_WORK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
_STOP = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)


class ThreadTeam:
    """Runs native plans with up to `threads` threads; the workers start with the first run that has use for them.

    Any number of Python threads may call `run` at the same time.
    """

    def __init__(self, code: ExecutorCode, options: TeamOptions) -> None:
        self.options = options
        self.threads = options.threads  # fewer where the system gives no more
        self._code = code
        self._run: Callable[..., int] = _RUN(code.run)
        self._lock = threading.Lock()
        self._crew: _Crew | None = None
        self._address = 0  # of the crew's words; 0 while every run is the caller's alone
        self._is_ready = options.threads == 1
        self._finalizer: Any = None
        _TEAMS.add(self)

    def run(self, plan: NativePlan, lane: Lane, addresses: Sequence[int], times: int = 0, terminate: int = 0) -> int:
        """Run a plan in a lane; `FINISHED`, or `TERMINATED` where the terminate word was seen between two steps.

        addresses: of the external inputs and outputs, the plan's bases without the arena.
        times: address of int64[steps + 1], which takes the `time.monotonic_ns` at the start of each step, as the
            caller's thread sees it, and at the end; 0 for none.
        terminate: address of an int64 that another thread may set to 1; 0 for none.
        """
        return self.run_packed(plan, lane, plan.pack(*addresses), times, terminate)

    def run_packed(
        self, plan: NativePlan, lane: Lane, addresses: bytes | int, times: int = 0, terminate: int = 0
    ) -> int:
        """`run` with the addresses as ``plan.pack(...)`` gives them, or the address of an int64 array of them."""
        if lane.plan is not plan or lane.threads < self.threads:
            lane.prepare(plan, self.threads)
        if not self._is_ready and plan.width > 1:
            self.start()
        return self._run(self._address, plan.address, lane.address, addresses, times, terminate)

    def start(self) -> None:
        """Start the workers, if they are not there; fewer than wished for where the system refuses more."""
        with self._lock:
            if self._is_ready:
                return
            crew = _Crew(self._code, self.options)
            self.threads = 1 + len(crew.workers)
            if crew.workers:
                self._crew, self._address = crew, crew.address
                self._finalizer = weakref.finalize(self, crew.stop)
                self._finalizer.atexit = False  # `_stop_all` does it, and waits
            self._is_ready = True

    def close(self) -> _Crew | None:
        """End the workers, which are returned; later runs, and the rest of one in progress, are their callers'."""
        with self._lock:
            self._is_ready = True
            if not self._address:
                return None
            self._address = 0
            self._finalizer.detach()
        crew = self._crew  # stays, as a run in progress uses its memory
        assert crew is not None
        crew.stop()
        return crew

    @property
    def run_address(self) -> int:
        """The executor's function, for native callers."""
        return self._code.run

    @property
    def shared_memory(self) -> tuple[int, object]:
        """The address that the executor takes for this team (0: the caller runs alone), and what keeps it valid."""
        return self._address, self._crew

    @property
    def workers(self) -> tuple[threading.Thread, ...]:
        """The worker threads that the team has now."""
        crew = self._crew
        return tuple(crew.workers) if crew is not None and self._address else ()

    def _forget_workers(self) -> None:
        """In a forked child, which has none of its parent's threads: start anew with the next run."""
        self._lock = threading.Lock()
        if self._address:
            self._finalizer.detach()
            self._crew, self._address = None, 0
            self.threads, self._is_ready = self.options.threads, False


class _Crew:
    """The workers of a team and the memory that they share; it lives as long as any of them."""

    def __init__(self, code: ExecutorCode, options: TeamOptions) -> None:
        count = TeamField.PROCESSORS + options.threads
        self._memory = Memory(8 * count, "a thread team")
        self.address = self._memory.address
        self._stop = _STOP(code.stop)
        words = self._memory.words(count)
        crowded = not options.spinning or options.threads > len(available_processors())
        words[TeamField.SPIN] = options.idle_nanoseconds
        words[TeamField.PATIENCE] = _PATIENCE_IN_A_CROWD if crowded else _PATIENCE
        words[TeamField.YIELDS] = _YIELDS_IN_A_CROWD if crowded else _YIELDS
        words[TeamField.THREADS] = 1
        words[TeamField.ROAMS] = int(not options.affinities)
        words[TeamField.PROCESSORS :] = [-1] * options.threads
        self.workers: list[threading.Thread] = []
        for number in range(1, options.threads):
            worker = threading.Thread(
                target=_live,
                args=(self._memory, code, number, options),
                name=f"sardonyx-worker-{number}",
                daemon=True,
            )
            try:
                worker.start()
            except RuntimeError as error:  # "can't start new thread"
                _LOGGER.warning(f"thread team: {number} instead of {options.threads} threads: {error}", "team")
                break
            self.workers.append(worker)
        words[TeamField.THREADS] = 1 + len(self.workers)

    def stop(self) -> None:
        self._stop(self.address)

    def join(self) -> None:
        for worker in self.workers:
            if worker is not threading.current_thread():
                worker.join(_JOIN_SECONDS)


def _live(memory: Memory, code: ExecutorCode, number: int, options: TeamOptions) -> None:
    """What a worker does; it keeps the memory and the code, which it uses until it leaves."""
    if options.affinities:
        try:
            os.sched_setaffinity(0, options.affinities[number - 1])
        except (AttributeError, OSError, ValueError) as error:
            processors = sorted(options.affinities[number - 1])
            _LOGGER.warning(f"worker {number} cannot be bound to processors {processors}: {error}", "team")
    if options.on_start is not None:
        try:
            options.on_start(number)
        except Exception as error:
            _LOGGER.error(f"the start callback of worker {number} raised {type(error).__name__}: {error}", "team")
    _WORK(code.work)(memory.address, number)


_LOGGER = Logger("runtime")
_TEAMS: weakref.WeakSet[ThreadTeam] = weakref.WeakSet()
_SHARED: weakref.WeakValueDictionary[tuple[ExecutorCode, TeamOptions], ThreadTeam] = weakref.WeakValueDictionary()
_SHARED_LOCK = threading.Lock()


def shared_team(code: ExecutorCode, options: TeamOptions) -> ThreadTeam:
    """The process's team of a kind. It ends when the last one who holds it lets go."""
    key = (code, options)
    with _SHARED_LOCK:
        team = _SHARED.get(key)
        if team is None:
            team = _SHARED[key] = ThreadTeam(code, options)
        return team


def _after_fork() -> None:
    global _SHARED_LOCK
    _SHARED_LOCK = threading.Lock()
    for team in tuple(_TEAMS):
        team._forget_workers()


@atexit.register
def _stop_all() -> None:
    """Before the interpreter goes, with the code and the memory that workers use."""
    crews = [crew for team in tuple(_TEAMS) if (crew := team.close()) is not None]
    for crew in crews:
        crew.join()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
