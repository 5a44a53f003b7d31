"""Native plans on the emulated machine: their tables and memory, moved to where the machine sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Bound
from sardonyx.compiler.llvm.kernels.engine.executor import executor_code
from sardonyx.compiler.llvm.kernels.engine.rounds import emit_rounds
from sardonyx.runtime.memory.execution_contexts import LINE_WORDS, MOST_PARTS, ExecutionContextField
from sardonyx.runtime.native.rounds import MoveColumn, RoundsField
from sardonyx.runtime.native_plan import NativePlan, PlanField
from sardonyx.runtime.threads.thread_pool_words import ThreadPoolField, thread_pool_words
from tests.compiler.aarch64.machine import Visit, emulated

Array = np.ndarray[Any, Any]


def run_plan(
    bound: Bound, external: Sequence[Array], *, in_thread_pool: bool = False, times: Array | None = None
) -> int:
    """What the executor returns; `external` are the inputs and outputs, whose contents are as after a run here."""
    plan = bound.plan
    visit = emulated().machine.visit()
    addresses = np.array([visit.address(array) for array in external], np.int64)
    places = [
        _thread_pool_address(visit) if in_thread_pool else 0,
        _plan_address(visit, plan, _constants(bound)),
        _execution_context_address(visit, plan),
        visit.address(addresses),
        0 if times is None else visit.address(times),
    ]
    status = emulated().machine.call(executor_code(emulated()).run, *places, 0)
    for array in (*external, *([] if times is None else [times])):
        if array.flags.writeable:
            visit.fetch(array)
    return status


def run_rounds(
    bound: Bound, moves: Sequence[int], arrays: Sequence[Array], condition: Array | None, count: int
) -> tuple[int, int]:
    """The executor's last answer and how many rounds of `count` were done.

    `moves` has a row of `MoveColumn` for each external address, which lie in `arrays`; their contents are as after the
    rounds.
    """
    plan, visit = bound.plan, emulated().machine.visit()
    table = np.array(moves, np.int64).reshape(-1, MoveColumn.WORDS)
    for column in (MoveColumn.EVEN, MoveColumn.ODD):
        table[:, column] = [_moved(visit, arrays, place) for place in table[:, column].tolist()]
    words = _room(RoundsField.WORDS)
    words[RoundsField.RUN] = executor_code(emulated()).run
    words[RoundsField.PLAN] = _plan_address(visit, plan, _constants(bound))
    words[RoundsField.EXECUTION_CONTEXT] = _execution_context_address(visit, plan)
    words[RoundsField.EXTERNALS] = visit.address(_room(plan.base_count))
    words[RoundsField.MOVES], words[RoundsField.MOVE_COUNT] = visit.address(table), len(table)
    words[RoundsField.CONDITION] = 0 if condition is None else visit.address(condition)
    words[RoundsField.COUNT] = count
    emulated().machine.call(emulated().address(emit_rounds, ()), visit.address(words), 0)
    for array in (*arrays, words):
        if array.flags.writeable:
            visit.fetch(array)
    return int(words[RoundsField.STATUS]), int(words[RoundsField.DONE])


def _moved(visit: Visit, arrays: Sequence[Array], place: int) -> int:
    """Where an address inside of one of the arrays is in the machine."""
    for array in arrays:
        low, high = np.lib.array_utils.byte_bounds(array)
        if low <= place < max(high, low + 1):
            return visit.address(array) + place - int(array.__array_interface__["data"][0])
    raise AssertionError(f"no array lies at {place:#x}")


def _room(count: int) -> Array:
    return np.zeros(count, np.int64)


def _constants(bound: Bound) -> Iterator[Array]:
    """The constants that the steps read, and those that the plan keeps."""
    yield from (one for one in bound.plan.owners[:-1] if isinstance(one, np.ndarray) and one.nbytes)
    for step in bound.steps:
        for argument in step.arguments:
            array = None if isinstance(argument, int) else argument.buffer.settled()[0].array
            if array is not None and array.nbytes:
                yield array


def _plan_address(visit: Visit, plan: NativePlan, constants: Iterable[Array]) -> int:
    """The plan with all addresses being those of the machine."""
    words = np.array(plan.words)
    for constant in constants:
        low, high = np.lib.array_utils.byte_bounds(constant)
        for index in np.flatnonzero((plan.words >= low) & (plan.words < high)):
            words[index] = visit.address(constant) + plan.words[index] - constant.ctypes.data
    header = np.array(plan.header)
    for field, table in (
        (PlanField.WORDS, words),
        (PlanField.FIXUPS, plan.fixups),
        (PlanField.STEPS, plan.steps),
        (PlanField.PHASES, plan.owners[-1]),
    ):
        header[field] = visit.address(table)
    return visit.address(header)


def _execution_context_address(visit: Visit, plan: NativePlan) -> int:
    """The memory of one run."""
    steps = len(plan.steps)
    fields, bases = _room(ExecutionContextField.COUNT), _room(plan.base_count)
    bases[0] = visit.address(_room(plan.arena_bytes // 8 + 8))
    fields[ExecutionContextField.WORDS] = visit.address(_room(len(plan.words)))
    fields[ExecutionContextField.COUNTERS] = visit.address(
        _room(LINE_WORDS * steps + MOST_PARTS * (steps + LINE_WORDS))
    )
    fields[ExecutionContextField.BASES] = visit.address(bases)
    fields[ExecutionContextField.SCRATCH] = visit.address(_room(plan.scratch_bytes // 8 + 8))
    return visit.address(fields)


def _thread_pool_address(visit: Visit) -> int:
    """A thread pool whose workers have not come."""
    words = _room(thread_pool_words(4))
    words[ThreadPoolField.THREADS] = 4
    words[ThreadPoolField.PATIENCE] = 1000
    return visit.address(words)
