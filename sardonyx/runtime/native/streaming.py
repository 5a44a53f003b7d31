"""Runs a plan and hands over each of its outputs as soon as no step writes it any more, before the run has ended.

A host step's results are final when it returns; those of a native segment where a stage of its plan ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import execute
from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.plan import Plan, Step, Value

# Takes the place of one of the plan's outputs and a list of the value alone. As with the results of `execute`, others
# may still hold its memory: the taker decides what to copy.
Taker = Callable[[int, list[Value]], None]


def execute_streamed(plan: Plan, context: RunContext, inputs: Sequence[Value], take: Taker) -> None:
    """`execute`, which gives each output to `take` as soon as it is final; with it come those that no step makes."""
    outlet = _Outlet(plan, take)
    made = {slot for step in plan.steps for slot in step.outputs}
    given = dict(plan.constants) | dict(zip(plan.inputs, inputs, strict=True))
    for slot in outlet.places.keys() - made:
        outlet.give(slot, [given.get(slot)])
    steps = tuple([outlet.attached(index, step) for index, step in enumerate(plan.steps)])
    execute(replace(plan, steps=steps), context, inputs)


class _Outlet:
    """Where the outputs of one run leave it."""

    def __init__(self, plan: Plan, take: Taker) -> None:
        self.places: dict[int, list[int]] = {}  # of each slot among the plan's outputs
        for place, slot in enumerate(plan.outputs):
            self.places.setdefault(slot, []).append(place)
        self._last_reader = {slot: index for index, step in enumerate(plan.steps) for slot in step.inputs}
        self._take = take

    def give(self, slot: int, held: list[Value]) -> None:
        """Hand over the value of a slot, which `held` has alone: as many times as it is asked for."""
        *others, last = self.places[slot]
        for place in others:
            self._take(place, list(held))
        self._take(last, held)

    def attached(self, index: int, step: Step) -> Step:
        """The step, which gives its outputs to this outlet where any of them is one of the plan's."""
        wanted = [place for place, slot in enumerate(step.outputs) if slot in self.places]
        if not wanted:
            return step
        call = self._run_staged if isinstance(step.call, NativeSegment) else self._run
        return replace(step, call=partial(call, index, step, wanted))

    def _run_staged(
        self, index: int, step: Step, wanted: Sequence[int], context: RunContext, inputs: Sequence[Value]
    ) -> Sequence[Value]:
        segment: Any = step.call

        def tell(place: int, outputs: list[Value], is_read: bool) -> None:
            self._give(index, step, place, outputs, is_read)

        return segment.staged(context, inputs, wanted, tell)  # type: ignore[no-any-return]

    def _run(
        self, index: int, step: Step, wanted: Sequence[int], context: RunContext, inputs: Sequence[Value]
    ) -> Sequence[Value]:
        outputs = list(step.call(context, inputs))
        for place in wanted:
            if place < len(outputs):
                # A profile tells of the outputs when the step has returned.
                self._give(index, step, place, outputs, context.trace is not None)
        return outputs

    def _give(self, index: int, step: Step, place: int, outputs: list[Value], stays: bool) -> None:
        """Hand over an output of a step: out of its list, unless it `stays` there or later steps read it."""
        slot = step.outputs[place]
        held = [outputs[place]]
        if not stays and self._last_reader.get(slot, index) <= index:
            outputs[place] = None
        self.give(slot, held)
