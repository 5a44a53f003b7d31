"""Where the bytes of a session are: `InferenceSession.memory_report`.

What is counted was counted when it was taken: sizes of arrays, of the memory of execution contexts, of the tables of
plans. Memory of the interpreter, of what was imported and of the model's graph is not among it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.compiler.control_flow_call import ControlFlowCall
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.memory.constant_memory import HeldConstant
from sardonyx.runtime.memory.mapped_pages import FileMap, resident_bytes, root_of
from sardonyx.runtime.memory.shared_arena import SharedExecutionContexts
from sardonyx.runtime.native.counted_call import CountedCall
from sardonyx.runtime.native.native_segment import NativeSegment, ReadyPlan, Shapes
from sardonyx.runtime.native_plan import StepColumn
from sardonyx.runtime.plan import Plan

if TYPE_CHECKING:
    from sardonyx.api.loaded_session import LoadedSession

Array = np.ndarray[Any, Any]

# Kinds of constants that are made, and may be shared.
_MADE = ("packed", "computed")


@dataclass(frozen=True, slots=True)
class WeightMemory:
    """The model's constants, and what was made of them; an array that is there once counts once.

    mapped: of the model, where they lie in mapped files; `resident` of these bytes are in memory now.
    held: of the model, in memory: small files, bytes and values that a caller gave, results of constant folding.
    packed: laid out anew for kernels.
    computed: what plans were made with besides: joined and scaled weights that kernels read as they are, positions.
    shared: those of packed and computed ones that are used by other sessions as well.
    """

    mapped: int = 0
    resident: int = 0
    held: int = 0
    packed: int = 0
    computed: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True)
class ExecutionContextMemory:
    """What one run at a time works in: `arena` for the values between kernels, from `address` on, `scratch` for the
    kernels of all threads, `control` for the arguments and counters of steps."""

    address: int
    arena: int
    scratch: int
    control: int
    is_idle: bool  # no run uses it, and no run that is prepared ahead keeps it

    @property
    def nbytes(self) -> int:
        return self.arena + self.scratch + self.control


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """A native plan that is kept for the next run with these shapes of its inputs, and what it needs.

    arena: what its values get, scratch: each thread's. tables: of its steps.
    values: bytes of all values, if none shared memory. alive: the most that is alive at once, below which no arena can
        be; 0 where a batch is done in rounds. Both are 0 where only binding the plan again would tell, which is done
        for the last one.
    """

    shapes: Shapes
    arena: int
    scratch: int
    values: int
    alive: int
    tables: int


@dataclass(frozen=True, slots=True)
class ResultMemory:
    """The process's pool of large results: `used` by arrays that somebody holds, `kept` for later ones."""

    used: int = 0
    kept: int = 0


@dataclass(frozen=True)
class MemoryReport:
    """Where the bytes of a session are.

    execution_contexts: those of the session, or, where `shares_arena`, those of the process's arena.
    between: what lies between the native steps of runs that are prepared ahead.
    kernels: object code of the kernels that its plans run; other sessions may run them, too.
    limit, charged: the bytes that the session may hold (0: any), and those that count against that.
    """

    weights: WeightMemory
    execution_contexts: tuple[ExecutionContextMemory, ...]
    shares_arena: bool
    plans: tuple[PlanMemory, ...]
    between: int
    results: ResultMemory
    kernels: int
    limit: int
    charged: Mapping[str, int]

    @property
    def arena(self) -> int:
        """Bytes of all arenas."""
        return sum(one.arena for one in self.execution_contexts)

    @property
    def scratch(self) -> int:
        """Bytes of all kernels' scratch memory."""
        return sum(one.scratch for one in self.execution_contexts)

    @property
    def tables(self) -> int:
        """Bytes of the tables of plans, and of what execution contexts have of them."""
        return sum(plan.tables for plan in self.plans) + sum(one.control for one in self.execution_contexts)

    @property
    def total(self) -> int:
        """Bytes that the session holds, beside files that are mapped and results that others hold."""
        weights = self.weights.held + self.weights.packed + self.weights.computed
        return weights + self.arena + self.scratch + self.tables + self.between + self.kernels

    def as_dict(self) -> dict[str, Any]:
        """Everything in the types of JSON."""
        return {**asdict(self), "charged": dict(self.charged), "total": self.total}

    def __str__(self) -> str:
        weights, idle = self.weights, sum(one.is_idle for one in self.execution_contexts)
        whose = "of the process" if self.shares_arena else "of the session"
        lines = [
            ("total", f"{_size(self.total)} beside mapped files and results"),
            ("weights", f"{_size(weights.mapped)} mapped, of which {_size(weights.resident)} in memory"),
            ("", f"{_size(weights.held)} held as they are"),
            ("", f"{_size(weights.packed)} packed for kernels, {_size(weights.computed)} computed"),
            ("", f"{_size(weights.shared)} of these shared with other sessions"),
            ("execution contexts", f"{len(self.execution_contexts)} {whose}, {idle} idle"),
            ("", f"{_size(self.arena)} arena, {_size(self.scratch)} scratch"),
            *(("plan", _plan_line(plan)) for plan in self.plans),
            ("tables", _size(self.tables)),
            ("kernels", _size(self.kernels)),
            ("results", f"{_size(self.results.used)} in use, {_size(self.results.kept)} kept, of the process"),
        ]
        if self.between:
            lines.append(("between", f"{_size(self.between)} between native steps"))
        if self.limit:
            lines.append(("limit", f"{_size(self.limit)}, of which {_size(sum(self.charged.values()))} are taken"))
        return "\n".join(f"{name:<8} {text}" for name, text in lines)


