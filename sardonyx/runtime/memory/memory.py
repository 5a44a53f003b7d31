"""How much memory there is, and how much of it may be taken: asked before a large buffer is made.

NumPy takes address space that the machine does not have, and the kernel then ends the whole process when it is
touched; so a buffer whose size a model can choose is checked first, and so are the tables and intermediate values that
come with it. Ahead of a run, where sizes are only declared or guessed, nothing of more than `CHECKED_BYTES` is made for
them. A `MemoryLimit` is less than what the machine has: what somebody said that a session, or an arena, may hold.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping

from sardonyx import errors
from sardonyx.runtime.control_groups import group_folders
from sardonyx.runtime.memory import address_space

# Buffers below this are not worth a look at the machine.
CHECKED_BYTES = 64 << 20

# What is left to the rest of the process.
_RESERVE = 64 << 20

# Of control groups of version 2, and of version 1: the limit, what is used, and what of that the system can take back.
_GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
_KEPT_SECONDS = 0.05  # how long an answer stays good: many steps of one run may ask

_known: tuple[float, int] = (-math.inf, 0)


def available_bytes() -> int:
    """Bytes that this process can still take: the least of the machine's, its control groups' and its own limit."""
    global _known
    now = time.monotonic()
    if now - _known[0] > _KEPT_SECONDS:
        _known = (now, max(0, min(_candidates())))
    return _known[1]


def require(nbytes: int, what: str, *, of_model: bool = False) -> None:
    """Raise `errors.Fail` where a buffer of `nbytes` for `what` does not fit into memory.

    `MemoryLimitError` where it does not fit under the limit that this thread works under; ahead of a run,
    `PostponedError` for a large one, unless it is `of_model`: as large as the model's own weights.
    """
    if _WORKING.limit is not None:
        _WORKING.limit.require(nbytes, what)
    if nbytes < CHECKED_BYTES:
        return
    if _WORKING.is_ahead and not of_model:
        raise PostponedError(f"{what} of {nbytes} bytes are made when a run asks for them")
    left = available_bytes() - _RESERVE
    if nbytes > left:
        raise unavailable(nbytes, what, left)


def unavailable(nbytes: int, what: str, left: int | None = None) -> errors.Fail:
    """The error for a buffer that is not to be had, where `left` bytes are; what there is now if that is None."""
    if left is None:
        left = max(0, min(_candidates()))
    return errors.Fail(
        f"Failed to allocate memory for requested buffer of size {nbytes} ({what}; {max(left, 0)} bytes are left)"
    )


def require_tables(nbytes: int, what: str, beside: int = 0) -> None:
    """`require` for what is made in proportion to sizes, with `beside` more bytes that its result takes.

    The result is checked by itself where it is made, so few bytes of tables are no reason to ask for it before.
    """
    if nbytes >= CHECKED_BYTES:
        require(nbytes + beside, what)


class MemoryLimitError(errors.Fail):
    """More memory was asked for than somebody said may be taken."""


class PostponedError(errors.Fail):
    """Something is too large to be made for sizes that no run has had yet."""


@contextlib.contextmanager
def ahead_of_run() -> Iterator[None]:
    """Inside, this thread works for sizes that are declared or guessed: nothing large is made for them."""
    outer, _WORKING.is_ahead = _WORKING.is_ahead, True
    try:
        yield
    finally:
        _WORKING.is_ahead = outer


class MemoryLimit:
    """The bytes that something may hold; what is held counts as long as its `Charge` lives.

    `name` says in messages where the limit was set.
    """

    def __init__(self, nbytes: int, name: str) -> None:
        self.nbytes = nbytes
        self.name = name
        self._held: dict[str, int] = {}
        self._lock = threading.RLock()  # a charge may end while this thread makes another one
        _LIMITS.add(self)

    @property
    def held(self) -> Mapping[str, int]:
        """The bytes that are held, by what they are for."""
        with self._lock:
            return {what: nbytes for what, nbytes in self._held.items() if nbytes}

    @property
    def left(self) -> int:
        """The bytes that may still be taken."""
        return self.nbytes - sum(self.held.values())

    def require(self, nbytes: int, what: str) -> None:
        """Raise `MemoryLimitError` where so many bytes more for `what` are beyond the limit."""
        held = self.held
        left = self.nbytes - sum(held.values())
        if nbytes > left:
            holders = ", ".join(f"{name} {count}" for name, count in sorted(held.items(), key=lambda one: -one[1]))
            raise MemoryLimitError(
                f"Failed to allocate memory for requested buffer of size {nbytes} ({what}): Available memory of "
                f"{max(0, left)} is smaller than requested bytes of {nbytes}. The limit is {self.nbytes} bytes "
                f"({self.name}); held are {holders or 'none'}. Raise the limit, give the model smaller inputs, or let "
                "it read weights as they lie in its file (session.disable_prepacking)."
            )

    def charge(self, nbytes: int, what: str) -> Charge:
        """Count so many bytes for `what`; `MemoryLimitError` where they are beyond the limit."""
        with self._lock:
            self.require(nbytes, what)
            self._held[what] = self._held.get(what, 0) + nbytes
        return Charge(self, nbytes, what)

    def _end(self, nbytes: int, what: str) -> None:
        with self._lock:
            self._held[what] -= nbytes

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, all that this thread asks memory for has to fit under the limit."""
        outer, _WORKING.limit = _WORKING.limit, self
        try:
            yield
        finally:
            _WORKING.limit = outer


class Charge:
    """Bytes that count against a limit until this object goes."""

    __slots__ = ("_limit", "_nbytes", "_what")

    def __init__(self, limit: MemoryLimit, nbytes: int, what: str) -> None:
        self._limit, self._nbytes, self._what = limit, nbytes, what

    def __del__(self) -> None:
        self._limit._end(self._nbytes, self._what)


def applied_limit() -> MemoryLimit | None:
    """The limit that this thread works under."""
    return _WORKING.limit


class _Working(threading.local):
    limit: MemoryLimit | None = None
    is_ahead: bool = False


_WORKING = _Working()
_LIMITS: weakref.WeakSet[MemoryLimit] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child, which may have come while another thread counted."""
    for limit in tuple(_LIMITS):
        limit._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _candidates() -> Iterable[int]:
    yield _machine()
    for folders, (limit, usage, inactive) in zip(group_folders("memory"), _GROUP_FILES, strict=True):
        for folder in folders:
            most, used = _number(f"{folder}/{limit}"), _number(f"{folder}/{usage}")
            if most is not None and used is not None:
                yield most - used + (_entry(f"{folder}/memory.stat", inactive, 1) or 0)
    own = address_space.left()
    if own is not None:
        yield own


def _machine() -> int:
    """MemAvailable of Linux; elsewhere the free pages, or all of them where the system does not say."""
    found = _entry("/proc/meminfo", "MemAvailable:", 1024)
    if found is not None:
        return found
    for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        try:
            return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            continue
    return 1 << 62


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # no such group, or "max"
        return None


def _entry(path: str, key: str, unit: int) -> int | None:
    """The number behind a key in a file of lines."""
    try:
        with open(path, encoding="ascii") as lines:
            for line in lines:
                if line.startswith(key):
                    return int(line.split()[1]) * unit
    except (OSError, ValueError, IndexError):
        return None
    return None
