"""The troubles of onnxruntime's checklist, each looked for in one session: whether it has them, and what helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx import errors
from sardonyx.api.core_session import CoreSession
from sardonyx.api.enums import GraphOptimizationLevel
from sardonyx.api.explaining.explained_plan import Subject, explained
from sardonyx.api.explaining.explanation_records import HOUSEKEEPING, Diagnosis, Explanation, Row, counted
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.compiler.bound_plan import symbols_of
from sardonyx.compiler.control_flow_call import ControlFlowCall
from sardonyx.graph.constants import graphs_of, nodes_of, subgraphs
from sardonyx.passes.base import Level
from sardonyx.passes.pipeline import passes_up_to
from sardonyx.providers.registry import CPU
from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.plan import Plan
from sardonyx.runtime.threads.other_load import other_load
from sardonyx.runtime.threads.processors import usable_processors

# The share of a run from which on it is worth a word.
_WORTH = 0.01
# The same for values that are only brought into another order, of which every model has some.
_COPIES_WORTH = 0.15
# Processors' worth of other work that is more than the system's own.
_OTHERS = 0.3
# An arena of another size than this shape needs is of no concern up to here.
_ARENA_BYTES = 4 << 20

_COPIES = ("copy", "transpose", "heads")


def troubles(
    session: CoreSession, subject: Subject, found: Explanation, feeds: Mapping[str, Any] | None
) -> tuple[Diagnosis, ...]:
    """Every trouble of the checklist, in its order.

    `found` is the explanation of `subject`, which is of `session`, or of the same made from the model where that comes
    from an engine; `feeds` are what it was made for.
    """
    best = _as_good_as_possible(subject, found, feeds)
    return (
        fallback(subject, found),
        missing_fusions(found, best),
        thread_contention(found, usable_processors(), other_load()),
        fragmentation(session.held_plans, found),
        transfers(subject, found, best),
        initializers_in_inputs(found),
        dynamic_shapes(subject, found, feeds),
    )


def fallback(subject: Subject, found: Explanation) -> Diagnosis:
    """Nodes that run in Python because no kernel takes them, or on the CPU though another provider comes first."""
    on_host = [row for row in found.rows if row.kind != "native" and row.provider == CPU and not _is_free(row)]
    preferred = subject.core.provider_names[0]
    left = [node for node in subject.compiled.nodes if node.provider != preferred]
    texts = []
    if on_host:
        reasons = dict.fromkeys(f"{row.operators[0]}: {row.reason or 'NumPy computes it'}" for row in on_host)
        share = _share(on_host, found)
        texts.append(f"in Python: {len(on_host)} of {counted(len(found.rows), 'step')}{share} ({'; '.join(reasons)})")
    if left:
        answers = dict.fromkeys(f"{node.op_type}: {reason}" for node in left for _, reason in node.declined)
        texts.append(f"{counted(len(left), 'node')} declined by {preferred} ({'; '.join(answers)})")
    nodes = [name for row in on_host for name in row.nodes] + [node.name for node in left]
    return Diagnosis(
        "fallback",
        bool(texts),
        ". ".join(texts) or f"every step is native code of {preferred}",
        "exchange these operators for others, or export the model so that sizes do not depend on data" if texts else "",
        tuple(dict.fromkeys(nodes)),
    )


def missing_fusions(found: Explanation, best: Explanation | None) -> Diagnosis:
    """Rewrites that the options leave out, and places that looked right to a fusion and were left alone.

    `best` is the session with everything turned on, None where that is the session itself.
    """
    texts: list[str] = []
    nodes: list[str] = []
    if best is not None:
        gained = {name: count - found.rewrites.get(name, 0) for name, count in best.rewrites.items()}
        gained = {name: count for name, count in gained.items() if count > 0 and name not in HOUSEKEEPING}
        steps = len(found.rows) - len(best.rows)
        if gained or steps > 0:
            listed = ", ".join(f"{name} {count}" for name, count in gained.items()) or "kernels that do more at once"
            texts.append(
                f"the options leave out {listed}: {counted(len(found.rows), 'step')} in place of {len(best.rows)}"
            )
    fusions = {one.name for one in passes_up_to(Level.ALL) if one.level >= Level.EXTENDED or "Fusion" in one.name}
    for one in found.declined:
        rows = [row for row in found.rows if set(one.nodes) & set(row.nodes)]
        if one.rule in fusions and _time(rows) >= _WORTH * _whole(found) > 0:
            texts.append(f"{one.rule} left {counted(len(one.nodes), 'place')} alone: {one.reason}")
            nodes += one.nodes
    remedy = "ORT_ENABLE_ALL and no disabled optimizers" if best is not None and texts else ""
    if nodes:
        remedy += f"{', and ' if remedy else ''}another way to export what the reasons name"
    evidence = (
        ". ".join(texts) or f"{counted(sum(found.rewrites.values()), 'change')} made, and no fusion missed its pattern"
    )
    return Diagnosis("missing fusions", bool(texts), evidence, remedy, tuple(dict.fromkeys(nodes)))


def thread_contention(found: Explanation, usable: float, others: float | None) -> Diagnosis:
    """More threads than processors, or processors that others use.

    `usable` are the processors' worth of time that this process gets, `others` what other processes take of that.
    """
    threads = found.threads
    evidence = f"{counted(threads, 'thread')} on {usable:g} processor{'' if usable == 1 else 's'}"
    if others is not None:
        evidence += f", of which other processes use {others:.1f}"
    limit = max(1, int(usable))
    is_busy = others is not None and others > _OTHERS and threads + others > usable + _OTHERS
    fewer = max(1, int(usable - others)) if is_busy and others is not None else limit
    remedy = ""
    if threads > max(1.0, usable):
        remedy = f"set intra_op_num_threads to {limit} at most"
        remedy += f", to {fewer} while others compute on the same processors" if fewer < limit else ""
    elif is_busy and fewer < threads:
        remedy = (
            f"set intra_op_num_threads to {fewer}, or session.dynamic_block_base to 4, while others compute on the "
            "same processors"
        )
    elif is_busy:
        remedy = "let others compute elsewhere: nothing that the session could change helps"
    return Diagnosis("thread contention", bool(remedy), evidence, remedy)


def fragmentation(plans: Sequence[Plan], found: Explanation) -> Diagnosis:
    """Memory that earlier runs of larger inputs, or several at once, left behind."""
    execution_contexts = {
        id(step.call.resources[1]): step.call.resources[1] for plan in plans for step in _segments(plan)
    }
    held = sum(one.nbytes for one in execution_contexts.values())
    needed = found.arena_bytes + found.scratch_bytes * found.threads
    grown = held > 2 * needed + _ARENA_BYTES
    evidence = f"a run of these shapes needs {_bytes(needed)}, and the session holds {_bytes(held)} for runs"
    remedy = (
        "give it back by the run option memory.enable_memory_arena_shrinkage after rare large inputs, or bring inputs "
        "to a few sizes"
    )
    return Diagnosis("fragmentation", grown, evidence, remedy if grown else "")


def transfers(subject: Subject, found: Explanation, best: Explanation | None) -> Diagnosis:
    """Values that go from one provider to another, and values that are only brought into another order.

    `best` is the session with everything turned on, None where that is the session itself.
    """
    crossing, nbytes = _crossing(subject, found)
    copies = _copies(found)
    texts = []
    if crossing:
        size = "" if nbytes is None else f", {_bytes(nbytes)}"
        go = "goes" if len(crossing) == 1 else "go"
        texts.append(f"{counted(len(crossing), 'value')} {go} from one provider to another{size}")
    if _time(copies) > _COPIES_WORTH * _whole(found):
        texts.append(f"{counted(len(copies), 'step')} for nothing but copying or turning values{_share(copies, found)}")
    evidence = (
        ". ".join(texts)
        or f"no value changes its provider, and {len(copies)} of {counted(len(found.rows), 'step')} copy"
    )
    remedy = ""
    if crossing:
        remedy = "choose providers that take whole parts of the model"
    elif texts and best is not None and (fewer := len(_copies(best))) < len(copies):
        remedy = f"ORT_ENABLE_ALL and no disabled optimizers, with which {counted(fewer, 'step')} would copy"
    elif texts:
        remedy = "bind inputs and outputs (io_binding), keep past keys and values in place, avoid Transpose at borders"
    names = [*crossing, *(name for row in copies for name in row.nodes)] if texts else []
    return Diagnosis("transfers", bool(texts), evidence, remedy, tuple(dict.fromkeys(names)))


def initializers_in_inputs(found: Explanation) -> Diagnosis:
    """Weights that a caller could override, so that nothing may be computed of them before a run."""
    one = found.overridable
    if one is None:
        return Diagnosis("initializers in inputs", False, "no initializer is an input of the graph")
    texts = [f"{name} {count}" for name, count in one.rewrites.items()]
    if one.packed_bytes:
        texts.append(f"{_bytes(one.packed_bytes)} of weights packed ahead")
    if one.steps[1] < one.steps[0]:
        texts.append(f"{counted(one.steps[1], 'step')} in place of {one.steps[0]}")
    cost = ", ".join(texts) or "nothing here"
    evidence = f"inputs of the graph: {counted(len(one.names), 'initializer')}, which costs {cost}"
    return Diagnosis(
        "initializers in inputs",
        bool(texts),
        evidence,
        "take them off the inputs with sardonyx.tools.remove_initializer_from_input" if texts else "",
        one.nodes if texts else (),
    )


def dynamic_shapes(subject: Subject, found: Explanation, feeds: Mapping[str, Any] | None) -> Diagnosis:
    """Sizes that are open: what is decided in every run because of them, and what fixing them would gain."""
    open_dims: dict[str, int] = {}
    for item in subject.core.inputs_meta:
        for axis, (dim, size) in enumerate(zip(item.shape, found.inputs.get(item.name, ()), strict=False)):
            if not isinstance(dim, int):
                open_dims.setdefault(dim or f"{item.name}[{axis}]", size)
    texts = []
    steered = [step.name for step in _segments(subject.plan) if step.call.steering_places]
    by_data = [row.nodes[0] for row in found.rows if row.kernel.startswith("native ")]
    if steered:
        texts.append(f"planned anew for other contents of small inputs: {counted(len(steered), 'part')} of the model")
    if by_data:
        texts.append(f"sizes of results that the data decide: {counted(len(by_data), 'step')}")
    asking = () if found.open_ifs is None else found.open_ifs.names
    if asking:
        texts.append(f"Ifs ask for them ({len(asking)}): the model is compiled again for sizes that come a second time")
    fixed = {name: size for name, size in open_dims.items() if "[" not in name}
    gain = _fixed(subject, found, fixed, feeds) if fixed else None
    if gain is not None:
        made = {name: count - found.rewrites.get(name, 0) for name, count in gain.rewrites.items()}
        made = {name: count for name, count in made.items() if count > 0 and name not in HOUSEKEEPING}
        now, then = (one.totals["predicted_us"] or 0.0 for one in (found, gain))
        if len(gain.rows) < (1 - _WORTH) * len(found.rows) or then < (1 - _WORTH) * now:
            listed = ", ".join(f"{name} {count}" for name, count in made.items())
            made_of = f"{counted(len(gain.rows), 'step')} of {len(found.rows)}"
            texts.append(f"fixed sizes would make {made_of}{f' ({listed})' if listed else ''}")
    names = ", ".join(open_dims) or "none"
    harmless = "Nothing is slower for them but the first run of each size" if open_dims else ""
    evidence = ". ".join([f"open sizes: {names}", *(texts or [harmless] * bool(harmless))])
    remedies = []
    if steered:
        remedies.append("make constants of the inputs that say sizes")
    if by_data:
        remedies.append("give these results one size, as by a mask in place of Compress, or pad them")
    if len(texts) > bool(steered) + bool(by_data):
        remedies.append("fix the open sizes (add_free_dimension_override_by_name, or export with fixed ones)")
    remedy = "; ".join(remedies)
    nodes = tuple(dict.fromkeys([*steered, *by_data, *asking]))
    return Diagnosis("dynamic shapes", bool(texts), evidence, remedy, nodes)


def _as_good_as_possible(subject: Subject, found: Explanation, feeds: Mapping[str, Any] | None) -> Explanation | None:
    """The session at level ALL with nothing left out; None where it is that already, or cannot be made."""
    core = subject.core
    options = core.session_options._copy()
    key = "optimization.disable_specified_optimizers"
    is_best = options.graph_optimization_level == GraphOptimizationLevel.ORT_ENABLE_ALL
    if is_best and not core.disabled_optimizers and not options._config.get(key):
        return None
    options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
    options._config.pop(key, None)
    return _variant(subject, options, found, feeds, frozenset())


def _fixed(
    subject: Subject, found: Explanation, sizes: Mapping[str, int], feeds: Mapping[str, Any] | None
) -> Explanation | None:
    """The session with these sizes of named dimensions; None where it cannot be made."""
    options = subject.core.session_options._copy()
    for name, size in sizes.items():
        options.add_free_dimension_override_by_name(name, size)
    return _variant(subject, options, found, feeds, subject.core.disabled_optimizers)


def _variant(
    subject: Subject,
    options: SessionOptions,
    found: Explanation,
    feeds: Mapping[str, Any] | None,
    disabled: frozenset[str],
) -> Explanation | None:
    try:
        return explained(subject.variant(options, disabled), feeds, found.inputs)
    except errors.OnnxRuntimeError:
        return None


def _segments(plan: Plan) -> Iterator[Any]:
    """The native segments of a plan and of the bodies inside it, as their steps."""
    for step in plan.steps:
        if isinstance(step.call, NativeSegment):
            yield step
        elif isinstance(step.call, ControlFlowCall):
            for body in step.call.bodies.values():
                yield from _segments(body)


def _is_free(row: Row) -> bool:
    """Whether a step that is not native only looks at memory another way, or runs native steps inside."""
    return row.kernel.startswith("view ") or row.operators[0] in ("If", "Loop", "Scan")


def _crossing(subject: Subject, found: Explanation) -> tuple[list[str], int | None]:
    """The names of values that one provider makes and another one reads, and their bytes where all are known."""
    compiled = subject.compiled
    values: dict[ir.Value, None] = {}
    for graph in graphs_of(compiled.model.graph):
        provider = compiled.placements[graph].provider
        for node in graph:
            inside = (inner for body in subgraphs(node) for inner in nodes_of(body))
            for value in (value for one in (node, *inside) for value in one.inputs if value is not None):
                maker = value.producer()
                if maker is not None and provider.get(maker, provider[node]) != provider[node]:
                    values[value] = None
    symbols = symbols_of(subject.plan, found.inputs)
    sizes = {slot.name: slot.nbytes(symbols) for slot in subject.plan.slots}
    known = [sizes.get(value.name or "") for value in values]
    total = None if any(size is None for size in known) else sum(size for size in known if size is not None)
    return [value.name or "" for value in values], total


def _time(rows: list[Row]) -> float:
    """Microseconds, measured ones where there are any."""
    return sum((row.measured_us or row.predicted_us or 0.0) * row.executions for row in rows)


def _whole(found: Explanation) -> float:
    """Microseconds of all steps, those inside of others' not once more."""
    totals = found.totals
    return totals["measured_us"] or totals["predicted_us"] or 0.0


def _copies(found: Explanation) -> list[Row]:
    """The steps that only bring values into another order."""
    return [row for row in found.rows if row.kernel.split(" ")[0] in _COPIES]


def _share(rows: list[Row], found: Explanation) -> str:
    """The share of a run, where the times are measured: host steps have no other."""
    if found.totals["measured_us"] is None or not any(row.measured_us for row in rows):
        return ""
    return f", {_time(rows) / _whole(found):.0%} of its time"


def _bytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} KB"
