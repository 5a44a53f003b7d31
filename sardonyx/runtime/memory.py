"""How much memory there is, asked before a large buffer is made.

NumPy takes address space that the machine does not have, and the kernel then ends the whole process when it is
touched; so a buffer whose size a model can choose is checked first.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from pathlib import Path

from sardonyx import errors

# Buffers below this are not worth a look at the machine.
CHECKED_BYTES = 64 << 20

# What is left to the rest of the process.
_RESERVE = 64 << 20

_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
        "total_inactive_file",
    ),
)
_KEPT_SECONDS = 0.05  # how long an answer stays good: many steps of one run may ask

_known: tuple[float, int] = (-math.inf, 0)


def available_bytes() -> int:
    """Bytes that this process can still take: the least of the machine's, the control group's and its own limit."""
    global _known
    now = time.monotonic()
    if now - _known[0] > _KEPT_SECONDS:
        _known = (now, max(0, min(_candidates())))
    return _known[1]


def require(nbytes: int, what: str) -> None:
    """Raise `errors.Fail` where a buffer of `nbytes` for `what` does not fit into memory."""
    if nbytes < CHECKED_BYTES:
        return
    left = available_bytes() - _RESERVE
    if nbytes > left:
        raise errors.Fail(
            f"Failed to allocate memory for requested buffer of size {nbytes} ({what}; {max(left, 0)} bytes are left)"
        )


def _candidates() -> Iterable[int]:
    yield _machine()
    for limit, usage, statistics, inactive in _CGROUPS:
        most, used = _number(limit), _number(usage)
        if most is not None and used is not None:
            yield most - used + (_entry(statistics, inactive, 1) or 0)
    own = _own_limit()
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


def _own_limit() -> int | None:
    """What the address space limit of this process (RLIMIT_AS) leaves."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return None
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError, ValueError):
        return None
    return limit - pages * os.sysconf("SC_PAGE_SIZE")


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
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
