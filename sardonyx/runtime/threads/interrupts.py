"""Ctrl-C during a run: native code of the main thread, which Python's signal handlers have to wait for, looks for it.

A long run of the main thread puts a handler of its own in front of Python's for as long as it lasts. Where a signal
comes, that handler calls Python's and sets a flag; the run sees the flag between two chunks of work and lets
Python's handler speak. If that raises, the run ends with the exception, else it goes on as if nothing had happened.

Only SIGINT, and only where there are POSIX signals. Runs that are not long (`native_plan.LONG_NS`) are not watched:
what interrupts them is seen soon enough after them.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from sardonyx.light_enum import Numbers
from sardonyx.runtime.memory.execution_contexts import Memory


class StopField(Numbers):
    """The words by which a run learns that it shall end: whoever wants that sets one of two flags."""

    FLAG = 0
    OTHER = 1  # the address of the other flag; 0 for none
    ASK = 2  # the function that decides whether `FLAG`, which it clears, ends the run; 0 where it does


STOP_WORDS = 3


class WatchField(Numbers):
    """The words of the process; those of `StopField` come first."""

    MAIN = 3  # the main thread
    BEFORE = 4  # the handler that was there before ours
    HANDLER = 5  # ours
    RUN = 6  # i64 run(words, executor, thread pool, plan, execution context, external, times, other flag)
    CALL = 7  # i64 call(words, function, argument, other flag)
    COUNT = 8


# What the signal handler, which is given nothing but the signal's number, calls the words.
WORDS_SYMBOL = "sardonyx_watch_words"

_LONG = ctypes.c_int64
_INSTALL = ctypes.CFUNCTYPE(None, _LONG)
# These hold the interpreter's lock: the functions give it up themselves, so that they can end with an exception.
_RUN = ctypes.PYFUNCTYPE(_LONG, _LONG, _LONG, _LONG, _LONG, _LONG, ctypes.c_void_p, _LONG, _LONG)
_CALL = ctypes.PYFUNCTYPE(_LONG, _LONG, _LONG, _LONG, _LONG)


@functools.cache
def words_address() -> int:
    """Where the words of the process lie, for as long as it lasts."""
    memory = Memory(8 * WatchField.COUNT, "the words of the process")
    _KEPT.append(memory)
    return memory.address


class Watch:
    """The native functions by which the main thread does what may take long.

    `run` and `call` raise what a handler of Python raised meanwhile.
    """

    def __init__(self, installer: int, owner: object) -> None:
        """The function at `installer` writes the addresses of the others into the words; `owner` keeps them loaded."""
        self.address = words_address()
        self._words = (ctypes.c_int64 * WatchField.COUNT).from_address(self.address)
        _INSTALL(installer)(self.address)
        self.meet_main_thread()
        self.run: Callable[..., int] = _RUN(self._words[WatchField.RUN])
        self.call: Callable[..., int] = _CALL(self._words[WatchField.CALL])
        self._owner = owner

    def meet_main_thread(self) -> None:
        """Take note of which thread is the main one: after a fork it may be another."""
        self._words[StopField.FLAG] = 0
        self._words[WatchField.MAIN] = threading.main_thread().ident or 0


_KEPT: list[Memory] = []
_LOCK = threading.Lock()
_WATCH: Watch | None = None


def watch(installer: Callable[[], int] | None, owner: Any) -> Watch | None:
    """The process's watch, made when it is asked for first; None where there are no signals to see.

    `installer` gives the address of the function that installs it, which `owner` keeps loaded.
    """
    global _WATCH
    if _WATCH is None and installer is not None and os.name == "posix":
        with _LOCK:
            if _WATCH is None:
                _WATCH = Watch(installer(), owner)
    return _WATCH


def _after_fork() -> None:
    global _LOCK
    _LOCK = threading.Lock()
    if _WATCH is not None:
        _WATCH.meet_main_thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
