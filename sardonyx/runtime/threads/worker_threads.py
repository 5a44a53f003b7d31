"""The workers of a thread pool: threads of Python, or of callbacks, in native code until the thread pool is stopped."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

from sardonyx import errors
from sardonyx.log import Logger
from sardonyx.runtime.memory.execution_contexts import Memory
from sardonyx.runtime.threads.processors import available_processors
from sardonyx.runtime.threads.thread_pool_options import ExecutorCode, ThreadHooks, ThreadPoolOptions
from sardonyx.runtime.threads.thread_pool_words import MemberField, ThreadPoolField, row_of, thread_pool_words

# How a thread waits at a barrier: turns of spinning, and of giving way to others, before it sleeps. Where threads have
# to share cores or may not spin, both only take time from those that work.
_PATIENCE, _YIELDS = 2000, 64
_PATIENCE_IN_A_CROWD, _YIELDS_IN_A_CROWD = 50, 0
_JOIN_SECONDS = 2.0  # how long the end of the process waits for a worker that still computes

_WORK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
_STOP = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)

_LOGGER = Logger("runtime")


class WorkerThreads:
    """The workers of a thread pool and the memory that they share; it lives as long as any of them."""

    def __init__(self, code: ExecutorCode, options: ThreadPoolOptions) -> None:
        """Start the workers: fewer than wished for where the system refuses more.

        `errors.Fail` where a callback that makes threads raises, or gives no handle; none is left then.
        """
        self._count = thread_pool_words(options.threads)
        self._memory = Memory(8 * self._count, "a thread pool")
        self.address = self._memory.address
        self._stop = _STOP(code.stop)
        self._options = options
        words = self._memory.words(self._count)
        crowded = not options.spinning or options.threads > len(available_processors())
        words[ThreadPoolField.PATIENCE] = _PATIENCE_IN_A_CROWD if crowded else _PATIENCE
        words[ThreadPoolField.YIELDS] = _YIELDS_IN_A_CROWD if crowded else _YIELDS
        words[ThreadPoolField.THREADS] = 1
        words[ThreadPoolField.ROAMS] = int(not options.affinities)
        words[ThreadPoolField.BLOCKS] = options.blocks
        for number in range(options.threads):
            words[row_of(number) + MemberField.PROCESSOR] = -1
        for number in range(1, options.threads):
            idling = options.idling(number)
            words[row_of(number) + MemberField.SPIN] = idling.nanoseconds
            words[row_of(number) + MemberField.BACKOFF] = max(1, idling.backoff)
        self.workers: list[threading.Thread] = []
        self.handles: list[Any] = []  # what callbacks gave for the threads that they made
        if options.hooks is None:
            self._start(code)
        else:
            self._create(code, options.hooks)
        words[ThreadPoolField.THREADS] = 1 + len(self.workers) + len(self.handles)

    @property
    def threads(self) -> int:
        """How many threads the thread pool has with its caller."""
        return 1 + len(self.workers) + len(self.handles)

    def column(self, field: MemberField) -> list[int]:
        """A word of each thread, the caller's first."""
        words = self._memory.words(self._count)
        return [words[row_of(number) + field] for number in range(self._options.threads)]

    def _start(self, code: ExecutorCode) -> None:
        for number in range(1, self._options.threads):
            worker = threading.Thread(
                target=_live,
                args=(self._memory, code, number, self._options),
                name=f"sardonyx-worker-{number}",
                daemon=True,
            )
            try:
                worker.start()
            except RuntimeError as error:  # "can't start new thread"
                _LOGGER.warning(
                    f"thread pool: {number} instead of {self._options.threads} threads: {error}", "thread_pool"
                )
                break
            self.workers.append(worker)

    def _create(self, code: ExecutorCode, hooks: ThreadHooks) -> None:
        for number in range(1, self._options.threads):
            try:
                handle = hooks.create(hooks.options, self._work_of(code, number))
                problem = "returned invalid handle: None" if handle is None else ""
            except Exception as error:
                handle, problem = None, f"raised {type(error).__name__}: {error}"
                cause: Exception | None = error
            else:
                cause = None
            if problem:
                self.stop()
                self.join()
                raise errors.Fail(
                    f"custom_create_thread_fn {problem} (worker {number} of {self._options.threads - 1}): "
                    "it must start a thread that calls the function it is given, and return a handle for it"
                ) from cause
            self.handles.append(handle)

    def _work_of(self, code: ExecutorCode, number: int) -> Callable[[], None]:
        """What the thread of a worker calls: it returns when the thread pool is stopped."""
        creator = threading.get_ident()
        memory, options = self._memory, self._options

        def work() -> None:
            if threading.get_ident() == creator:
                raise RuntimeError(
                    "the work of a thread was called by the thread that shall create it: call it in a new one"
                )
            _live(memory, code, number, options)

        return work

    def stop(self) -> None:
        """Let the workers leave; those who work finish the chunk that they are in."""
        self._stop(self.address)

    def join(self) -> None:
        """Wait for the end of the workers: through the callback those that callbacks made, a while for the others."""
        hooks = self._options.hooks
        handles, self.handles = self.handles, []
        for handle in handles:
            assert hooks is not None
            try:
                hooks.join(handle)
            except Exception as error:
                _LOGGER.error(f"custom_join_thread_fn raised {type(error).__name__}: {error}", "thread_pool")
        for worker in self.workers:
            if worker is not threading.current_thread():
                worker.join(_JOIN_SECONDS)

    def dismiss(self) -> None:
        """Let the workers leave when nobody needs them any more. Threads that callbacks made are waited for."""
        self.stop()
        if self.handles:
            self.join()


def _live(memory: Memory, code: ExecutorCode, number: int, options: ThreadPoolOptions) -> None:
    """What a worker does; it keeps the memory and the code, which it uses until it leaves."""
    if options.affinities:
        try:
            os.sched_setaffinity(0, options.affinities[number - 1])
        except (AttributeError, OSError, ValueError) as error:
            processors = sorted(options.affinities[number - 1])
            _LOGGER.warning(f"worker {number} cannot be bound to processors {processors}: {error}", "thread_pool")
    if options.on_start is not None:
        try:
            options.on_start(number)
        except Exception as error:
            _LOGGER.error(
                f"the start callback of worker {number} raised {type(error).__name__}: {error}", "thread_pool"
            )
    _WORK(code.work)(memory.address, number)
