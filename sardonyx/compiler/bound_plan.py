"""The native plans of a session's segments for given sizes, and what memory they need."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from sardonyx.compiler.binding import Bound, Buffer
from sardonyx.runtime.memory.arena_layout import ALIGNMENT
from sardonyx.runtime.native.native_segment import BindingError, NativeSegment, ReadyPlan
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
    shapes = []
    for slot in step.inputs:
        dims = plan.slots[slot].dims
        if dims is None or any(dim is None for dim in dims):
            return None
        try:
            shapes.append(tuple(max(0, evaluate(dim, symbols)) for dim in dims if dim is not None))
        except KeyError:
            return None
    try:
        return step.call.plan_for(tuple(shapes))
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
