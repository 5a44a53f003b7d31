"""The thread pool: threads that run native plans together, the caller of a run being one of them.

Workers enter the native function `work` and stay there, without the interpreter's lock: they spin for a while after a
run, then sleep until the next one. A run that finds the thread pool busy is done by its caller alone, so nobody waits
for another session, and nothing can deadlock. Thread pools of the same kind are shared by the sessions of the process,
which therefore do not fight for cores; a thread pool whose threads a caller's functions make belongs to one session.

onnxruntime's pool for nodes side by side (inter_op) has no counterpart of its own: steps between two barriers are
independent of each other and are claimed by the one thread pool, whose size the caller chooses
(`processors.thread_pool_size`).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from sardonyx.runtime.memory.execution_contexts import ExecutionContext
from sardonyx.runtime.native_plan import NativePlan
from sardonyx.runtime.threads import interrupts
from sardonyx.runtime.threads.thread_pool_options import ExecutorCode, ThreadPoolOptions
from sardonyx.runtime.threads.thread_pool_words import MemberField
from sardonyx.runtime.threads.worker_threads import WorkerThreads

__all__ = ["FINISHED", "TERMINATED", "ExecutorCode", "ThreadPool", "ThreadPoolOptions", "shared_thread_pool"]

FINISHED, TERMINATED = 0, 1  # what a run returns

# thread pool, plan, execution context, external addresses, times, terminate; released lock: other Python threads go on
# meanwhile
_RUN = ctypes.CFUNCTYPE(
    ctypes.c_int64,
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
)  # fmt: skip


class ThreadPool:
    """Runs native plans with up to `threads` threads; the workers start with the first run that has use for them.

    Any number of Python threads may call `run` at the same time.
    """

    def __init__(self, code: ExecutorCode, options: ThreadPoolOptions) -> None:
        self.options = options
        self.threads = options.threads  # fewer where the system gives no more
        self._code = code
        self._run: Callable[..., int] = _RUN(code.run)
        self._lock = threading.Lock()
        self._worker_threads: WorkerThreads | None = None
        self._address = 0  # of the worker threads' words; 0 while every run is the caller's alone
        self._is_ready = options.threads == 1
        self._finalizer: Any = None
        _THREAD_POOLS.add(self)

    def run(
        self,
        plan: NativePlan,
        execution_context: ExecutionContext,
        addresses: Sequence[int],
        times: int = 0,
        terminate: int = 0,
    ) -> int:
        """Run a plan in an execution context; `FINISHED`, or `TERMINATED` where the terminate flag was seen before it
        was done.

        addresses: of the external inputs and outputs, the plan's bases without the arena.
        times: address of int64[steps + 1], which takes the `time.monotonic_ns` at the start of each step, as the
            caller's thread sees it, and at the end; 0 for none.
        terminate: address of the words of `interrupts.StopField`, whose flag another thread may set; 0 for none.

        Long runs of the main thread raise what the handler of a signal raises meanwhile, such as KeyboardInterrupt.
        """
        return self.run_packed(plan, execution_context, plan.pack(*addresses), times, terminate)

    def run_packed(
        self,
        plan: NativePlan,
        execution_context: ExecutionContext,
        addresses: bytes | int,
        times: int = 0,
        terminate: int = 0,
    ) -> int:
        """`run` with the addresses as ``plan.pack(...)`` gives them, or the address of an int64 array of them."""
        if execution_context.plan is not plan or execution_context.threads < self.threads:
            execution_context.prepare(plan, self.threads)
        if not self._is_ready and plan.width > 1:
            self.start()
        watch = self.watch if plan.is_long else None
        if watch is None:
            return self._run(self._address, plan.address, execution_context.address, addresses, times, terminate)
        given = self._address, plan.address, execution_context.address, addresses, times, terminate
        return watch.run(watch.address, self._code.run, *given)

    @property
    def watch(self) -> interrupts.Watch | None:
        """By which long runs notice signals; None where the system has none."""
        return interrupts.watch(self._code.watch, self._code.owner)

    def start(self) -> None:
        """Start the workers, if they are not there; fewer than wished for where the system refuses more.

        `errors.Fail` where a callback that shall make one fails.
        """
        with self._lock:
            if self._is_ready:
                return
            worker_threads = WorkerThreads(self._code, self.options)
            self.threads = worker_threads.threads
            if worker_threads.threads > 1:
                self._worker_threads, self._address = worker_threads, worker_threads.address
                self._finalizer = weakref.finalize(self, worker_threads.dismiss)
                self._finalizer.atexit = False  # `_stop_all` does it, and waits
            self._is_ready = True

    def close(self) -> WorkerThreads | None:
        """End the workers, which are returned; later runs, and the rest of one in progress, are their callers'."""
        with self._lock:
            self._is_ready = True
            if not self._address:
                return None
            self._address = 0
            self._finalizer.detach()
        worker_threads = self._worker_threads  # stays, as a run in progress uses its memory
        assert worker_threads is not None
        worker_threads.dismiss()
        return worker_threads

    @property
    def run_address(self) -> int:
        """The executor's function, for native callers."""
        return self._code.run

    @property
    def shared_memory(self) -> tuple[int, object]:
        """The address that the executor takes for this thread pool (0: the caller runs alone), and what keeps it
        valid."""
        return self._address, self._worker_threads

    @property
    def workers(self) -> tuple[threading.Thread, ...]:
        """The worker threads that the thread pool has now, without those that callbacks made."""
        worker_threads = self._worker_threads
        return tuple(worker_threads.workers) if worker_threads is not None and self._address else ()

    def column(self, field: MemberField) -> list[int]:
        """What is noted of each thread, the caller's first; nothing before there are workers."""
        return [] if self._worker_threads is None else self._worker_threads.column(field)

    def _forget_workers(self) -> None:
        """In a forked child, which has none of its parent's threads: start anew with the next run."""
        self._lock = threading.Lock()
        if self._address:
            self._finalizer.detach()
            self._worker_threads, self._address = None, 0
            self.threads, self._is_ready = self.options.threads, False


