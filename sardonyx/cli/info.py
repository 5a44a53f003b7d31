"""`sardonyx info`: what a model is made of, what it costs, and what runs it."""

from __future__ import annotations

import collections
import json
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from sardonyx import errors, log
from sardonyx.api.building.compiled_model import CompiledModel
from sardonyx.cli.arguments import dimensions
from sardonyx.cli.assumptions import sizes_not_given
from sardonyx.cli.console import console, plain_table, say
from sardonyx.cli.model_inputs import open_dimensions, required_inputs
from sardonyx.cli.models import read_model
from sardonyx.cli.options import Dims, Json, Model
from sardonyx.cli.shapes import infer, listed_shape
from sardonyx.compiler.bound_plan import buffer_bytes, native_plan
from sardonyx.compiler.memory import plan_memory
from sardonyx.graph.constants import graphs_of
from sardonyx.graph.types import type_name
from sardonyx.ops.framework.facts import UNKNOWN
from sardonyx.ops.framework.inference import Inference
from sardonyx.providers import registry
from sardonyx.providers.base import ExecutionProvider
from sardonyx.runtime.native.native_segment import NativeSegment, ReadyPlan
from sardonyx.runtime.plan import Plan

EXAMPLES = ("sardonyx info model.onnx", "sardonyx info model.onnx --dim batch=8 --dim seq=128 --json")


def info(
    model: Model,
    dims: Dims = None,
    as_json: Json = False,
) -> None:
    """Describe a model; `--dim` gives the sizes for the cost and the memory."""
    sizes = dimensions(dims or [])
    source = read_model(model).model
    assumed = {name: 1 for name in open_dimensions(required_inputs(source)) if name not in sizes}
    report: dict[str, Any] = {"model": str(model), "assumed": assumed, **signature(source), **contents(source)}
    try:
        report["cost"] = {**cost(source, infer(source, sizes)), "problem": None}
    except errors.OnnxRuntimeError as error:  # the model does not take these sizes; the rest of the report still holds
        source = read_model(model).model
        report["cost"] = {**cost(source, infer(source)), "problem": error.message}
    compiled = CompiledModel.build(read_model(model), _providers(), log.DEFAULT)
    bound = bound_segments(compiled.compiled.plan, collections.defaultdict(lambda: 1, sizes))
    report |= {"placement": placement(compiled, bound), "memory": memory(compiled.compiled.plan, sizes, bound)}
    if as_json:
        print(json.dumps(report))
    else:
        _show(report)


def signature(model: ir.Model) -> dict[str, Any]:
    """Inputs, outputs, versions and origin."""
    return {
        "ir_version": model.ir_version,
        "opsets": {domain or "ai.onnx": version for domain, version in model.opset_imports.items()},
        "producer": {"name": model.producer_name or "", "version": model.producer_version or ""},
        "graph": model.graph.name or "",
        "metadata": dict(model.metadata_props),
        "inputs": [_described(value) for value in required_inputs(model)],
        "outputs": [_described(value) for value in model.graph.outputs],
    }


