"""What tests ask of the workers of a thread pool: no answer depends on which thread the system lets run, or for how
long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from sardonyx.runtime.threads.thread_pool import ThreadPool
from sardonyx.runtime.threads.thread_pool_words import MemberField

PATIENCE = 120.0  # seconds after which something that should come has not come
_WINDOW = 0.05  # seconds of a worker's own time over which its looks are counted,
_BLUR = 1e-3  # and how much of it may pass while they are read


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.001)


def is_asleep(worker: threading.Thread) -> bool:
    return Path(f"/proc/self/task/{worker.native_id}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S"


def looks(thread_pool: ThreadPool, number: int) -> int:
    """How often the worker of a number has looked for a run."""
    return thread_pool.column(MemberField.LOOKS)[number]


def wait_for_sleep(thread_pool: ThreadPool, number: int) -> None:
    """Until a worker that has been looking for runs sleeps."""
    wait_until(lambda: looks(thread_pool, number) > 0 and is_asleep(thread_pool.workers[number - 1]))


def looks_per_second(thread_pool: ThreadPool, number: int) -> float:
    """How often a worker that idles looks for a run in a second of its own processor time."""
    clock = time.pthread_getcpuclockid(thread_pool.workers[number - 1].ident or 0)

    def reading() -> tuple[int, float]:
        while True:
            before, seen, after = time.clock_gettime(clock), looks(thread_pool, number), time.clock_gettime(clock)
            if after - before < _BLUR:  # else it went on while this thread stood still
                return seen, after

    wait_until(lambda: looks(thread_pool, number) > 0)
    seen, began = reading()
    wait_until(lambda: time.clock_gettime(clock) >= began + _WINDOW)
    seen_later, ended = reading()
    return (seen_later - seen) / (ended - began)
