"""Taking turns: how several engines in one process are timed against each other.

Each in turn makes one run that does not count (it wakes the threads and fills the caches, which is nothing to runs
that are long themselves), then timed runs for a while. Between turns everybody sleeps, until the last engine's threads
have stopped spinning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Result = TypeVar("Result")


@dataclass(frozen=True)
class Budget:
    """How long to measure: at least `runs` timed runs of each engine if that is given, else `seconds` of them."""

    seconds: float = 3.0
    runs: int = 0
    turn_seconds: float = 0.25
    pause_seconds: float = 0.1
    minimum_runs: int = 3
    long_run_seconds: float = 0.5  # runs of at least this length need none before them, but for the very first

    def needs_waking(self, samples: list[float]) -> bool:
        """Whether a turn begins with a run that does not count."""
        return not samples or samples[-1] < self.long_run_seconds

    def is_spent(self, samples: list[float]) -> bool:
        if self.runs:
            return len(samples) >= self.runs
        return sum(samples) >= self.seconds and len(samples) >= self.minimum_runs


def timed(function: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds of a call, and its result."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def take_turns(runners: Mapping[str, Callable[[], object]], budget: Budget) -> dict[str, list[float]]:
    """Seconds of every timed run of every runner."""
    samples: dict[str, list[float]] = {name: [] for name in runners}
    while not all(budget.is_spent(taken) for taken in samples.values()):
        for name, runner in runners.items():
            if budget.is_spent(samples[name]):
                continue
            time.sleep(budget.pause_seconds)
            if budget.needs_waking(samples[name]):
                runner()
            turn_end = time.perf_counter() + budget.turn_seconds
            while True:
                samples[name].append(timed(runner)[0])
                if time.perf_counter() >= turn_end:
                    break
    return samples


def looped(function: Callable[[], object], count: int) -> Callable[[], None]:
    """A runner that makes `count` calls: for calls too short to be timed one by one."""

    def run() -> None:
        for _ in range(count):
            function()

    return run


def difference(outputs: list[np.ndarray], reference: list[np.ndarray]) -> tuple[float, float]:
    """Largest absolute difference, and the largest one relative to the output's largest magnitude."""
    absolute = relative = 0.0
    for found, wanted in zip(outputs, reference, strict=True):
        if found.shape != wanted.shape:
            return float("inf"), float("inf")
        if not found.size:
            continue
        gap = float(np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max())
        gap = gap if np.isfinite(gap) else float("inf")
        absolute = max(absolute, gap)
        relative = max(relative, gap / (float(np.abs(wanted).max()) or 1.0))
    return absolute, relative
