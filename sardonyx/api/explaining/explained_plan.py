"""The plan of a session, kernel by kernel: the rows of an explanation."""

from __future__ import annotations

import collections
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.api.building.compiled_model import CompiledModel
from sardonyx.api.core_session import CoreSession
from sardonyx.api.enums import GraphOptimizationLevel
from sardonyx.api.explaining.explanation_records import Declined, Explanation, Row
from sardonyx.api.options.run_settings import run_settings
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.compiler.bound_plan import native_plan, symbols_of
from sardonyx.compiler.control_flow import graphs_of_node
from sardonyx.compiler.control_flow_call import ControlFlowCall
from sardonyx.compiler.llvm.target import host_target
from sardonyx.light_dataclass import dataclass
from sardonyx.passes.base import PassReport
from sardonyx.passes.rule import RULE_KEY, SOURCES_KEY
from sardonyx.runtime.native.native_segment import NativeSegment, ReadyPlan
from sardonyx.runtime.plan import Plan, Step
from sardonyx.runtime.step_times import StepTimes
from sardonyx.runtime.trace import Trace

if TYPE_CHECKING:
    from sardonyx.compiler.binding import BoundStep, Stretch
    from sardonyx.compiler.fusion import Group
    from sardonyx.compiler.lowering import Lowered
    from sardonyx.compiler.operation import BoundOperation
    from sardonyx.tuning.ceilings import Ceilings

# Runs stop here even where more were asked for, once there are a few.
_MOST_SECONDS = 10.0
_FEWEST_RUNS = 3
# Plans that are compared take so many turns, with a pause before each.
_TURNS = 8
_PAUSE_SECONDS = 0.005

# What there is of native code whose sizes are not known.
UNBOUND = "not bound"

# What the kernels are called here where their own names say too little.
_NAMES = {
    "blocks": "copy blocks",
    "fill": "copy fill",
    "pieces": "copy",
    "rows": "copy rows",
    "staged_transpose": "transpose",
    "strided": "copy strided",
    "turn": "heads",
    "zip": "copy zipped",
}


@dataclass(frozen=True)
class Subject:
    """What is explained: a plan of a session, or of a variant of it, and what it was made from; with `sizes`, which are
    the shapes of all inputs by name, a plan for these alone."""

    core: CoreSession
    plan: Plan
    compiled: CompiledModel
    sizes: Mapping[str, tuple[int, ...]] | None = None

    @staticmethod
    def of_session(core: CoreSession) -> Subject:
        """The plan for all sizes."""
        return Subject(core, core.plan, core.compiled)

    def of_sizes(self, sizes: Mapping[str, tuple[int, ...]]) -> Subject:
        """The same for these sizes alone; the typed error of the node whose rule they break."""
        return replace(self, sizes=sizes).variant(self.core.session_options)

    def variant(self, options: SessionOptions, disabled: Iterable[str] | None = None, **changes: Any) -> Subject:
        """The same of a variant of the session; with no optimisations none is made for sizes alone."""
        is_plain = options.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL
        built = self.core.variant(options, disabled, sizes=None if is_plain else self.sizes, **changes)
        return replace(self, plan=built.plan, compiled=built.compiled())

    def run(self, feeds: Mapping[str, Any], trace: Trace) -> None:
        """Run, with `trace` told of every step."""
        self.core.observe(feeds, trace, self.plan)


def explained(
    subject: Subject,
    feeds: Mapping[str, Any] | None,
    shapes: Mapping[str, tuple[int, ...]],
    runs: int = 0,
    binds: bool = True,
) -> Explanation:
    """What runs for inputs of these shapes, `runs` times on `feeds`, or once where shapes inside depend on them.

    InvalidArgument where that takes feeds and there are none. Unless it `binds`, nothing is asked of the sizes.
    """
    if not binds:
        return _Builder(subject, None, StepTimes(), 0).explanation(shapes)
    symbols = symbols_of(subject.plan, shapes)
    times = StepTimes()
    whole = _run(subject, feeds, runs, times) if feeds is not None and runs else []
    if not whole:
        times = _observed(subject, feeds, symbols)
    found = _Builder(subject, symbols, times, len(whole)).explanation(shapes)
    found.runs, found.run_us = len(whole), statistics.median(whole) * 1e6 if whole else None
    return found


