"""Whole sessions whose kernels run on AArch64: what is chosen for that machine, packed for it and computed by it."""

from __future__ import annotations

from typing import Any

import pytest

import sardonyx as ort
from sardonyx.compiler import native_resources
from sardonyx.compiler.binding import Binder, Bound
from sardonyx.compiler.llvm import library, target
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.native import native_segment, rounds
from sardonyx.runtime.native.native_segment import NativeSegment, ReadyPlan
from sardonyx.runtime.threads.thread_pool import FINISHED
from tests.api.test_kernel_variants import by_numpy, check_close
from tests.compiler.aarch64.machine import emulated, missing, neon
from tests.compiler.aarch64.plans import run_plan, run_rounds
from tests.compiler.small_models import SMALL_MODELS, Array

pytestmark = [
    pytest.mark.names_targets,
    pytest.mark.skipif(bool(missing()), reason=f"AArch64 is not emulated: {missing()}"),
]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sessions of the test take the emulated machine for this one; the kernels of every plan that was run there."""
    arrays: dict[int, Array] = {}
    bounds: dict[int, Bound] = {}
    ran: list[str] = []
    finish = Binder.finish

    def finished(binder: Binder, *arguments: Any) -> Bound:
        bound = finish(binder, *arguments)
        bounds[id(bound.plan)] = bound
        return bound

    def bound_of(ready: ReadyPlan) -> Bound:
        """A plan with its steps; one that was made by the outline of another is no work of a binder."""
        return bounds[id(ready.plan)] if ready.source is None else ready.source.bound

    real = native_segment.address_of

    def noted(array: Array) -> int:
        arrays[real(array)] = array
        return real(array)

    def run(segment: NativeSegment, ready: ReadyPlan, addresses: list[int], context: RunContext) -> None:
        bound = bound_of(ready)
        assert run_plan(bound, [arrays[address] for address in addresses]) == FINISHED
        ran.extend(step.kernel for step in bound.steps)

    def repeat(table: rounds._Table, segment: NativeSegment, code: object, context: RunContext) -> rounds.Outcome:
        assert not table._ready.faults
        bound = bound_of(table._ready)
        places = [place for pair in table._places for place in pair]
        status, done = run_rounds(bound, table._moves, [*table._kept, *places], table._condition, table._count)
        assert status == FINISHED
        ran.append(f"{done} rounds")
        return table._outcome(done)

    monkeypatch.setattr(target, "host_targets", lambda: {"neon": neon()})
    monkeypatch.setattr(library, "_LIBRARIES", {(purpose, neon().key): emulated() for purpose in ("models", "runtime")})
    monkeypatch.setattr(native_resources, "_result_pool", lambda kernels: None)
    monkeypatch.setattr(native_resources, "ask_for", lambda kernels, names: [])  # some call more of the system
    monkeypatch.setattr(native_segment, "address_of", noted)
    monkeypatch.setattr(NativeSegment, "_run", run)
    monkeypatch.setattr(Binder, "finish", finished)
    monkeypatch.setattr(rounds._Table, "run", repeat)
    return ran


def session_of(name: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.enable_cpu_mem_arena = False  # the short ways into native code call it in this process
    model = SMALL_MODELS[name].model.SerializeToString()
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", list(SMALL_MODELS))
def test_sessions_compute_what_numpy_does(name: str, runs: list[str]) -> None:
    small, session = SMALL_MODELS[name], session_of(name)
    for sizes, expected in zip(small.sizes, by_numpy(name), strict=True):
        runs.clear()
        check_close(name, session.run(None, small.inputs(sizes)), expected)
        assert runs


def test_loops_are_repeated_by_native_code(runs: list[str]) -> None:
    session_of("loops").run(None, SMALL_MODELS["loops"].inputs({"n": 7}))
    assert {"5 rounds", "7 rounds"} <= set(runs)
