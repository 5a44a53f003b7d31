"""Plans of one compiled model: the whole one, and those cut down to what some of the outputs need."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sardonyx import errors
from sardonyx.runtime.forks import free_in_child
from sardonyx.runtime.plan import Plan
from sardonyx.runtime.plan_parts import needed_for

# Plans for subsets of the outputs; a caller asks for few different ones.
_MOST_PLANS = 64


class OutputPlans:
    """The plan of a model for whatever outputs are asked for; any number of threads may ask.

    What the plan was `made_from` lives as long.
    """

    def __init__(self, plan: Plan, output_names: Sequence[str], made_from: object) -> None:
        self.whole = plan
        self._made_from = made_from
        self._names = tuple(output_names)
        self._parts: dict[tuple[str, ...], Plan] = {}
        self._lock = free_in_child(threading.Lock())

    @property
    def plans(self) -> list[Plan]:
        """All that were made so far."""
        return [self.whole, *list(self._parts.values())]

    def of(self, names: tuple[str, ...]) -> Plan:
        """The plan for these outputs, in this order; InvalidArgument for an unknown name."""
        if names == self._names:
            return self.whole
        plan = self._parts.get(names)
        if plan is None:
            for name in names:
                if name not in self._names:
                    raise errors.InvalidArgument(f"Invalid output name:{name}")
            slots = dict(zip(self._names, self.whole.outputs, strict=True))
            plan = needed_for(self.whole, tuple(slots[name] for name in names))
            with self._lock:
                if len(self._parts) >= _MOST_PLANS:
                    self._parts.clear()
                self._parts[names] = plan
        return plan