def memory_report(core: LoadedSession) -> MemoryReport:
    """The report of a session as it is now."""
    segments = list(_segments_of(core.held_plans))
    made = [(shapes, ready) for segment in segments for shapes, ready in segment.made_plans]
    pools = {id(pool): pool for _, pool in (segment.resources for segment in segments)}
    execution_contexts = [
        (execution_context, is_idle)
        for pool in pools.values()
        for execution_context, is_idle in pool.execution_contexts
    ]
    results = next((segment.results for segment in segments if segment.results is not None), None)
    limit = core.memory_limit
    return MemoryReport(
        weights=_weights(core.held_plans, segments),
        execution_contexts=tuple(
            ExecutionContextMemory(
                execution_context.arena,
                execution_context.arena_bytes,
                execution_context.scratch_bytes,
                execution_context.control_bytes,
                is_idle,
            )
            for execution_context, is_idle in execution_contexts
            if execution_context.nbytes
        ),
        shares_arena=any(isinstance(pool, SharedExecutionContexts) for pool in pools.values()),
        plans=tuple(
            _plan_memory(shapes, ready, is_last=place == len(made)) for place, (shapes, ready) in enumerate(made, 1)
        ),
        between=0 if core.short_way is None else core.short_way.held_bytes,
        results=ResultMemory() if results is None else ResultMemory(results.used_bytes, results.free_bytes),
        kernels=core.code_bytes(_functions(ready for _, ready in made)),
        limit=0 if limit is None else limit.nbytes,
        charged={} if limit is None else limit.held,
    )


def _segments_of(plans: Iterable[Plan]) -> Iterator[NativeSegment]:
    """The native segments of plans and of the subgraphs inside them, each once."""
    seen: set[int] = set()
    waiting = list(plans)
    while waiting:
        for step in waiting.pop().steps:
            call = step.call.segment if isinstance(step.call, CountedCall) else step.call
            if isinstance(call, ControlFlowCall):
                waiting += call.bodies.values()
            elif isinstance(call, NativeSegment) and id(call) not in seen:
                seen.add(id(call))
                yield call


def _weights(plans: Sequence[Plan], segments: Sequence[NativeSegment]) -> WeightMemory:
    """Every array once, by the first that says what it is: segments, then host steps, then what plans keep alive."""
    found: dict[int, tuple[str, int, bool]] = {}
    mapped: dict[int, int] = {}  # where arrays in files begin and end

    def count(one: HeldConstant) -> None:
        kind: str = one.kind
        array = one.array
        if array.dtype.hasobject or not array.nbytes:
            return
        address = int(array.__array_interface__["data"][0])
        if isinstance(root_of(array), FileMap):
            kind = "mapped"
            mapped[address] = max(mapped.get(address, 0), address + array.nbytes)
        known = found.get(address)
        if known is None or (known[0] == kind and known[1] < array.nbytes):
            found[address] = kind, array.nbytes, one.is_shared

    for segment in segments:
        for held in segment.held():
            count(held)
    for plan in plans:
        for value in plan.constants.values():
            if isinstance(value, np.ndarray):
                count(HeldConstant("model", value))
    for segment in segments:
        for _, ready in segment.made_plans:
            for owner in ready.plan.owners[:-1]:  # the last one is a table
                if isinstance(owner, np.ndarray):
                    count(HeldConstant("computed" if segment.knows_constants else "packed", owner))

    def total(kind: str) -> int:
        return sum(nbytes for one, nbytes, _ in found.values() if one == kind)

    return WeightMemory(
        mapped=total("mapped"),
        resident=resident_bytes(mapped.items()) if mapped else 0,
        held=total("model"),
        packed=total("packed"),
        computed=total("computed"),
        shared=sum(nbytes for kind, nbytes, is_shared in found.values() if is_shared and kind in _MADE),
    )


def _plan_memory(shapes: Shapes, ready: ReadyPlan, *, is_last: bool) -> PlanMemory:
    plan, bound = ready.plan, getattr(ready.source, "bound", None)
    values = alive = 0
    if bound is not None and (is_last or isinstance(bound.steps, tuple)):
        from sardonyx.compiler.bound_plan import value_bytes  # with what compiles, which engines do without

        values, alive = value_bytes(bound)
    tables = sum(array.nbytes for array in (plan.words, plan.fixups, plan.steps, plan.header))
    return PlanMemory(shapes, plan.arena_bytes, plan.scratch_bytes, values, alive, tables)


def _functions(made: Iterable[ReadyPlan]) -> set[int]:
    """The addresses of the kernels that plans run."""
    return {address for ready in made for address in ready.plan.steps[:, StepColumn.FUNCTION].tolist()}


def _plan_line(plan: PlanMemory) -> str:
    shapes = ", ".join("x".join(map(str, shape)) or "scalar" for shape in plan.shapes)
    most = f" of values of {_size(plan.values)}, {_size(plan.alive)} at once" if plan.values else ""
    return f"{shapes or 'no inputs'}: {_size(plan.arena)} arena{most}; {_size(plan.scratch)} scratch a thread"


def _size(nbytes: int) -> str:
    """Bytes as people read them."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} B"
