"""What the native steps of one session share: kernels, a thread team, arenas, memory of results, ways in."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.llvm.kernels.engine.call import emit_call
from sardonyx.compiler.llvm.kernels.engine.chain import emit_chain
from sardonyx.compiler.llvm.kernels.engine.executor import executor_code
from sardonyx.compiler.llvm.kernels.engine.result_pool import emit_result_pool
from sardonyx.compiler.llvm.library import Array, KernelLibrary, library
from sardonyx.runtime.fast_call import CallCode
from sardonyx.runtime.lanes import LanePool
from sardonyx.runtime.native_segment import NativeSegment, ReadyPlan, Shapes
from sardonyx.runtime.processors import parse_affinities, team_size
from sardonyx.runtime.result_pool import PoolCode, ResultPool, result_pool
from sardonyx.runtime.settings import RunSettings
from sardonyx.runtime.team import TeamOptions, ThreadTeam, shared_team


class NativeResources:
    """Made once for a session."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.library = library(settings.kernels)
        self.library.progress.begin()
        self._runtime = library(settings.kernels, "runtime")
        self.team: ThreadTeam = shared_team(executor_code(self._runtime), _team_options(settings))
        self.lanes = LanePool(self.team.threads, None if settings.keeps_arena else 0)
        self.results = _result_pool(self._runtime)

    def segment(
        self,
        make_plan: Callable[[Shapes, Sequence[Array]], ReadyPlan],
        dtypes: Sequence[np.dtype[Any]],
        names: Sequence[str],
        steering_places: Sequence[int],
        restricted: Callable[[Sequence[int]], tuple[NativeSegment, Sequence[int]]],
    ) -> NativeSegment:
        """A segment that runs on them; the arguments are those of `NativeSegment`."""
        resources = self.team, self.lanes, self._call_code, self.results
        return NativeSegment(make_plan, dtypes, names, steering_places, *resources, restricted)

    def release_memory(self) -> None:
        """Give the arenas that no run uses back to the system."""
        self.lanes.shrink()

    def _call_code(self) -> CallCode:
        arrays, bound = (self._runtime.address(emit_call, (form,)) for form in ("arrays", "bound"))
        return CallCode(arrays, bound, lambda: self._runtime.address(emit_chain, ()))


def _result_pool(library: KernelLibrary) -> ResultPool | None:
    """The process's pool of results; none where the system lacks the allocator that it calls."""
    if os.name != "posix":
        return None
    take, give, release = (library.address(emit_result_pool, (part,)) for part in ("take", "give", "release"))
    return result_pool(PoolCode(take, give, release))


def _team_options(settings: RunSettings) -> TeamOptions:
    """The kind of team that a session asks for."""
    affinities = parse_affinities(settings.affinities) if settings.affinities else ()
    threads = team_size(settings.threads, settings.branches, parallel=settings.branches != 1 and not affinities)
    return TeamOptions(
        threads,
        spinning=settings.spin,
        spin_seconds=None if settings.spin_us is None else settings.spin_us / 1e6,
        stop_after_run=settings.spin_stops,
        affinities=affinities,
    )
