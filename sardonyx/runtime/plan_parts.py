"""Parts of a plan: only what some of its outputs need."""

from __future__ import annotations

from dataclasses import replace

from sardonyx.runtime.plan import ABSENT, Plan, Step


def needed_for(plan: Plan, outputs: tuple[int, ...]) -> Plan:
    """The plan that gives `outputs` (slots, in order, repetitions allowed) with no step that they do not need."""
    wanted = set(outputs)
    kept: list[Step] = []
    for step in reversed(plan.steps):
        if wanted.intersection(step.outputs):
            kept.append(step)
            wanted.update(slot for slot in step.inputs if slot != ABSENT)
    kept.reverse()
    return replace(plan, steps=_with_releases(kept, {*outputs, *plan.constants}), outputs=outputs)


def _with_releases(steps: list[Step], stay: set[int]) -> tuple[Step, ...]:
    """Each step with the slots that none after it touches, except those that stay."""
    later: set[int] = set(stay)
    result: list[Step] = []
    for step in reversed(steps):
        touched = dict.fromkeys(slot for slot in (*step.inputs, *step.outputs) if slot != ABSENT)
        result.append(replace(step, release=tuple(slot for slot in touched if slot not in later)))
        later.update(touched)
    return tuple(reversed(result))
