"""How long the steps of runs take: in place of a trace, for those who ask for times and not for a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.runtime.trace import Trace, Work

if TYPE_CHECKING:
    from sardonyx.runtime.plan import Step, Value


class StepTimes(Trace):
    """Collects nanoseconds; nothing is written.

    `plans` gives, for each native plan that ran, the times of its steps in every run of it; `steps` those of each step
    of the session's plan that ran by itself. Both are in the order in which they ran first.
    """

    def __init__(self) -> None:  # the base class would create the profile's file
        self.start_ns = time.monotonic_ns()
        self.pool = None
        self.plans: dict[int, tuple[Any, list[np.ndarray[Any, Any]]]] = {}
        self.steps: dict[int, tuple[Step, list[int]]] = {}

    def event(
        self, category: str, name: str, start: int, arguments: dict[str, Any] | None = None, end: int | None = None
    ) -> None:
        """Whole runs are not kept."""

    def segment(self, plan: Any, works: Callable[[], Sequence[Work]], times: np.ndarray[Any, Any]) -> None:
        """Keep what each step of a native plan took."""
        self.plans.setdefault(id(plan), (plan, []))[1].append(np.maximum(np.diff(times), 0))

    def step(
        self,
        step: Step,
        start: int,
        end: int,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        constants: Container[int],
    ) -> None:
        """Keep what a step took."""
        self.steps.setdefault(id(step), (step, []))[1].append(end - start)

    def write(self) -> str:
        """There is no file."""
        return ""
