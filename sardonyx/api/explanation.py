"""What runs, kernel by kernel, for given shapes: from which nodes, by which rewrites, at what cost, and why.

    explanation = explain(session, feeds, runs=20)
    for row in explanation.rows:
        print(row.kernel, row.nodes, row.predicted_us, row.measured_us)

The command `sardonyx explain` prints one.
"""

from __future__ import annotations

import collections
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.api.core_session import CoreSession
from sardonyx.compiler.bound_plan import native_plan, symbols_of
from sardonyx.compiler.control_flow import ControlFlowCall
from sardonyx.passes.base import PassReport
from sardonyx.passes.rule import RULE_KEY, SOURCES_KEY
from sardonyx.runtime.native_segment import NativeSegment, ReadyPlan
from sardonyx.runtime.plan import Plan, Step
from sardonyx.runtime.step_times import StepTimes

if TYPE_CHECKING:
    from sardonyx.api.session import InferenceSession
    from sardonyx.compiler.binding import BoundStep, Stretch
    from sardonyx.compiler.fusion import Group
    from sardonyx.compiler.lowering import Lowered
    from sardonyx.compiler.segment import BoundOperation
    from sardonyx.tuning.ceilings import Ceilings

# Runs stop here even where more were asked for, once there are a few.
_MOST_SECONDS = 10.0
_FEWEST_RUNS = 3

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
class Row:
    """One step of a run.

    kind: ``native`` (a kernel), ``host`` (a call into Python, for `reason`), or ``numpy`` (a view or a kernel that
        NumPy computes, because nothing native surrounds it).
    kernel, epilogue, detail: which kernel, what is applied to its results before they are stored, how it works here.
    chunks: the size of its grid. nodes: names of the user's nodes. operators: those of the rewritten model.
    rules: the rewrites that made those. flops, bytes: a run's operations, and what it reads and writes;
        `constant_bytes` of it belong to the model.
    predicted_us: the time that the machine's ceilings allow. measured_us: the median of the runs.
    body: where the step is inside a subgraph, the node and its attribute, as ``node/attribute/``; then `executions`
        says how often it runs in one run of the model, and all other figures are those of one time.
    """

    step: int
    kind: Literal["native", "host", "numpy"]
    kernel: str
    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    rules: tuple[str, ...] = ()
    epilogue: tuple[str, ...] = ()
    detail: str = ""
    chunks: int = 1
    flops: float = 0.0
    bytes: float = 0.0
    constant_bytes: float = 0.0
    predicted_us: float | None = None
    measured_us: float | None = None
    reason: str = ""
    body: str = ""
    executions: float = 1.0

    @property
    def gflops(self) -> float | None:
        """Thousand millions of operations a second."""
        return self.flops / self.measured_us / 1e3 if self.measured_us else None

    @property
    def roofline(self) -> float | None:
        """The share of what the machine's ceilings allow."""
        return self.predicted_us / self.measured_us if self.measured_us and self.predicted_us is not None else None


@dataclass(frozen=True)
class Declined:
    """Places that a rewrite looked at and left alone: for the same reason, at these nodes."""

    rule: str
    reason: str
    nodes: tuple[str, ...]


