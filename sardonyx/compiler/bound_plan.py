"""The native plans of a session's segments for given sizes, and what memory they need."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence

from sardonyx import errors
from sardonyx.compiler.binding import Bound, Buffer
from sardonyx.compiler.control_flow_call import ControlFlowCall
from sardonyx.runtime.memory.arena_layout import ALIGNMENT
from sardonyx.runtime.native.counted_call import CountedCall
from sardonyx.runtime.native.native_segment import BindingError, NativeSegment, ReadyPlan, Shapes
from sardonyx.runtime.plan import Plan, Step
from sardonyx.runtime.sizes import Symbol, evaluate


def symbols_of(plan: Plan, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The symbols that shapes of the plan's inputs, by name, give a number to."""
    found: dict[str, int] = {}
    for slot in plan.inputs:
        described = plan.slots[slot]
        for dim, size in zip(described.dims or (), shapes.get(described.name, ()), strict=False):
            if isinstance(dim, Symbol):
                found.setdefault(dim.name, size)
    return found


def native_plan(plan: Plan, step: Step, symbols: Mapping[str, int]) -> ReadyPlan | None:
    """The native plan of a segment, or None where a shape or contents that it depends on are known only in a run.

    The typed error of the node whose rule the sizes break.
    """
    assert isinstance(step.call, NativeSegment)
    if step.call.steering_places:
        return None
    shapes = _shapes(plan, step, symbols, {})
    return None if shapes is None else _made(step.call, shapes)


def native_plans(
    plan: Plan, shapes: Mapping[str, Sequence[int]], *, keeps: bool = True
) -> dict[tuple[NativeSegment, Shapes], ReadyPlan]:
    """The native plans that follow from shapes of the plan's inputs, by name; those of bodies, too, where they take
    these sizes. Unless it `keeps` them, new ones are not kept for runs. Errors are those of `native_plan`."""
    given = {slot: shapes[plan.slots[slot].name] for slot in plan.inputs if plan.slots[slot].name in shapes}
    return _native_plans(plan, symbols_of(plan, shapes), given, keeps)


def _native_plans(
    plan: Plan, symbols: Mapping[str, int], given: Mapping[int, Sequence[int]], keeps: bool
) -> dict[tuple[NativeSegment, Shapes], ReadyPlan]:
    found: dict[tuple[NativeSegment, Shapes], ReadyPlan] = {}
    for step in plan.steps:
        if isinstance(step.call, ControlFlowCall):
            for body in step.call.bodies.values():
                with contextlib.suppress(errors.OnnxRuntimeError):  # one that such sizes never come to
                    found |= _native_plans(body, symbols, {}, keeps)
        segment = step.call.segment if isinstance(step.call, CountedCall) else step.call
        if not isinstance(segment, NativeSegment) or segment.steering_places:
            continue
        shapes = _shapes(plan, step, symbols, given)
        if shapes is not None:
            found[segment, shapes] = _made(segment, shapes, keeps)
    return found


def _shapes(plan: Plan, step: Step, symbols: Mapping[str, int], given: Mapping[int, Sequence[int]]) -> Shapes | None:
    """The shapes of a step's inputs, some of which are given; None where only a run tells one."""
    shapes = []
    for slot in step.inputs:
        if slot in given:
            shapes.append(tuple(given[slot]))
            continue
        dims = plan.slots[slot].dims
        if dims is None or any(dim is None for dim in dims):
            return None
        try:
            shapes.append(tuple(max(0, evaluate(dim, symbols)) for dim in dims if dim is not None))
        except KeyError:
            return None
    return tuple(shapes)


def _made(segment: NativeSegment, shapes: Shapes, keeps: bool = True) -> ReadyPlan:
    try:
        return segment.plan_for(shapes) if keeps else segment.plan_apart(shapes)
    except BindingError as error:
        raise error.cause from error


def buffer_bytes(bound: Bound) -> int:
    """Bytes of all values that lie in the arena of a plan, as if none shared its memory."""
    tensors = (tensor for step in bound.steps for tensor in (*step.reads, *step.writes))
    buffers = {id(buffer): buffer for buffer in (tensor.buffer.settled()[0] for tensor in tensors)}
    return sum(buffer.nbytes for buffer in buffers.values() if buffer.kind == "arena")


def value_bytes(bound: Bound) -> tuple[int, int]:
    """Bytes of all values in the arena of a plan, as if none shared its memory, and the most that are alive at once.

    Each value takes whole cache lines, as it does in the arena. The second is 0 where steps are done in rounds.
    """
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for index, step in enumerate(bound.steps):
        for buffer in (*step.read_buffers, *step.written_buffers):
            root, _ = buffer.settled()
            if root.kind == "arena":
                first.setdefault(root, index)
                last[root] = index
    sizes = {buffer: -(-max(1, buffer.nbytes) // ALIGNMENT) * ALIGNMENT for buffer in first}
    total = sum(sizes.values())
    if any(stretch.rounds != 1 for stretch in bound.stretches):
        return total, 0
    changes = [0] * (len(bound.steps) + 1)
    for buffer, nbytes in sizes.items():
        changes[first[buffer]] += nbytes
        changes[last[buffer] + 1] -= nbytes
    return total, max(itertools.accumulate(changes))


def segments_in(plan: Plan) -> list[NativeSegment]:
    """All native segments of a plan and of the bodies in it, in the order of their numbers."""
    found: list[NativeSegment] = []
    for step in plan.steps:
        call = step.call
        if isinstance(call, ControlFlowCall):
            for body in call.bodies.values():
                found += segments_in(body)
        elif isinstance(call, CountedCall):
            found.append(call.segment)
        elif isinstance(call, NativeSegment):
            found.append(call)
    return found
