"""A session's inside: from a loaded model to the plan that runs.

`CompiledModel.build` is the whole way, top to bottom; afterwards the object never changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx import errors, log
from sardonyx.compiler.planner import Compilation, CompiledGraph, build_plan
from sardonyx.graph.constants import array_of
from sardonyx.graph.load import LoadedModel
from sardonyx.graph.partition import Placement, partitions, place
from sardonyx.ops.framework.inference import Inference
from sardonyx.passes import pipeline
from sardonyx.passes.base import Level, PassReport
from sardonyx.providers.base import ExecutionProvider


@dataclass(frozen=True)
class CompiledModel:
    """The plan of a model and what it was made from."""

    model: ir.Model
    compiled: CompiledGraph
    placements: Mapping[ir.Graph, Placement]
    passes: tuple[PassReport, ...] = ()

    @classmethod
    def build(
        cls,
        loaded: LoadedModel,
        providers: Sequence[ExecutionProvider],
        logger: log.Logger,
        level: Level = Level.ALL,
        disabled_optimizers: Collection[str] = (),
    ) -> CompiledModel:
        """Rewrite, infer, place and compile a model for the given providers, in their priority."""
        model = loaded.model
        passes = pipeline.apply(model, level, disabled_optimizers)
        for report in passes:
            logger.verbose(f"GraphTransformer {report.name} modified: {report.changes} with status: OK", "pipeline")
        for node in model.graph.all_nodes():
            node.version = node.version or model.opset_imports.get(node.domain, 1)
        inference = Inference(model.opset_imports, model.ir_version)
        inference.graph(model.graph)
        by_name = {provider.name: provider for provider in providers}
        placements: dict[ir.Graph, Placement] = {}

        def compile_graph(graph: ir.Graph) -> CompiledGraph:
            claims = {name: provider.claim(graph, inference) for name, provider in by_name.items()}
            placement, left = place(graph, claims)
            if left:
                names = ", ".join(f"{node.op_type} ({node.name})" for node in left)
                raise errors.NotImplemented(f"Could not find an implementation for {names}")
            placements[graph] = placement
            compilation = Compilation(graph, inference, compile_graph)
            return build_plan(
                compilation, partitions(list(graph), placement), by_name.__getitem__, array_of
            )

        return cls(model, compile_graph(model.graph), placements, tuple(passes))
