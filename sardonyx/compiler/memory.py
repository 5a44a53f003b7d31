"""How much memory a plan's intermediate values need, and where each would lie in one arena.

Values that enter, leave or stay constant are not counted: callers and the model own them. A view shares the memory
of what it looks at, which therefore lives until the last reader of the view.
"""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.memory.arena_layout import ArenaLayout, Lifetime, lay_out
from sardonyx.runtime.plan import ABSENT, Plan


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The arena of a plan for given symbols; `unknown` are slots whose size only the run tells."""

    layout: ArenaLayout
    lifetimes: tuple[Lifetime, ...]
    unknown: tuple[int, ...]

    @property
    def without_reuse(self) -> int:
        """Bytes that the same buffers would take if none of them shared memory."""
        return sum(lifetime.nbytes for lifetime in self.lifetimes)


def plan_memory(plan: Plan, symbols: Mapping[str, int]) -> MemoryPlan:
    """Lay out the intermediate values of `plan` when its symbols have these values."""
    root = _storage_roots(plan)
    external = {root.get(slot, slot) for slot in (*plan.inputs, *plan.outputs, *plan.captures, *plan.constants)}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, step in enumerate(plan.steps):
        for slot in step.outputs:
            if slot != ABSENT and slot not in root:
                first[slot] = index
        for slot in (*step.inputs, *step.outputs):
            if slot != ABSENT:
                last[root.get(slot, slot)] = index
    lifetimes: list[Lifetime] = []
    unknown: list[int] = []
    for slot, start in first.items():
        if slot in external:
            continue
        nbytes = plan.slots[slot].nbytes(symbols)
        if nbytes is None:
            unknown.append(slot)
        elif nbytes:
            lifetimes.append(Lifetime(slot, start, last[slot], nbytes))
    return MemoryPlan(lay_out(lifetimes), tuple(lifetimes), tuple(unknown))


def _storage_roots(plan: Plan) -> dict[int, int]:
    """For the output of each view, the slot whose memory it shares."""
    root: dict[int, int] = {}
    for step in plan.steps:
        if step.kind == "view" and step.inputs and step.inputs[0] != ABSENT:
            source = step.inputs[0]
            for slot in step.outputs:
                if slot != ABSENT:
                    root[slot] = root.get(source, source)
    return root
