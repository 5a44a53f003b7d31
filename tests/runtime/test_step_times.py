"""Times of steps, kept in place of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import execute
from sardonyx.runtime.plan import Plan, Slot, Step
from sardonyx.runtime.step_times import StepTimes


def test_every_run_of_a_step_is_kept() -> None:
    def double(context: RunContext, inputs: Sequence[Any]) -> list[Any]:
        return [2 * inputs[0]]

    steps = tuple(Step(f"step {i}", "Double", "CPU", "host", (i,), (i + 1,), double) for i in range(2))
    plan = Plan(tuple(Slot(str(i)) for i in range(3)), (0,), (2,), {}, steps)
    times = StepTimes()
    for _ in range(3):
        assert execute(plan, RunContext(trace=times), [np.float32(1)]) == [4]
    assert [step for step, _ in times.steps.values()] == list(steps)
    assert all(len(taken) == 3 and min(taken) >= 0 for _, taken in times.steps.values())
    assert times.plans == {}


def test_native_steps_last_until_the_next_one_begins() -> None:
    times = StepTimes()
    plan = object()
    times.segment(plan, list, np.array([100, 130, 130, 190]))
    times.segment(plan, list, np.array([5, 4, 10, 11]))
    ((kept, runs),) = times.plans.values()
    assert kept is plan
    np.testing.assert_array_equal(runs, [[30, 0, 60], [0, 6, 1]])


def test_there_is_no_file() -> None:
    assert StepTimes().write() == ""
