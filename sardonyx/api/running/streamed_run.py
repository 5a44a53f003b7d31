"""A run whose outputs come one by one: each as soon as it is computed, while the run goes on in a thread of its own."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from sardonyx import errors
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.threads.interrupts import STOP_WORDS, StopField

# Takes the name and the value of an output.
Put = Callable[[str, Any], None]


class StreamedRun(Iterator[tuple[str, Any]]):
    """Gives (name, value) for each output, in the order in which they become final.

    Errors of the run come after the outputs that it had computed before. Who lets go of this object before its end, or
    calls `close`, ends the run.
    """

    def __init__(self, work: Callable[[RunContext, Put], None], context: RunContext, name: str) -> None:
        """Begin `work` in a thread called `name`, with a context that ends where the given one does, too."""
        self._stop = _Stop(context)
        self._items: SimpleQueue[tuple[str, Any] | BaseException | None] = SimpleQueue()
        self._is_closed = False
        context = replace(context, terminated=self._stop.is_set, terminate_word=self._stop.address)
        # It knows no `StreamedRun`, which goes when its caller lets go of it.
        self._thread = threading.Thread(target=_run, args=(work, context, self._items, self._stop), name=name)
        _RUNNING.add(self._stop)
        try:
            self._thread.start()
        except BaseException as error:  # no more threads, or a signal's handler: one that has begun ends by itself
            self._stop.set()
            _RUNNING.discard(self._stop)
            if isinstance(error, RuntimeError):
                raise errors.Fail(f"A streamed run needs a thread of its own, and there is none: {error}") from error
            raise

    def __next__(self) -> tuple[str, Any]:
        if self._is_closed:
            raise StopIteration
        try:
            item = self._items.get()
        except BaseException:  # of a signal's handler, such as KeyboardInterrupt
            self._stop.set()
            raise
        if isinstance(item, tuple):
            return item
        self._items.put(None)  # for whoever asks again
        self._thread.join()
        if item is None or self._is_closed:
            raise StopIteration
        try:
            raise item
        finally:
            del item  # its traceback leads here

    def close(self) -> None:
        """End the run, unless it has ended, and wait until nothing of it is under way; no more outputs come."""
        self._is_closed = True
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> StreamedRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_stop"):
            self._stop.set()


class _Stop:
    """By what a run is told to end: its own flag, or the one of its options."""

    def __init__(self, context: RunContext) -> None:
        self._words = (ctypes.c_int64 * STOP_WORDS)()
        self._words[StopField.OTHER] = context.terminate_word
        self._outer = context.terminated
        self.address = ctypes.addressof(self._words)

    def set(self) -> None:
        self._words[StopField.FLAG] = 1

    def is_set(self) -> bool:
        return self._words[StopField.FLAG] != 0 or self._outer()


def _run(
    work: Callable[[RunContext, Put], None],
    context: RunContext,
    items: SimpleQueue[tuple[str, Any] | BaseException | None],
    stop: _Stop,
) -> None:
    """The thread of a run."""
    problem: BaseException | None = None
    try:
        work(context, lambda name, value: items.put((name, value)))
    except BaseException as error:  # whatever it is, only the caller's thread can tell
        problem = error
    del work, context
    items.put(problem)
    _RUNNING.discard(stop)
    del problem  # its traceback leads here: a ring that would wait for the garbage collector


# Of the runs under way. No weak references: an exception of a signal's handler is lost where it meets their callbacks.
_RUNNING: set[_Stop] = set()


def _stop_all() -> None:
    """Before the interpreter waits for its threads: nobody will take what these would still give."""
    for stop in tuple(_RUNNING):
        stop.set()


# What comes before the end of other threads has no public name; without it the interpreter waits for the runs.
_at_threading_exit = getattr(threading, "_register_atexit", None)
if _at_threading_exit is not None:
    with contextlib.suppress(RuntimeError):  # imported after that moment
        _at_threading_exit(_stop_all)
