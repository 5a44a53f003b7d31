"""Threads that help with work that can be shared: as many as the system gives, and none if need be.

Threads cannot start where the system, or a limit of the process, has no more of them, nor when the process ends.
Whoever asks for help does all of it then, which takes longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType

from sardonyx.runtime.memory import address_space


class Helpers:
    """Up to `most` threads, which start when there is work for them and end with the block; for one thread's use."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._turns: SimpleQueue[_Turn | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Helpers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for _ in self._threads:
            self._turns.put(None)
        for thread in self._threads:
            thread.join()

    def share(self, work: Callable[[], None], others: int) -> None:
        """Call `work` in this thread and in up to so many others at the same time; it does what is left to do.

        What it raises in any of them comes through, when all have ended.
        """
        turns = [_Turn(work) for _ in range(self._started(others))]
        for turn in turns:
            self._turns.put(turn)
        try:
            work()
        finally:
            for turn in turns:
                turn.end()
        for turn in turns:
            if turn.problem is not None:
                raise turn.problem

    def _started(self, wanted: int) -> int:
        """So many threads, or as many as there are."""
        wanted = min(wanted, self._most)
        while len(self._threads) < wanted and address_space.has_spare():
            thread = threading.Thread(target=_help, args=(self._turns,), name=self._name)
            try:
                thread.start()
            except RuntimeError:  # "can't start new thread"
                break
            self._threads.append(thread)
        return min(wanted, len(self._threads))


class _Turn:
    """One call of some work, by whoever comes first: a helper, or the one who asked for it and no longer needs it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._begun, self._ended = threading.Lock(), threading.Lock()
        self._ended.acquire()
        self.problem: BaseException | None = None

    def do(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        try:
            self._work()
        except BaseException as error:  # for the one who asked
            self.problem = error
        finally:
            self._ended.release()

    def end(self) -> None:
        """Wait until it is done, or let it never begin."""
        if not self._begun.acquire(blocking=False):
            self._ended.acquire()


def _help(turns: SimpleQueue[_Turn | None]) -> None:
    while (turn := turns.get()) is not None:
        turn.do()
        del turn  # or it keeps what it worked on until the next one comes
