"""What the native steps of one session share: kernels, a thread pool, arenas, memory of results, ways in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.llvm.library import Array, KernelLibrary, kernels_made, library
from sardonyx.compiler.llvm.runtime_functions import ask_for, runtime_functions
from sardonyx.runtime.memory import address_space
from sardonyx.runtime.memory.constant_memory import HeldConstant
from sardonyx.runtime.memory.execution_contexts import ExecutionContextPool
from sardonyx.runtime.memory.memory import applied_limit
from sardonyx.runtime.memory.result_pool import PoolCode, ResultPool, result_pool
from sardonyx.runtime.memory.shared_arena import environment_execution_contexts
from sardonyx.runtime.native.fast_call import CallCode
from sardonyx.runtime.native.native_segment import NativeSegment, ReadyPlan, Shapes
from sardonyx.runtime.native.waits import Waits
from sardonyx.runtime.settings import RunSettings
from sardonyx.runtime.threads.processors import default_threads, parse_affinities, thread_pool_size
from sardonyx.runtime.threads.thread_pool import ExecutorCode, ThreadPool, ThreadPoolOptions, shared_thread_pool
from sardonyx.runtime.threads.thread_pool_options import Idling

# Functions of the runtime, by what needs them.
_EXECUTOR = ("run", "work", "stop")
_CALL = ("call arrays", "call bound")
_POOL = ("take result", "give result", "release results")


class NativeResources:
    """Made once for a session."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        address_space.is_scarce()  # before any thread starts, each of which would get a reserve
        self.library = library(settings.kernels)
        self._runtime = library(settings.kernels, "runtime")
        compile_threads = _compile_threads(settings)
        for kernels in (self.library, self._runtime):
            kernels.begin(compile_threads)
        ask_for(self._runtime, (*_EXECUTOR, *(_POOL if _has_pool() else ()), *_CALL))
        self.thread_pool: ThreadPool = shared_thread_pool(_executor(self._runtime), thread_pool_options(settings))
        if settings.hooks is not None:  # who makes threads hears when the session is made, also what is wrong
            self.thread_pool.start()
        shared = environment_execution_contexts() if settings.shares_arena else None
        own = ExecutionContextPool(self.thread_pool.threads, None if settings.keeps_arena else 0, applied_limit())
        self.execution_contexts = own if shared is None else shared
        self.results = _result_pool(self._runtime)
        self.waits = Waits(kernels_made)

    def segment(
        self,
        make_plan: Callable[[Shapes, Sequence[Array]], ReadyPlan],
        dtypes: Sequence[np.dtype[Any]],
        names: Sequence[str],
        steering_places: Sequence[int],
        restricted: Callable[[Sequence[int]], tuple[NativeSegment, Sequence[int]]],
        held: Callable[[], Iterable[HeldConstant]] | None = None,
    ) -> NativeSegment:
        """A segment that runs on them; the arguments are those of `NativeSegment`."""
        resources = self.thread_pool, self.execution_contexts, self._call_code, self.results
        keeps = self.settings.keeps_plans
        return NativeSegment(make_plan, dtypes, names, steering_places, *resources, restricted, held, keeps, self.waits)

    def release_memory(self) -> None:
        """Give the arenas that no run uses back to the system."""
        self.execution_contexts.shrink()

    def end_session(self) -> None:
        """End the threads and give back the arenas that are the session's own."""
        if self.settings.hooks is not None and not self.settings.hooks.shared:
            self.thread_pool.close()
        if not self.settings.shares_arena:
            self.execution_contexts.shrink()

    def _call_code(self) -> CallCode:
        arrays, bound = runtime_functions(self._runtime, _CALL)
        return CallCode(arrays, bound, lambda: runtime_functions(self._runtime, ("chain",))[0])


def _compile_threads(settings: RunSettings) -> int:
    """How many compile beside who makes a session: none on one core, where they would only take turns."""
    if settings.compile_threads is not None:
        return settings.compile_threads
    threads = default_threads()
    return threads if threads > 1 else 0


def _executor(runtime: KernelLibrary) -> ExecutorCode:
    """The executor; what notices signals is loaded when a long run begins."""
    run, work, stop = runtime_functions(runtime, _EXECUTOR)
    return ExecutorCode(run, work, stop, runtime, lambda: runtime_functions(runtime, ("interrupts",))[0])


def _result_pool(library: KernelLibrary) -> ResultPool | None:
    """The process's pool of results; none where the system lacks the allocator that it calls."""
    return result_pool(PoolCode(*runtime_functions(library, _POOL))) if _has_pool() else None


def _has_pool() -> bool:
    return os.name == "posix"


def thread_pool_options(settings: RunSettings) -> ThreadPoolOptions:
    """The kind of thread pool that a session asks for."""
    affinities = parse_affinities(settings.affinities) if settings.affinities else ()
    threads = thread_pool_size(settings.threads, settings.branches, parallel=settings.branches != 1 and not affinities)
    return ThreadPoolOptions(
        threads,
        added=threads - thread_pool_size(settings.threads),
        added_idling=Idling(settings.branch_spin, _seconds(settings.branch_spin_us), settings.branch_backoff),
        backoff=settings.backoff,
        blocks=settings.blocks,
        hooks=settings.hooks,
        spinning=settings.spin,
        spin_seconds=_seconds(settings.spin_us),
        stop_after_run=settings.spin_stops,
        affinities=affinities,
    )


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6