_THREAD_POOLS: weakref.WeakSet[ThreadPool] = weakref.WeakSet()
_SHARED: weakref.WeakValueDictionary[tuple[ExecutorCode, ThreadPoolOptions], ThreadPool] = weakref.WeakValueDictionary()
_SHARED_LOCK = threading.Lock()


def shared_thread_pool(code: ExecutorCode, options: ThreadPoolOptions) -> ThreadPool:
    """The process's thread pool of a kind. It ends when the last one who holds it lets go."""
    key = (code, options)
    with _SHARED_LOCK:
        thread_pool = _SHARED.get(key)
        if thread_pool is None:
            thread_pool = _SHARED[key] = ThreadPool(code, options)
        return thread_pool


def _after_fork() -> None:
    global _SHARED_LOCK
    _SHARED_LOCK = threading.Lock()
    for thread_pool in tuple(_THREAD_POOLS):
        thread_pool._forget_workers()


def _stop_those_of_callbacks() -> None:
    """Before the interpreter waits for its threads, of which callbacks may have made some that only end when told."""
    for thread_pool in tuple(_THREAD_POOLS):
        if thread_pool.options.hooks is not None:
            thread_pool.close()


@atexit.register
def _stop_all() -> None:
    """Before the interpreter goes, with the code and the memory that workers use."""
    all_worker_threads = [
        worker_threads for thread_pool in tuple(_THREAD_POOLS) if (worker_threads := thread_pool.close()) is not None
    ]
    for worker_threads in all_worker_threads:
        worker_threads.join()


# What comes before the end of other threads has no public name; without it they would have to be daemons.
_at_threading_exit = getattr(threading, "_register_atexit", None)
if _at_threading_exit is not None:
    with contextlib.suppress(RuntimeError):  # imported after that moment
        _at_threading_exit(_stop_those_of_callbacks)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
