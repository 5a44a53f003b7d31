"""Forks of the process: a child has none of the other threads, so none of them may be in the midst of what it needs.

What takes long and leaves things half made until it is done (making a session, binding to new sizes) is *whole* work: a
fork waits for its end, and new work waits for the fork. A thread that forks does not wait for itself, and nobody waits
for ever: work that calls somebody else's function may wait for the one who forks.

Locks that are held for a moment are simply free in the child, whoever held them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

_MOST_SECONDS = 30.0  # how long a fork waits for work to end
# How long work waits for a fork: another thread, which the fork waits for, may need it.
_LEAST_SECONDS = 1.0
_PAUSE = 5e-4

_Lock = TypeVar("_Lock")
_Value = TypeVar("_Value")


class _Work:
    """Work that is being done, and by which thread."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = threading.get_ident()


# Both change in single steps of the interpreter, so that neither signals nor threads find them half changed.
_WORKING: set[_Work] = set()
_FORKING: set[int] = set()  # threads


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """Inside, other threads do not fork."""
    work = _Work()
    try:
        _begin(work)
        yield
    finally:
        _WORKING.discard(work)


def _begin(work: _Work) -> None:
    last = 0.0
    while True:
        _WORKING.add(work)  # before the look at who forks, who look the other way round
        if not _FORKING or work.thread in _FORKING or sum([one.thread == work.thread for one in list(_WORKING)]) > 1:
            return
        now = time.monotonic()
        last = last or now + _LEAST_SECONDS
        if now > last:
            return
        _WORKING.discard(work)
        time.sleep(_PAUSE)


def free_in_child(lock: _Lock) -> _Lock:
    """A lock of `threading` that nobody holds in a forked child."""
    _FREE.add(lock)
    return lock


class cached_property(functools.cached_property[_Value]):  # noqa: N801 - named as what it is of
    """`functools.cached_property`, whose lock (it has one before Python 3.12) is free in a child."""

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        super().__init__(compute)
        if hasattr(self, "lock"):
            free_in_child(self.lock)


def around_forks(before: Callable[[], Any], after: Callable[[], Any]) -> None:
    """Call `before` before every fork, when whole work has ended, and `after` behind it in parent and child.

    What was given last comes first, as with `os.register_at_fork`.
    """
    _AROUND.append((before, after))


_FREE: weakref.WeakSet[Any] = weakref.WeakSet()
_AROUND: list[tuple[Callable[[], Any], Callable[[], Any]]] = []
_WAITING: dict[int, list[Callable[[], Any]]] = {}  # what has to come behind the forks of threads


def _before() -> None:
    own = threading.get_ident()
    _FORKING.add(own)
    last = time.monotonic() + _MOST_SECONDS
    while any(one.thread != own for one in list(_WORKING)) and time.monotonic() < last:
        time.sleep(_PAUSE)
    waiting = _WAITING[own] = []
    for before, after in reversed(_AROUND):
        before()
        waiting.append(after)


def _after() -> None:
    own = threading.get_ident()
    _FORKING.discard(own)
    for after in reversed(_WAITING.pop(own, [])):
        after()


def _after_in_child() -> None:
    _after()
    _FORKING.clear()
    _WAITING.clear()
    own = threading.get_ident()
    _WORKING.difference_update([one for one in _WORKING if one.thread != own])
    for lock in tuple(_FREE):
        if hasattr(lock, "_at_fork_reinit"):  # by which Python's own library does it
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