@dataclass(frozen=True)
class PlacedStep:
    """A row of an explanation, and the step of a native plan that it tells of, by its `index` there; None if it tells
    of another step."""

    row: Row
    step: BoundStep | None = None
    ready: ReadyPlan | None = None
    index: int = 0


def placed_steps(
    subject: Subject, feeds: Mapping[str, Any] | None, shapes: Mapping[str, tuple[int, ...]]
) -> list[PlacedStep]:
    """The steps of a run for inputs of these shapes, in the order of the rows; errors are those of `explained`."""
    symbols = symbols_of(subject.plan, shapes)
    builder = _Builder(subject, symbols, _observed(subject, feeds, symbols), 0, predicts=False)
    builder.explanation(shapes)
    return builder.placed


def in_turns(first: Subject, second: Subject, feeds: Mapping[str, Any], runs: int) -> tuple[float, float]:
    """Microseconds of runs of two plans that take turns, so that what slows the machine slows both: the median over
    turns of the fastest run of each.

    Between turns all threads go to sleep, so that those of one plan are not in the way of the other's.
    """
    times: tuple[list[float], list[float]] = [], []
    began = time.perf_counter()
    for turn in range(max(_FEWEST_RUNS, min(_TURNS, runs))):
        if turn >= _FEWEST_RUNS and time.perf_counter() - began > _MOST_SECONDS:
            break
        for subject, fastest in zip((first, second), times, strict=True):
            time.sleep(_PAUSE_SECONDS)
            subject.run(feeds, StepTimes())
            fastest.append(min(_seconds(subject, feeds) for _ in range(max(1, runs // _TURNS))))
    before, after = (statistics.median(one) * 1e6 for one in times)
    return before, after


def _seconds(subject: Subject, feeds: Mapping[str, Any]) -> float:
    began = time.perf_counter()
    subject.run(feeds, StepTimes())
    return time.perf_counter() - began


def _run(subject: Subject, feeds: Mapping[str, Any], runs: int, times: StepTimes) -> list[float]:
    """Seconds of each run; those that warm up are not among them, nor in `times`."""
    for _ in range(2):
        subject.run(feeds, StepTimes())
    seconds: list[float] = []
    while len(seconds) < runs and (len(seconds) < _FEWEST_RUNS or sum(seconds) < _MOST_SECONDS):
        began = time.perf_counter()
        subject.run(feeds, times)
        seconds.append(time.perf_counter() - began)
    return seconds


def _observed(subject: Subject, feeds: Mapping[str, Any] | None, symbols: Mapping[str, int]) -> StepTimes:
    """What a run shows where sizes alone do not tell the native plans; nothing where they do.

    InvalidArgument where there are no feeds to run a model of which even the steps outside of subgraphs are unknown.
    """
    found = StepTimes()
    unknown = [outer for plan, step, outer in _segments(subject.plan) if _bound(plan, step, symbols, outer) is None]
    if unknown and feeds is not None:
        subject.run(feeds, found)
    elif any(unknown):
        raise errors.InvalidArgument("explain: shapes inside the model depend on its inputs; give feeds to run it on")
    return found


def _bound(plan: Plan, step: Step, symbols: Mapping[str, int], is_outer: bool) -> ReadyPlan | None:
    """The native plan of a segment by sizes alone, None where these do not tell.

    Sizes that do not fit are an error, but not inside of a body, which perhaps never runs with them.
    """
    try:
        return native_plan(plan, step, symbols)
    except errors.OnnxRuntimeError:
        if is_outer:
            raise
        return None


def _segments(plan: Plan, is_outer: bool = True) -> Iterator[tuple[Plan, Step, bool]]:
    """The segments of a plan and of the bodies inside it, and whether each belongs to the plan itself."""
    for step in plan.steps:
        if isinstance(step.call, NativeSegment):
            yield plan, step, is_outer
        elif isinstance(step.call, ControlFlowCall):
            for body in step.call.bodies.values():
                yield from _segments(body, False)


class _Builder:
    """Makes the rows of an explanation, in the order in which the steps run.

    `times` are those of `runs` runs, or of one that was only observed (0). Without `symbols` nothing is bound. Unless
    it `predicts`, nothing is asked of the machine's ceilings, which may have to be measured.
    """

    def __init__(
        self,
        subject: Subject,
        symbols: Mapping[str, int] | None,
        times: StepTimes,
        runs: int,
        *,
        predicts: bool = True,
    ) -> None:
        self.subject, self.symbols, self.times, self.runs = subject, symbols, times, runs
        self.views: collections.Counter[str] = collections.Counter()
        self.known: collections.Counter[str] = collections.Counter()
        self.placed: list[PlacedStep] = []
        self.ready: list[ReadyPlan] = []
        self.constants: dict[int, int] = {}  # bytes by address
        self.packed: dict[int, int] = {}
        segments = [step.call for _, step, _ in _segments(subject.plan) if isinstance(step.call, NativeSegment)]
        self.threads = segments[0].threads if segments else 1
        kernels = run_settings(subject.core.session_options).kernels
        self.kernels = host_target(kernels).name if segments else "numpy"
        self.ceilings = self._ceilings() if segments and predicts else None

    def _ceilings(self) -> Ceilings:
        from sardonyx.tuning.ceilings import stored_ceilings  # with the code of kernels: only for those who explain

        return stored_ceilings(sorted({1, self.threads}))

    def explanation(self, shapes: Mapping[str, tuple[int, ...]]) -> Explanation:
        self._graph(self.subject.plan, self.subject.compiled.model.graph, "")
        ready = self.ready
        return Explanation(
            inputs=dict(shapes),
            threads=self.threads,
            kernels=self.kernels,
            ceilings={} if self.ceilings is None else asdict(self.ceilings),
            rows=[one.row for one in self.placed],
            views=dict(self.views.most_common()),
            known=dict(self.known.most_common()),
            rewrites={report.name: report.changes for report in self.subject.compiled.passes if report.changes},
            declined=declined(self.subject.compiled.passes),
            arena_bytes=max((one.plan.arena_bytes for one in ready), default=0),
            scratch_bytes=max((one.plan.scratch_bytes for one in ready), default=0),
            constant_bytes=sum(self.constants.values()),
            packed_bytes=sum(self.packed.values()),
        )

    def _graph(self, plan: Plan, graph: ir.Graph, body: str) -> None:
        """The steps of a graph; `body` names the one that is inside another graph's node."""
        nodes = list(graph)
        for step in plan.steps:
            if isinstance(step.call, NativeSegment):
                self._segment(plan, step, body)
                continue
            self._single(step, nodes[step.node_index], body)
            if isinstance(step.call, ControlFlowCall):
                graphs = graphs_of_node(nodes[step.node_index])
                for name, inner in step.call.bodies.items():
                    self._graph(inner, graphs[name], f"{body}{step.name}/{name}/")

    def _executions(self, count: int, body: str) -> float:
        """How often a step runs in one run of the model; 1 where no run was observed."""
        if not body or not (self.times.plans or self.times.steps):
            return 1.0
        return count / max(1, self.runs)

    def _single(self, step: Step, node: ir.Node, body: str) -> None:
        """A step that runs by itself: through NumPy, or natively with results of sizes that the data decide."""
        _, nanoseconds = self.times.steps.get(id(step), (step, []))
        row = Row(
            step=len(self.placed),
            kind=step.kind if step.kind in ("host", "native") else "numpy",
            kernel=f"{'host' if step.kind == 'host' else step.kind} {step.op_type}",
            nodes=_sources([node], step.name),
            operators=(step.op_type,),
            rules=_rules([node]),
            measured_us=statistics.median(nanoseconds) / 1e3 if nanoseconds and self.runs else None,
            reason=step.reason,
            body=body,
            provider=step.provider,
            executions=self._executions(len(nanoseconds), body),
        )
        self.placed.append(PlacedStep(row))

    def _segment(self, plan: Plan, step: Step, body: str) -> None:
        """The kernels of a segment, as they ran last or as the sizes say."""
        assert isinstance(step.call, NativeSegment)
        ran = [(ready, runs) for ready, runs in self.times.plans.values() if step.call.has_made(ready)]
        ready = ran[-1][0] if ran else None if self.symbols is None else _bound(plan, step, self.symbols, not body)
        if ready is None:  # in a branch that was not taken, or without sizes
            row = Row(len(self.placed), "native", UNBOUND, (step.name,), (step.op_type,), body=body)
            self.placed.append(PlacedStep(replace(row, executions=float(self.symbols is None))))
            return
        self.ready.append(ready)
        segment, bound = ready.source.segment, ready.source.bound
        for group in segment.groups:
            if group.anchor is not None:
                role, kind = group.anchor.role, group.anchor.node.op_type
                self.views[kind] += role == "view"
                self.known[kind] += role == "known"
        self.views, self.known = +self.views, +self.known  # without those that were not there
        executions = self._executions(sum(len(runs) for _, runs in ran), body)
        measured = np.median(np.array(ran[-1][1]), axis=0) / 1e3 if ran and self.runs else None
        footprint = _Footprint(bound.steps, ready.plan.arena_bytes)
        order = np.array(bound.order)
        for index, (one, stretch) in enumerate(zip(bound.steps, bound.stretch_of_steps, strict=True)):
            is_last = index + 1 == len(bound.steps) or bound.steps[index + 1].origin is not one.origin
            took = None if measured is None else float(measured[order == index].sum())
            row = _of_stretch(self._row(one, took, footprint, is_last), stretch)
            self.placed.append(PlacedStep(replace(row, body=body, executions=executions), one, ready, index))

    def _row(self, step: BoundStep, measured: float | None, footprint: _Footprint, is_last: bool) -> Row:
        """`is_last`: whether the step is the last one of its nodes, the others having made its operands ready."""
        bound: BoundOperation | None = step.origin
        group = None if bound is None else bound.operation.group
        nodes = [] if group is None else [item.node for item in group.nodes]
        constant = self._constants(step, bound)
        return Row(
            step=len(self.placed),
            kind="native",
            kernel=_kernel(step, group),
            nodes=_sources(nodes) or ("an output of the model",),
            operators=tuple(node.op_type for node in nodes),
            rules=_rules(nodes),
            epilogue=_epilogue(group) if group is not None and is_last else (),
            detail=step.detail if isinstance(step.detail, str) else step.detail(),
            chunks=step.chunks,
            flops=step.flops,
            bytes=step.bytes,
            constant_bytes=constant,
            predicted_us=None if self.ceilings is None else self._predicted(step, constant, footprint, self.ceilings),
            measured_us=measured,
        )

    def _constants(self, step: BoundStep, bound: BoundOperation | None) -> float:
        """Bytes of the model that a step reads, which are counted once for all steps."""
        own = {id(tensor.buffer) for tensor in bound.inputs if tensor is not None} if bound is not None else set()
        total = 0.0
        for tensor in step.reads:
            if tensor.buffer.array is None:
                continue
            nbytes = min(tensor.nbytes, tensor.buffer.nbytes)
            total += nbytes
            address = int(tensor.buffer.array.__array_interface__["data"][0])
            self.constants[address] = max(nbytes, self.constants.get(address, 0))
            if id(tensor.buffer) not in own:
                self.packed[address] = self.constants[address]
        return min(total, step.bytes)

    def _predicted(self, step: BoundStep, constant: float, footprint: _Footprint, ceilings: Ceilings) -> float:
        """Microseconds that the ceilings allow: of arithmetic, or of reading what lies where it stays between runs."""
        threads = min(self.threads, -(-step.chunks // max(1, step.claim)))
        computed = step.flops / ceilings.flops(threads, _arithmetic(step, ceilings))
        read = constant / ceilings.bandwidth(threads, footprint.constants + footprint.values)
        moved = (step.bytes - constant) / ceilings.bandwidth(threads, footprint.values)
        return max(computed, read + moved) * 1e6


class _Footprint:
    """Bytes that a run touches again and again: the model's, and those of values between kernels, in and out."""

    def __init__(self, steps: Sequence[BoundStep], arena_bytes: int) -> None:
        sizes: dict[str, dict[int, int]] = {"constant": {}, "input": {}, "output": {}, "arena": {}}
        for step in steps:
            for tensor in (*step.reads, *step.writes):
                buffer, _ = tensor.buffer.settled()
                kind = sizes[buffer.kind]
                kind[id(buffer)] = max(kind.get(id(buffer), 0), min(buffer.nbytes, int(step.bytes) or buffer.nbytes))
        self.constants = sum(sizes["constant"].values())
        self.values = arena_bytes + sum(sizes["input"].values()) + sum(sizes["output"].values())


def _arithmetic(step: BoundStep, ceilings: Ceilings) -> str:
    """The name of the ceiling of a step's arithmetic; that of multiply-adds where it was not measured."""
    if ceilings.has(step.arithmetic):
        return step.arithmetic
    return "f64" if any(tensor.dtype == np.float64 for tensor in step.writes) else "f32"


def _of_stretch(row: Row, stretch: Stretch) -> Row:
    """The row of a step with what it does in all rounds of a batch, and why there are so many."""
    if not stretch.reason:
        return row
    detail = f"{row.detail}; {stretch.reason}" if row.detail else stretch.reason
    times = stretch.rounds
    predicted = None if row.predicted_us is None else row.predicted_us * times
    return replace(row, detail=detail, flops=row.flops * times, bytes=row.bytes * times, predicted_us=predicted)


def _kernel(step: BoundStep, group: Group | None) -> str:
    """The kernel, and the operators that it stands for."""
    name = _NAMES.get(step.kernel, step.kernel)
    if group is None:
        return name
    kinds = [item.node.op_type for item in _leading(group) or group.nodes]
    return f"{name} {'+'.join(kinds[:4])}{'+…' if len(kinds) > 4 else ''}"


def _leading(group: Group) -> list[Lowered]:
    """The templates of a group, in order."""
    before = [] if group.before is None else _leading(group.before)
    return before if group.anchor is None else [*before, group.anchor]


def _epilogue(group: Group) -> tuple[str, ...]:
    """What is fused behind a template, one word for each node."""
    anchor, leading = group.anchor, _leading(group)
    if anchor is None:
        return ()
    words = ["bias"] if anchor.node.op_type == "Gemm" and len(anchor.node.inputs) > 2 and anchor.node.inputs[2] else []
    return (*words, *(_word(item.node) for item in group.nodes if item not in leading))


def _word(node: ir.Node) -> str:
    if node.op_type == "Add" and any(value is not None and value.is_initializer() for value in node.inputs):
        return "bias"
    return node.op_type.lower()


def _sources(nodes: Iterable[ir.Node], otherwise: str = "") -> tuple[str, ...]:
    """The names of the user's nodes that these stand for, each once, in their order."""
    names: list[str] = []
    for node in nodes:
        kept = node.metadata_props.get(SOURCES_KEY)
        names.extend(kept.split(",") if kept else [node.name or otherwise or f"a nameless {node.op_type}"])
    return tuple(dict.fromkeys(names))


def _rules(nodes: Iterable[ir.Node]) -> tuple[str, ...]:
    kept = [node.metadata_props[RULE_KEY] for node in nodes if RULE_KEY in node.metadata_props]
    return tuple(dict.fromkeys(name for names in kept for name in names.split(",")))


def declined(reports: Iterable[PassReport]) -> list[Declined]:
    """What the passes left alone, places with the same reason together."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for report in reports:
        for text in report.declined:  # OpType (name): reason
            place, _, reason = text.partition("): ")
            found.setdefault((report.name, reason or text), {})[place.partition(" (")[2] or place] = None
    return [Declined(rule, reason, tuple(nodes)) for (rule, reason), nodes in found.items()]
