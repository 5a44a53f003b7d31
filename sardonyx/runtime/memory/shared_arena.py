"""Arenas that belong to the process: sessions that ask for it run in these in place of arenas of their own.

Sessions that run one after the other use the same memory, whichever of them needs most; those that run at the same
time use different execution contexts. A session that keeps an execution context between its runs lends it to another
one that needs one.
"""

from __future__ import annotations

import os
import threading
import weakref

from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.memory.execution_contexts import Borrower, ExecutionContext, ExecutionContextPool
from sardonyx.runtime.memory.memory import MemoryLimit

# An arena beyond this is not made larger than it has to be, unless somebody says so.
MOST_DOUBLED = 1 << 30


@dataclass(frozen=True)
class ArenaGrowth:
    """How large arenas are made.

    doubles: the size is a power of two, up to `most_doubled` bytes, so that an arena grows a few times only; else it is
        what a plan needs. first: what an arena has at least. second: what one has at least that has grown, where
        sizes are powers of two.
    """

    doubles: bool = True
    first: int = 0
    second: int = 0
    most_doubled: int = MOST_DOUBLED

    def __call__(self, nbytes: int, before: int) -> int:
        """The size of an arena that needs so many bytes, where there were so many `before`."""
        least = self.first if before == 0 else self.second if self.doubles else 0
        wanted = max(nbytes, least)
        if self.doubles and wanted <= self.most_doubled:
            wanted = 1 << (wanted - 1).bit_length()
        return wanted


class SharedExecutionContexts(ExecutionContextPool):
    """The execution contexts of all sessions that share an arena; `limit` is for all of them together."""

    def __init__(self, growth: ArenaGrowth, limit: MemoryLimit | None = None) -> None:
        super().__init__(limit=limit, growth=self._size)
        self._chosen = growth
        self._borrowers: weakref.WeakSet[Borrower] = weakref.WeakSet()
        self._lock = threading.Lock()

    def _size(self, nbytes: int, before: int) -> int:
        """What the growth says, but not more than there may be where less will do."""
        wanted = self._chosen(nbytes, before)
        return wanted if self.limit is None else max(nbytes, min(wanted, self.limit.left))

    def take(self) -> ExecutionContext:
        self._call_back(None)
        return super().take()

    def lend(self, borrower: Borrower) -> ExecutionContext:
        self._call_back(borrower)
        with self._lock:
            self._borrowers.add(borrower)
        return super().take()

    def shrink(self) -> int:
        for borrower in self._others(None):
            borrower.close()
        return super().shrink()

    def _call_back(self, asking: Borrower | None) -> None:
        """Have an execution context that nobody runs in, if somebody else keeps one."""
        if self._idle:
            return
        for borrower in self._others(asking):
            if borrower.close() and self._idle:
                return

    def _others(self, asking: Borrower | None) -> list[Borrower]:
        with self._lock:
            return [one for one in self._borrowers if one is not asking]


class _Environment:
    """What has been registered in this process."""

    execution_contexts: SharedExecutionContexts | None = None


def register(growth: ArenaGrowth, limit: MemoryLimit | None) -> SharedExecutionContexts:
    """The arena of the sessions that are made from now on and ask for the process's."""
    _Environment.execution_contexts = SharedExecutionContexts(growth, limit)
    return _Environment.execution_contexts


def environment_execution_contexts() -> SharedExecutionContexts | None:
    """The arena of the process; None before one is registered."""
    return _Environment.execution_contexts


def unregister() -> None:
    """Let sessions that are made from now on have arenas of their own."""
    _Environment.execution_contexts = None


def _after_fork() -> None:
    """In a forked child, which may have come while another thread asked for an execution context."""
    if _Environment.execution_contexts is not None:
        _Environment.execution_contexts._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
