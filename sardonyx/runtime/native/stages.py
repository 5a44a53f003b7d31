"""A native plan in stages, each of which ends where outputs are final: they can be handed over before the next begins.

The stages are plans of their own that run one after the other in one execution context. So a run that hands over
nothing before its end has no stages, and does nothing for them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.native_plan import NativePlan, StepColumn


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps of a plan, the `first` of them and those behind it; afterwards the outputs at the places `final` are final.

    Later steps go on reading those among them that are in `read_on`.
    """

    plan: NativePlan
    first: int
    final: tuple[int, ...]
    read_on: frozenset[int]


def last_uses(plan: NativePlan, bases: Mapping[int, int]) -> dict[int, int]:
    """The last step that touches the memory at each of these bases, by whatever stands for them; -1: none does."""
    begins = plan.steps[:, StepColumn.ARGUMENTS]
    order = np.argsort(begins, kind="stable")
    words, used = plan.fixups[:, 0], plan.fixups[:, 1]
    return {
        key: int(order[np.searchsorted(begins[order], words[used == base], "right") - 1].max(initial=-1))
        for key, base in bases.items()
    }


def in_stages(plan: NativePlan, writers: Mapping[int, int], uses: Mapping[int, int]) -> tuple[Stage, ...]:
    """The plan in stages, where `writers` tells the last step that writes the output at a place, `uses` the last one
    that touches it."""
    count = len(plan.steps)
    ends = {place: min(count, max(writer, 0) + 1) for place, writer in writers.items()}
    stages = []
    first = 0
    for end in sorted({*ends.values(), count}):
        final = tuple([place for place, own in ends.items() if own == end])
        read_on = frozenset(place for place in final if uses[place] >= end)
        stages.append(Stage(plan.part(first, end), first, final, read_on))
        first = end
    return tuple(stages)
