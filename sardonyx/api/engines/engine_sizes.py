"""Plans for the sizes of an engine's profiles, so that sessions of it need no compiler for any of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from sardonyx import errors
from sardonyx.api.building.built import Built
from sardonyx.api.engines.shape_profiles import Profile
from sardonyx.api.engines.size_ranges import Shapes, SizeRanges
from sardonyx.compiler.bound_plan import native_plans
from sardonyx.compiler.stored.constant_places import NotStorableError
from sardonyx.compiler.stored.sized_plans import SizedPlans
from sardonyx.compiler.stored.stored_program import StoredProgram
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.native.native_segment import PlanKey

# Told how many of so many sizes have a plan; whether to go on.
Tell = Callable[[int, int], bool]


@dataclass(frozen=True)
class Coverage:
    """Of so many `sizes` in the ranges of a profile, how many have a plan; `reason` says why others have none."""

    sizes: int
    covered: int
    reason: str = ""

    def __str__(self) -> str:
        if self.covered == self.sizes:
            return "its one size has a plan" if self.sizes == 1 else f"all {self.sizes:,} of it have plans"
        return (
            f"{self.covered:,} of {self.sizes:,} have plans, for others sessions compile the model in the engine: "
            f"{self.reason}"
        )

    def content(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return {"sizes": self.sizes, "covered": self.covered, "reason": self.reason}


class StoppedError(Exception):
    """Whoever was told of the plans does not want more."""


class SizePlanner:
    """Makes plans of a model that was built, of so many sizes at most, and for so many seconds of processor time.

    `tell` is told before each, and while the model is asked which sizes it takes.
    """

    def __init__(
        self, built: Built, program: StoredProgram, most: int, seconds: float, tell: Tell | None = None
    ) -> None:
        self.plans = SizedPlans()
        self._built, self._program = built, program
        self._left, self._until = most, time.thread_time() + seconds
        self._tell = tell or (lambda done, whole: True)

    def cover(self, profile: Profile, *, nearest: bool = False) -> Coverage:
        """Make plans for the sizes of a profile: all of them, or those `nearest` to the usual ones, which differ in one
        respect. StoppedError where whoever is told does not go on."""
        ranges = SizeRanges(profile, self._built.signature.inputs, self._takes)
        if ranges.is_one or not self._left:
            return Coverage(1 if ranges.is_one else ranges.count(), 1, "" if ranges.is_one else "none are asked for")
        sizes = ranges.count()
        chosen = ranges.nearest(self._left) if nearest else ranges.chosen(self._left)
        covered = refused = 0
        reason = ""
        for done, shapes in enumerate(chosen):
            if time.thread_time() >= self._until:
                reason = "they took too long to make"
                break
            if not self._tell(done, len(chosen)):
                raise StoppedError
            try:
                is_kept = self._make(shapes)
            except errors.OnnxRuntimeError:
                refused += 1
                continue
            if is_kept:
                covered += 1
            else:
                reason = "their tables or constants are too large, or contents of inputs decide over plans"
        self._left = max(0, self._left - covered)
        sizes = max(covered, sizes - refused)
        if covered < sizes and not reason:
            reason = "others are further from what was run" if nearest else "there are more than an engine may have"
        if covered and (open_steps := self._open_steps(chosen[0])):
            reason = f"{open_steps} of its {len(self._program.segments)} native steps have sizes that only a run tells"
        return Coverage(sizes, covered, reason)

    def bound_constants(self, shapes: Shapes, more: int) -> None:
        """Let plans bring along so many bytes of constants more than that for these shapes, which is made."""
        self._make(shapes)
        self.plans.most_constant_bytes = self.plans.constant_bytes + more

    def _takes(self, shapes: Shapes) -> bool:
        if not self._tell(0, 0):
            raise StoppedError
        try:
            native_plans(self._built.plan, shapes, keeps=False)
        except errors.OnnxRuntimeError:
            return False
        return True

    def _make(self, shapes: Shapes) -> bool:
        """Make the plans for inputs of these shapes; whether all of them are kept."""
        kept = True
        for (segment, given), ready in native_plans(self._built.plan, shapes, keeps=False).items():
            key = PlanKey(self._program.segments.index(segment), given)
            try:
                kept &= self.plans.add(key, ready)
            except NotStorableError:
                kept = False
        return kept

    def _open_steps(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """How many native steps have no plan that follows from the shapes of the inputs."""
        known = {segment for segment, _ in native_plans(self._built.plan, shapes, keeps=False)}
        return sum(segment not in known for segment in self._program.segments)