def _described(value: ir.Value) -> dict[str, Any]:
    shape = None if value.shape is None else [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    return {"name": value.name, "type": "" if value.type is None else type_name(value.type), "shape": shape}


def contents(model: ir.Model) -> dict[str, Any]:
    """Operators by number and the weights: elements and bytes of all initializers."""
    graphs = list(graphs_of(model.graph))
    operators = collections.Counter(_operator(node) for graph in graphs for node in graph)
    weights = [
        value.const_value for graph in graphs for value in graph.initializers.values() if value.const_value is not None
    ]
    return {
        "nodes": sum(operators.values()),
        "operators": dict(operators.most_common()),
        "parameters": {
            "count": sum(int(weight.size) for weight in weights),
            "bytes": sum(int(weight.nbytes) for weight in weights),
        },
    }


def _operator(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def cost(model: ir.Model, inference: Inference) -> dict[str, Any]:
    """Floating-point operations of one run (a multiply-add counts 2) with these sizes; subgraphs do not count."""
    flops: collections.Counter[str] = collections.Counter()
    unknown: collections.Counter[str] = collections.Counter()
    for node in model.graph:
        outputs = [inference.facts.get(value, UNKNOWN) for value in node.outputs]
        found = inference.operator(node).cost([inference.fact(value) for value in node.inputs], outputs)
        if found.flops is None:
            unknown[_operator(node)] += 1
        else:
            flops[_operator(node)] += int(found.flops)
    return {"flops": sum(flops.values()), "by_operator": dict(flops.most_common()), "unknown": dict(unknown)}


def _providers() -> list[ExecutionProvider]:
    return [registry.create(name, {}) for name in registry.available()]


def bound_segments(plan: Plan, dims: Mapping[str, int]) -> dict[int, ReadyPlan | None]:
    """The native plan of each segment, by its place; None where only a run tells its shapes, or these do not fit it."""
    found: dict[int, ReadyPlan | None] = {}
    for place, step in enumerate(plan.steps):
        if isinstance(step.call, NativeSegment):
            try:
                found[place] = native_plan(plan, step, dims)
            except errors.OnnxRuntimeError:  # `run` tells which node breaks; the rest of the report still holds
                found[place] = None
    return found


def placement(compiled: CompiledModel, bound: Mapping[int, ReadyPlan | None]) -> dict[str, Any]:
    """Where the optimised model runs: operators by provider, steps by what they are, host steps with reasons.

    Steps are native kernels, views and values known from shapes (which cost nothing in a run), calls into Python, and
    what NumPy computes by itself because nothing native surrounds it.
    """
    by_provider: dict[str, collections.Counter[str]] = {}
    for node in compiled.nodes:
        by_provider.setdefault(node.provider, collections.Counter())[node.op_type] += 1
    host: collections.Counter[tuple[str, str]] = collections.Counter()
    steps: collections.Counter[str] = collections.Counter()
    for place, step in enumerate(compiled.compiled.plan.steps):
        ready = bound.get(place)
        if ready is not None:
            steps += _inside(ready)
        else:
            steps["numpy" if step.kind in ("kernel", "view") else step.kind] += 1
        if step.kind == "host":
            host[step.op_type, step.reason] += 1
    return {
        "steps": dict(steps.most_common()),
        "providers": {name: dict(counts.most_common()) for name, counts in by_provider.items()},
        "host": [{"operator": name, "count": n, "reason": reason} for (name, reason), n in host.most_common()],
    }


def _inside(ready: ReadyPlan) -> collections.Counter[str]:
    """What a segment is made of."""
    anchors = [group.anchor for group in ready.source.segment.groups]
    roles = collections.Counter(anchor.role for anchor in anchors if anchor is not None)
    return collections.Counter(native=len(ready.source.bound.steps), view=roles["view"], known=roles["known"])


def memory(plan: Plan, dims: Mapping[str, int], bound: Mapping[int, ReadyPlan | None]) -> dict[str, Any]:
    """Bytes of the intermediate values with these sizes: in memory that they share, and each by itself.

    The arenas of the segments, which use one memory after another, and the values between segments and host steps.
    """
    between = plan_memory(plan, collections.defaultdict(lambda: 1, dims))
    known = [ready for ready in bound.values() if ready is not None]
    return {
        "arena_bytes": between.layout.nbytes + max((ready.plan.arena_bytes for ready in known), default=0),
        "without_reuse_bytes": between.without_reuse + sum(buffer_bytes(ready.source.bound) for ready in known),
        "values_of_unknown_size": len(between.unknown),
        "segments_of_unknown_size": len(bound) - len(known),
    }


def _show(report: dict[str, Any]) -> None:
    out = console()
    opsets = ", ".join(f"{domain} {version}" for domain, version in report["opsets"].items())
    producer = " ".join(filter(None, report["producer"].values())) or "unknown"
    parameters = report["parameters"]
    say(out, f"{report['model']}: IR version {report['ir_version']}, opset {opsets}, producer {producer}")
    values = plain_table("", "name", "type", "shape")
    for kind in ("inputs", "outputs"):
        for value in report[kind]:
            shape = (
                "unknown" if value["shape"] is None else listed_shape("?" if d is None else d for d in value["shape"])
            )
            values.add_row(kind[:-1], value["name"], value["type"], shape)
    out.print(values)
    say(out, f"parameters  {parameters['count']:,} in {parameters['bytes'] / 1e6:,.1f} MB")
    unknown = sum(report["cost"]["unknown"].values())
    if report["assumed"]:
        say(out, f"sizes       {sizes_not_given(report['assumed'])}")
    if report["cost"]["problem"] is None:
        say(
            out,
            f"cost        {_operations(report['cost']['flops'])} a run"
            + (f", and {unknown} nodes whose sizes depend on data" if unknown else ""),
        )
    else:
        problem = " ".join(report["cost"]["problem"].split())
        say(out, f"cost        unknown, the model does not take these sizes: {problem}")
    memory_bytes = report["memory"]
    unsized = memory_bytes["segments_of_unknown_size"]
    say(
        out,
        f"memory      {memory_bytes['arena_bytes'] / 1e6:,.1f} MB for intermediate values, "
        f"{memory_bytes['without_reuse_bytes'] / 1e6:,.1f} MB if none shared"
        + (f", {unsized} segments of unknown sizes not counted" if unsized else ""),
    )
    say(out, f"operators   {report['nodes']}: {_counts(report['operators'])}")
    placement = report["placement"]
    for name, operators in placement["providers"].items():
        say(out, f"{name}  {sum(operators.values())} nodes: {_counts(operators)}")
    say(out, f"steps       {sum(placement['steps'].values())}: {_counts(placement['steps'])}")
    for entry in placement["host"]:
        say(out, f"host  {entry['count']} {entry['operator']}: {entry['reason']}")


def _operations(count: int) -> str:
    return f"{count / 1e9:,.3f} GFLOP" if count >= 1e8 else f"{count / 1e6:,.3f} MFLOP"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
