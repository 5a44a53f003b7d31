"""What kind of thread pool a session asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.threads.processors import MOST_THREADS

_SPIN_SECONDS = 1e-3  # how long idle workers look for the next run before they sleep

# Creates a thread that calls the function it is given, once, and gives a handle; the other waits for that thread's end.
CreateThread = Callable[[Any, Callable[[], None]], Any]
JoinThread = Callable[[Any], None]


@dataclass(frozen=True)
class Idling:
    """How an idle worker waits for the next run: whether and for how long (None: the default) it looks for one before
    it sleeps, and how many pauses it makes between two looks at most, beginning with one and doubling them."""

    spinning: bool = True
    seconds: float | None = None
    backoff: int = 1

    @property
    def nanoseconds(self) -> int:
        """How long it looks for the next run."""
        if not self.spinning:
            return 0
        return round((_SPIN_SECONDS if self.seconds is None else self.seconds) * 1e9)


@dataclass(frozen=True, eq=False)
class ThreadHooks:
    """How somebody else makes and ends threads: ``create(options, work)`` gives a handle for ``join(handle)``.

    No two are equal: threads made by callbacks belong to whoever gave them.
    """

    create: CreateThread
    join: JoinThread
    options: Any = None
    shared: bool = False  # by all sessions


@dataclass(frozen=True)
class ThreadPoolOptions:
    """What kind of thread pool: sessions that agree in all of it share one.

    threads: including the caller.
    spinning: whether idle workers spin before they sleep, and waiting threads spin for long.
    spin_seconds: how long idle workers spin; None for the default.
    stop_after_run: idle workers sleep at once, though threads spin during a run.
    affinities: the processors of each worker, by the numbers of `os.sched_setaffinity`; empty for no choice.
    on_start: called in each worker with its number, from 1 on, before it takes work.
    backoff: pauses between two looks of an idle worker, at most.
    added: how many of the workers, the last ones, were added for steps side by side; they idle as `added_idling` says.
    blocks: 0 where a thread claims as little of a step as its kernel suggests; otherwise blocks that shrink: what is
        left over the number of threads times this one, but no less.
    hooks: who makes the threads; None for Python's own.
    """

    threads: int
    spinning: bool = True
    spin_seconds: float | None = None
    stop_after_run: bool = False
    affinities: tuple[frozenset[int], ...] = ()
    on_start: Callable[[int], None] | None = None
    backoff: int = 1
    added: int = 0
    added_idling: Idling = Idling()
    blocks: int = 0
    hooks: ThreadHooks | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= MOST_THREADS:
            raise ValueError(f"a thread pool has 1 to {MOST_THREADS} threads, not {self.threads}")
        if self.affinities and len(self.affinities) != self.threads - 1:
            raise ValueError(
                f"{len(self.affinities)} affinities for {self.threads - 1} workers: there is one for each, "
                "the thread that calls run is not pinned"
            )

    def idling(self, number: int) -> Idling:
        """How the worker of a number, from 1 on, idles."""
        if self.stop_after_run:
            return Idling(spinning=False)
        if number >= self.threads - self.added:
            return self.added_idling
        return Idling(self.spinning, self.spin_seconds, self.backoff)


@dataclass(frozen=True)
class ExecutorCode:
    """Addresses of the native functions ``run``, ``work`` and ``stop``, and what keeps them in memory.

    `watch` gives the address of the function that installs those of `runtime.interrupts`.
    """

    run: int
    work: int
    stop: int
    owner: Any = field(default=None, compare=False, repr=False)
    watch: Callable[[], int] | None = field(default=None, compare=False, repr=False)
