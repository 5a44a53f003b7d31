"""A session's inside: from a loaded model to the plan that runs.

`CompiledModel.build` is the whole way, top to bottom; afterwards the object never changes. The model lives no longer
than it.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from sardonyx import errors, log
from sardonyx.api.building.declarations import declared as declared_value
from sardonyx.api.building.declarations import merged, report_contradictions, symbols_of
from sardonyx.api.building.placement_report import AssignedNode
from sardonyx.api.building.signature import Declared
from sardonyx.api.enums import ExecutionOrder
from sardonyx.compiler.likely_shapes import likely_shapes
from sardonyx.compiler.planner import Compilation, CompiledGraph, build_plan
from sardonyx.graph.constants import array_of, graphs_of
from sardonyx.graph.load import LoadedModel
from sardonyx.graph.node_order import by_memory, by_priority, reorder
from sardonyx.graph.partition import Placement, partitions, place
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.check import check_model
from sardonyx.ops.framework.inference import Inference, infer_model
from sardonyx.passes import pipeline
from sardonyx.passes.base import DEFAULT as DEFAULT_REWRITES
from sardonyx.passes.base import Level, PassReport
from sardonyx.passes.base import Settings as RewriteSettings
from sardonyx.passes.caches.decoder import AS_THEY_ARE, DecoderChoice, rewrite_decoder
from sardonyx.providers.base import ExecutionProvider
from sardonyx.runtime.settings import DEFAULT, RunSettings
from sardonyx.runtime.trace import Trace, span

_BITS_OF_A_TEXT = 64  # where it lies


def never_cancelled() -> None:
    """A build that nobody can cancel."""


@dataclass(frozen=True)
class CompiledModel:
    """The plan of a model and what it was made from.

    `inputs`, `outputs` and `overridable` (initializers that are graph inputs, with `defaults` by name) are what
    callers see.
    """

    model: ir.Model
    compiled: CompiledGraph
    placements: Mapping[ir.Graph, Placement]
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    overridable: tuple[Declared, ...]
    defaults: Mapping[str, Any]
    nodes: tuple[AssignedNode, ...]
    passes: tuple[PassReport, ...]
    contradictions: tuple[str, ...]  # lines of the log on declared shapes that are not the inferred ones
    open_ifs: tuple[str, ...]  # Ifs that leave ranks open which the sizes of the inputs may tell

    @classmethod
    def build(
        cls,
        loaded: LoadedModel,
        providers: Sequence[ExecutionProvider],
        logger: log.Logger,
        level: Level = Level.ALL,
        disabled_optimizers: Collection[str] = (),
        *,
        strict_shapes: bool = False,
        on_optimized: Callable[[ir.Model], None] | None = None,
        check_cancelled: Callable[[], None] = never_cancelled,
        settings: RunSettings = DEFAULT,
        rewrites: RewriteSettings = DEFAULT_REWRITES,
        order: ExecutionOrder = ExecutionOrder.DEFAULT,
        trace: Trace | None = None,
        caches: DecoderChoice = AS_THEY_ARE,
    ) -> CompiledModel:
        """Infer, rewrite, place and compile a model for the given providers, in their priority.

        `on_optimized` is called with the model after its rewrites; `check_cancelled` before every stage, and may raise.
        With `strict_shapes` a declared shape that inference contradicts is an error. `caches` says what becomes
        of a decoder; `DeclinedError` where its caches cannot be written in place.
        """
        model = loaded.model
        if caches.past:  # which only attention that is one node can have
            rewrites = replace(rewrites, fuses_any_floats=True)
        with span(trace, "Compile", "check"):
            check_model(model)
        declared = _declarations(model.graph)
        check_cancelled()
        with span(trace, "Compile", "infer"):
            inference = infer_model(model, names=True)
        contradictions = report_contradictions(declared, inference.facts, strict_shapes, logger)
        inputs, overridable, outputs = _signature(model.graph, declared, inference)
        defaults = {item.name: array_of(model.graph.initializers[item.name]) for item in overridable}
        check_cancelled()
        with span(trace, "Compile", "optimize"):
            passes = pipeline.apply(model, level, disabled_optimizers, inference, rewrites)
            if caches != AS_THEY_ARE:
                inference = rewrite_decoder(model, inference, caches, rewrites, passes)
                inputs, overridable, outputs = _signature(model.graph, _declarations(model.graph), inference)
        for report in passes:
            logger.verbose(f"GraphTransformer {report.name} modified: {report.changes} with status: OK", "pipeline")
        if on_optimized is not None:
            on_optimized(model)
        check_cancelled()
        _put_in_order(model, inference, order)
        placements: dict[ir.Graph, Placement] = {}
        nodes: list[AssignedNode] = []
        with span(trace, "Compile", "plan"):
            compiled = _compile(model.graph, inference, providers, placements, nodes, settings, trace)
        seen = inputs, outputs, overridable, defaults
        open_ifs = _open_ifs(model.graph, inference) if level > Level.DISABLED else ()
        made = cls(model, compiled, placements, *seen, tuple(nodes), tuple(passes), contradictions, open_ifs)
        weakref.finalize(made, inference.let_go).atexit = False
        return made


def _open_ifs(graph: ir.Graph, inference: Inference) -> tuple[str, ...]:
    """The names of Ifs with results whose ranks are not known, as where they depend on the shape of a value."""

    def is_open(node: ir.Node) -> bool:
        facts = [inference.fact(value) for value in node.outputs if value.name != ""]
        return any(fact is not None and fact.shape is None and fact.dtype is not None for fact in facts)

    return tuple(name_of_if(node) for node in graph.all_nodes() if node.op_type == "If" and is_open(node))


def name_of_if(node: ir.Node) -> str:
    """The name of an If, or that of what it makes."""
    return node.name or node.outputs[0].name or ""


def _put_in_order(model: ir.Model, inference: Inference, order: ExecutionOrder) -> None:
    """Bring the nodes of every graph into the order that the caller wishes; the default is the written one."""
    if order == ExecutionOrder.DEFAULT:
        return

    def size_of(value: ir.Value) -> int:
        """Bytes of a value for sizes that are likely."""
        fact = inference.fact(value)
        if fact is None or fact.dtype is None or fact.shape is None:
            return 0
        (shape,) = likely_shapes([value], inference)
        bits = _BITS_OF_A_TEXT if fact.dtype == ir.DataType.STRING else fact.dtype.bitwidth
        return int(math.prod(shape) * bits / 8)

    for graph in list(graphs_of(model.graph)):
        prioritised = order == ExecutionOrder.PRIORITY_BASED
        reorder(graph, by_priority(graph) if prioritised else by_memory(graph, size_of))


def _compile(
    root: ir.Graph,
    inference: Inference,
    providers: Sequence[ExecutionProvider],
    placements: dict[ir.Graph, Placement],
    nodes: list[AssignedNode],
    settings: RunSettings,
    trace: Trace | None,
) -> CompiledGraph:
    """Place and plan a graph and, from inside its control flow, its subgraphs; fills `placements` and `nodes`."""
    by_name = {provider.name: provider for provider in providers}

    def compile_graph(graph: ir.Graph) -> CompiledGraph:
        with span(trace, "Compile", "place"):
            claims = {name: provider.claim(graph, inference) for name, provider in by_name.items()}
            placement, left = place(graph, claims)
        if left:
            names = ", ".join(f"{node.op_type}({node.version}) node with name '{node.name}'" for node in left)
            raise errors.NotImplemented(f"Could not find an implementation for {names}")
        placements[graph] = placement
        compilation = Compilation(graph, inference, compile_graph, array_of, settings)
        nodes.extend(_assigned(node, placement, compilation) for node in graph)
        return build_plan(compilation, partitions(list(graph), placement), by_name.__getitem__)

    return compile_graph(root)


def _assigned(node: ir.Node, placement: Placement, compilation: Compilation) -> AssignedNode:
    declined = placement.declined.get(node, {})
    return AssignedNode(
        name=node.name or compilation.node_name(node),
        op_type=node.op_type,
        domain=node.domain,
        provider=placement.provider[node],
        declined=tuple(declined.items()),
    )


def _declarations(graph: ir.Graph) -> dict[ir.Value, Declared]:
    """What the model file says of the main graph's values, before inference adds to it."""
    values = [*graph.inputs, *(value for node in graph for value in node.outputs), *graph.outputs]
    return {value: declared_value(value) for value in values}


def _signature(
    graph: ir.Graph, declared: Mapping[ir.Value, Declared], inference: Inference
) -> tuple[tuple[Declared, ...], tuple[Declared, ...], tuple[Declared, ...]]:
    """Inputs, overridable initializers and outputs."""
    symbols = symbols_of(list(declared.values()))
    outputs = tuple(merged(declared[value], inference.facts[value], symbols) for value in graph.outputs)
    given = tuple(declared[value] for value in graph.inputs if value.name not in graph.initializers)
    overridable = tuple(declared[value] for value in graph.inputs if value.name in graph.initializers)
    return given, overridable, outputs
