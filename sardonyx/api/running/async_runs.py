"""Runs that another thread makes, which then calls back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sardonyx import errors, log
from sardonyx.runtime.forks import free_in_child

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

# Takes the outputs, what the caller gave for it, and the text of an error, empty where there is none.
Callback = Callable[[list[Any], Any, str], None]


class AsyncRuns:
    """A session's threads for such runs: one less than it multiplies with, made when first needed."""

    def __init__(self, threads: int, name: str, logger: log.Logger) -> None:
        self._threads, self._name, self._logger = threads, name, logger
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self._lock = free_in_child(threading.Lock())

    def submit(self, run: Callable[[], list[Any]], callback: Callback, user_data: Any) -> None:
        """Let a thread `run` and then call `callback(outputs, user_data, error)`.

        Where no thread can be had, as when the process ends, the calling one does both.
        """
        if self._threads == 1:
            raise errors.InvalidArgument("intra op thread pool must have at least one thread for RunAsync")
        is_begun = threading.Lock()

        def work() -> None:
            if is_begun.acquire(blocking=False):  # a thread of the pool may come to it as well
                self._run_and_call(run, callback, user_data)

        try:
            self._own_pool().submit(work)
        except RuntimeError:  # the system has no more threads, or the interpreter waits for the last ones
            work()

    def _own_pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None or self._process != os.getpid():  # threads do not come along through a fork
                from concurrent.futures import ThreadPoolExecutor  # a session begins sooner without

                workers = max(1, (self._threads or os.cpu_count() or 1) - 1)
                self._pool, self._process = ThreadPoolExecutor(workers, self._name), os.getpid()
            return self._pool

    def _run_and_call(self, run: Callable[[], list[Any]], callback: Callback, user_data: Any) -> None:
        try:
            results, problem = run(), ""
        except errors.OnnxRuntimeError as error:
            results, problem = [], error.message
        except Exception as error:  # whatever it is, only the callback can tell the caller
            results, problem = [], str(error)
        try:
            callback(results, user_data, problem)
        except Exception as error:
            self._logger.error(f"The callback of run_async raised {type(error).__name__}: {error}", "session")
