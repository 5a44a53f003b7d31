"""Parts of a plan: only what some of its outputs need."""

from __future__ import annotations

from dataclasses import replace

from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.plan import ABSENT, Plan, Step


def needed_for(plan: Plan, outputs: tuple[int, ...]) -> Plan:
    """The plan that gives `outputs` (slots, in order, repetitions allowed) with no step that they do not need."""
    wanted = set(outputs)
    kept: list[Step] = []
    for step in reversed(plan.steps):
        if wanted.intersection(step.outputs):
            step = _part_of(step, wanted)
            kept.append(step)
            wanted.update(slot for slot in step.inputs if slot != ABSENT)
    kept.reverse()
    return replace(plan, steps=_with_releases(kept, {*outputs, *plan.constants}), outputs=outputs)


def _part_of(step: Step, wanted: set[int]) -> Step:
    """The step without what it does for other outputs than those wanted; only a segment can be divided."""
    places = [place for place, slot in enumerate(step.outputs) if slot in wanted]
    if not isinstance(step.call, NativeSegment) or len(places) == len(step.outputs):
        return step
    call, inputs = step.call.restricted(places)
    return replace(
        step,
        call=call,
        inputs=tuple(step.inputs[place] for place in inputs),
        outputs=tuple(step.outputs[place] for place in places),
    )


def _with_releases(steps: list[Step], stay: set[int]) -> tuple[Step, ...]:
    """Each step with the slots that none after it touches, except those that stay."""
    later: set[int] = set(stay)
    result: list[Step] = []
    for step in reversed(steps):
        touched = dict.fromkeys(slot for slot in (*step.inputs, *step.outputs) if slot != ABSENT)
        result.append(replace(step, release=tuple(slot for slot in touched if slot not in later)))
        later.update(touched)
    return tuple(reversed(result))