@dataclass
class Explanation:
    """Everything of one model for one set of shapes.

    views, known: nodes that cost nothing in a run, because they only look at memory another way, or because their
        results follow from shapes; by operator.
    rewrites: how many changes each pass made. declined: what looked right to a pass and was left alone.
    arena_bytes, scratch_bytes: what one run needs for values between kernels, and each thread for itself.
    constant_bytes: what kernels read of the model; packed_bytes: how much of it was laid out anew for them.
    run_us: the median of whole runs, of which there were `runs`.
    """

    inputs: dict[str, tuple[int, ...]]
    threads: int
    kernels: str
    ceilings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    views: dict[str, int] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    rewrites: dict[str, int] = field(default_factory=dict)
    declined: list[Declined] = field(default_factory=list)
    arena_bytes: int = 0
    scratch_bytes: int = 0
    constant_bytes: int = 0
    packed_bytes: int = 0
    runs: int = 0
    run_us: float | None = None

    @property
    def totals(self) -> dict[str, float | None]:
        """The sums over all rows; of the measured times where there are any: a node's time includes its subgraphs'."""
        measured = [row.measured_us for row in self.rows if row.measured_us is not None and not row.body]
        return {
            "flops": sum(row.flops * row.executions for row in self.rows),
            "bytes": sum(row.bytes * row.executions for row in self.rows),
            "predicted_us": sum((row.predicted_us or 0.0) * row.executions for row in self.rows),
            "measured_us": sum(measured) if measured else None,
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything in the types of JSON."""
        rows = [asdict(row) | {"gflops": row.gflops, "roofline": row.roofline} for row in self.rows]
        return asdict(self) | {"rows": rows, "totals": self.totals}


def explain(
    session: InferenceSession,
    feeds: Mapping[str, Any] | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    runs: int = 0,
) -> Explanation:
    """What a session runs for these inputs, or, where shapes decide everything, for these shapes.

    With `runs`, the model runs so often on `feeds`, and every step is timed. Without, it runs once where shapes inside
    depend on what the inputs hold; InvalidArgument where that takes feeds and there are none. The machine's ceilings
    come from the user's cache, or are measured now, which takes some seconds.
    """
    core = session._session().without_engine()
    if feeds is None and runs:
        raise errors.InvalidArgument("explain: to run the model takes feeds")
    given = {name: tuple(np.shape(value)) for name, value in (feeds or {}).items()}
    given |= {name: tuple(shape) for name, shape in (shapes or {}).items()}
    symbols = symbols_of(core.plan, given)
    times = StepTimes()
    whole = _run(core, feeds, runs, times) if feeds is not None and runs else []
    if not whole:
        times = _observed(core, feeds, symbols)
    found = _Builder(core, symbols, times, len(whole)).explanation(given)
    found.runs, found.run_us = len(whole), statistics.median(whole) * 1e6 if whole else None
    return found


def _run(core: CoreSession, feeds: Mapping[str, Any], runs: int, times: StepTimes) -> list[float]:
    """Seconds of each run; those that warm up are not among them, nor in `times`."""
    for _ in range(2):
        core.observe(feeds, StepTimes())
    seconds: list[float] = []
    while len(seconds) < runs and (len(seconds) < _FEWEST_RUNS or sum(seconds) < _MOST_SECONDS):
        began = time.perf_counter()
        core.observe(feeds, times)
        seconds.append(time.perf_counter() - began)
    return seconds


def _observed(core: CoreSession, feeds: Mapping[str, Any] | None, symbols: Mapping[str, int]) -> StepTimes:
    """What a run shows where sizes alone do not tell the native plans; nothing where they do.

    InvalidArgument where there are no feeds to run a model of which even the steps outside of subgraphs are unknown.
    """
    found = StepTimes()
    unknown = [outer for plan, step, outer in _segments(core.plan) if _bound(plan, step, symbols, outer) is None]
    if unknown and feeds is not None:
        core.observe(feeds, found)
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
                yield from _segments(body.plan, False)


class _Builder:
    """Makes the rows of an explanation, in the order in which the steps run.

    `times` are those of `runs` runs, or of one that was only observed (0).
    """

    def __init__(self, core: CoreSession, symbols: Mapping[str, int], times: StepTimes, runs: int) -> None:
        self.core, self.symbols, self.times, self.runs = core, symbols, times, runs
        self.views: collections.Counter[str] = collections.Counter()
        self.known: collections.Counter[str] = collections.Counter()
        self.rows: list[Row] = []
        self.ready: list[ReadyPlan] = []
        self.constants: dict[int, int] = {}  # bytes by address
        self.packed: dict[int, int] = {}
        segments = [step.call for _, step, _ in _segments(core.plan) if isinstance(step.call, NativeSegment)]
        self.threads = segments[0].threads if segments else 1
        self.ceilings = self._ceilings() if segments else None

    def _ceilings(self) -> Ceilings:
        from sardonyx.tuning.ceilings import stored_ceilings  # with the code of kernels: only for those who explain

        return stored_ceilings(sorted({1, self.threads}))

    def explanation(self, shapes: Mapping[str, tuple[int, ...]]) -> Explanation:
        self._graph(self.core.plan, self.core.model.graph, "")
        ready = self.ready
        return Explanation(
            inputs=dict(shapes),
            threads=self.threads,
            kernels=ready[0].source.segment.library.target.name if ready else "numpy",
            ceilings={} if self.ceilings is None else asdict(self.ceilings),
            rows=self.rows,
            views=dict(self.views.most_common()),
            known=dict(self.known.most_common()),
            rewrites={report.name: report.changes for report in self.core.passes if report.changes},
            declined=declined(self.core.passes),
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
                for name, inner in step.call.bodies.items():
                    self._graph(inner.plan, step.call.graphs[name], f"{body}{step.name}/{name}/")

    def _executions(self, count: int, body: str) -> float:
        """How often a step runs in one run of the model; 1 where no run was observed."""
        if not body or not (self.times.plans or self.times.steps):
            return 1.0
        return count / max(1, self.runs)

    def _single(self, step: Step, node: ir.Node, body: str) -> None:
        """A step that runs by itself: through NumPy, or natively with results of sizes that the data decide."""
        _, nanoseconds = self.times.steps.get(id(step), (step, []))
        self.rows.append(
            Row(
                step=len(self.rows),
                kind=step.kind if step.kind in ("host", "native") else "numpy",
                kernel=f"{'host' if step.kind == 'host' else step.kind} {step.op_type}",
                nodes=_sources([node], step.name),
                operators=(step.op_type,),
                rules=_rules([node]),
                measured_us=statistics.median(nanoseconds) / 1e3 if nanoseconds and self.runs else None,
                reason=step.reason,
                body=body,
                executions=self._executions(len(nanoseconds), body),
            )
        )

    def _segment(self, plan: Plan, step: Step, body: str) -> None:
        """The kernels of a segment, as they ran last or as the sizes say."""
        assert isinstance(step.call, NativeSegment)
        ran = [(ready, runs) for ready, runs in self.times.plans.values() if step.call.has_made(ready)]
        ready = ran[-1][0] if ran else _bound(plan, step, self.symbols, not body)
        if ready is None:  # in a branch that was not taken
            self.rows.append(
                Row(len(self.rows), "native", "not bound", (step.name,), (step.op_type,), body=body, executions=0.0)
            )
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
            self.rows.append(replace(row, body=body, executions=executions))

    def _row(self, step: BoundStep, measured: float | None, footprint: _Footprint, is_last: bool) -> Row:
        """`is_last`: whether the step is the last one of its nodes, the others having made its operands ready."""
        bound: BoundOperation | None = step.origin
        group = None if bound is None else bound.operation.group
        nodes = [] if group is None else [item.node for item in group.nodes]
        constant = self._constants(step, bound)
        return Row(
            step=len(self.rows),
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
            predicted_us=self._predicted(step, constant, footprint),
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

    def _predicted(self, step: BoundStep, constant: float, footprint: _Footprint) -> float:
        """Microseconds that the ceilings allow: of arithmetic, or of reading what lies where it stays between runs."""
        assert self.ceilings is not None
        threads = min(self.threads, -(-step.chunks // max(1, step.claim)))
        computed = step.flops / self.ceilings.flops(threads, _arithmetic(step, self.ceilings))
        read = constant / self.ceilings.bandwidth(threads, footprint.constants + footprint.values)
        moved = (step.bytes - constant) / self.ceilings.bandwidth(threads, footprint.values)
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
    if any(step.arithmetic in rates for rates in ceilings.compute.values()):
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


def abbreviated(names: Sequence[str]) -> str:
    """Several names as one: what they have in common, and how many they are."""
    if len(names) == 1:
        return names[0]
    for separator in ("/", "."):
        parts = [name.split(separator) for name in names]
        common = 0
        while common < min(map(len, parts)) - 1 and len({part[common] for part in parts}) == 1:
            common += 1
        if any(parts[0][:common]):
            return f"{separator.join(parts[0][:common])}{separator}* ({len(names)})"
    return f"{names[0]} … ({len(names)})"
