"""Address space: what a process may still map, and what is done where that is little.

A limit of the address space (RLIMIT_AS, `ulimit -v`) or of data (RLIMIT_DATA), and a system that promises no more
memory than it has (vm.overcommit_memory 2), let an allocation fail. Python says so with an exception. LLVM ends the
process, and a C extension that finds no room leaves its module half made. So what takes much of it, libraries and
compiling, asks first.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from sardonyx import errors

# Where less than this is left, the process is short of address space: nothing that ends the process where it gets no
# memory runs in it. LLVM's library takes 160 MiB and what it compiles with 60; each thread that compiles 136 MiB for a
# moment, most of it C's reserve for allocations of the thread; the rest is for what other threads take meanwhile.
AMPLE = 1 << 30

# Where less than this is left, nothing is taken that only makes something quicker: neither threads, whose stacks take
# 8 MiB each, nor memory ahead.
_SPARE = 64 << 20

# What NumPy 2.4 takes with one thread of OpenBLAS, and each further one: a stack, and a buffer of 32 MiB.
_NUMPY, _NUMPY_THREAD = 88 << 20, 41 << 20

# What Python raises where memory or address space ran out. CPython's parser gives SyntaxError for a module that is
# without fault, if it finds no room in the midst of it and no bytecode of the module is kept.
KINDS = (MemoryError, OSError, ImportError, SyntaxError)
_INSTALLED = tuple(os.path.dirname(one) + os.sep for one in (os.path.dirname(errors.__file__), os.__file__))

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

_ARENA_MAX = -8  # M_ARENA_MAX of mallopt
_PHRASES = ("failed to map segment", "cannot allocate memory", "cannot create shared object", "not enough memory")


def limit() -> int | None:
    """Bytes of address space that this process may have; None for any number."""
    found = [_limit(name) for name in ("RLIMIT_AS", "RLIMIT_DATA")]
    return min((one for one in found if one is not None), default=None)


def left() -> int | None:
    """Bytes that this process may still map, as its limits and the system say; None where nothing limits them."""
    whole, data = _limit("RLIMIT_AS"), _limit("RLIMIT_DATA")
    rooms = []
    if whole is not None or data is not None:
        pages = _pages()
        if pages is not None:
            rooms += [most - used for most, used in zip((whole, data), pages, strict=True) if most is not None]
    if _is_strict():
        rooms.append(_uncommitted())
    return max(0, min(rooms)) if rooms else None


def is_scarce() -> bool:
    """Whether the process is short of address space; where it is, its threads share one reserve for allocations.

    C would reserve 64 MiB for every new thread.
    """
    return _is_below(AMPLE)


def has_spare() -> bool:
    """Whether there is room for what only makes something quicker: helping threads, and memory for later."""
    return not _is_below(_SPARE)


def _is_below(nbytes: int) -> bool:
    """Whether less than so many bytes are left; where they are scarce, later threads share one reserve."""
    room = left()
    if room is None or room >= AMPLE:
        return False
    _share_reserve()
    return room < nbytes


def require(nbytes: int, what: str, remedy: str = "") -> None:
    """`errors.Fail` where fewer bytes are left than `what` needs."""
    room = left()
    if room is not None and room < nbytes:
        raise shortage(what, nbytes, remedy)


def require_import(module: str, nbytes: int, what: str, remedy: str = "") -> None:
    """`require` before a module is imported that takes so much with what it imports; nothing where it is there.

    One whose import fails for want of memory may stay half made, and could not be imported later either.
    """
    if module not in sys.modules:
        require(nbytes, what, remedy)


def require_numpy() -> None:
    """`errors.Fail` where NumPy is not there and finds too little address space: OpenBLAS would end the process."""
    text = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
    count = os.cpu_count() or 1
    threads = min(int(text), count) if text.isdecimal() and int(text) else count
    require_import(
        "numpy",
        _NUMPY + (threads - 1) * _NUMPY_THREAD,
        "Importing NumPy",
        ", or set OPENBLAS_NUM_THREADS=1, which needs less",
    )


def shortage(what: str, nbytes: int | None = None, remedy: str = "") -> errors.Fail:
    """The error for what found no room: how much it needs, if that is known, and what there is."""
    room, most = left(), limit()
    needs = "more address space than there is" if nbytes is None else f"{_mb(nbytes)} of address space"
    rest = "" if room is None else f"; {_mb(room)} are left"
    bound = "" if most is None else f" under the limit of {_mb(most)} (ulimit -v)"
    advice = "Raise the limit" if most is not None else "Free memory, or let the system promise more of it"
    return errors.Fail(f"{what} needs {needs}{rest}{bound}. {advice}{remedy}.")


def explained(error: BaseException, what: str, remedy: str = "") -> errors.Fail | None:
    """The typed form of an error that says that memory or address space ran out during `what`; None for others."""
    if isinstance(error, errors.OnnxRuntimeError) or shortage_in(error) is None:
        return None
    text = " ".join(str(error).split())
    failed = shortage(what, remedy=remedy)
    return errors.Fail(f"{failed.message} ({type(error).__name__}{': ' if text else ''}{text})")


def shortage_in(error: BaseException) -> BaseException | None:
    """Which of an error and its causes says that memory or address space ran out; None where none does."""
    seen: BaseException | None = error
    passed: set[int] = set()  # an error that is kept and raised again can be its own context
    while seen is not None and id(seen) not in passed:
        passed.add(id(seen))
        if isinstance(seen, MemoryError) or getattr(seen, "errno", None) == errno.ENOMEM:
            return seen
        if isinstance(seen, (ImportError, OSError)) and any(one in str(seen).lower() for one in _PHRASES):
            return seen
        if isinstance(seen, SyntaxError) and str(seen.filename).startswith(_INSTALLED) and limit() is not None:
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


class telling:  # noqa: N801 - read as a statement
    """Inside the block, which does `what`: where memory or address space runs out, `errors.Fail` says so."""

    def __init__(self, what: str, remedy: str = "") -> None:
        self._what, self._remedy = what, remedy

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KINDS):
            failed = explained(error, self._what, self._remedy)
            if failed is not None:
                raise failed from error


def typed(what: str) -> Callable[[Callable[_Given, _Result]], Callable[_Given, _Result]]:
    """A decorator of functions that do `what`, which is told of them as in `telling`."""

    def decorated(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
        @functools.wraps(function)
        def called(*given: _Given.args, **named: _Given.kwargs) -> _Result:
            with telling(what):
                return function(*given, **named)

        return called

    return decorated


def _limit(name: str) -> int | None:
    try:
        import resource

        most, _ = resource.getrlimit(getattr(resource, name))
    except (ImportError, AttributeError, OSError, ValueError):
        return None
    return None if most == resource.RLIM_INFINITY else most


def _pages() -> tuple[int, int] | None:
    """Bytes of address space and of data that the process has; None where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            counts = file.read().split()
    except OSError:
        return None
    size = os.sysconf("SC_PAGE_SIZE")
    return int(counts[0]) * size, int(counts[5]) * size


@functools.cache
def _is_strict() -> bool:
    """Whether the system promises no more memory than it has."""
    try:
        with open("/proc/sys/vm/overcommit_memory", "rb") as file:
            return file.read().strip() == b"2"
    except OSError:
        return False


def _uncommitted() -> int:
    """Bytes that the system may still promise."""
    found: dict[bytes, int] = {}
    with open("/proc/meminfo", "rb") as file:
        for line in file:
            name, _, text = line.partition(b":")
            if name in (b"CommitLimit", b"Committed_AS"):
                found[name] = int(text.split()[0]) << 10
    return found.get(b"CommitLimit", 1 << 62) - found.get(b"Committed_AS", 0)


@functools.cache
def _share_reserve() -> None:
    """Let C's allocator make no reserves for new threads: what one has taken is out of reach of all others."""
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.0f} MB"
