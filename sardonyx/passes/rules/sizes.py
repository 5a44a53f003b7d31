"""Sizes of intermediate results that the inputs of the model have too."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import Dims
from sardonyx.passes.base import Level
from sardonyx.passes.rule import Match, Replacement, Rule, op
from sardonyx.passes.rules.facts import in_main_graph


class ShapeFromInputs(Rule):
    """The Shape of a four-dimensional intermediate result is put together from the shapes of the model's inputs.

    Exporters ask the scores of attention, or its heads, for sizes that the inputs have: without such a reader the
    result need not exist.
    """

    name = "ShapeFromInputs"
    level = Level.BASIC
    patterns = (op.Shape("x"),)

    def check(self, m: Match) -> str | None:
        if m.fact("x").rank != 4 or m.value("x").producer() is None:
            return ""
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        sources = self._sources(m)
        sizes = self._sizes(m)
        if not sizes or not all(isinstance(dim, int) or dim.value in sources for dim in sizes):
            return "no input of the model has all of its sizes"
        return None

    @staticmethod
    def _sizes(m: Match) -> Dims:
        """The dimensions that the node gives out."""
        shape = m.fact("x").shape
        assert shape is not None
        return shape[m.attribute(m.root, "start", 0) : m.attribute(m.root, "end", len(shape))]

    @staticmethod
    def _sources(m: Match) -> Mapping[str, tuple[ir.Value, int]]:
        """Where the model's inputs have a dimension of a name."""
        found: dict[str, tuple[ir.Value, int]] = {}
        for value in m.context.model.graph.inputs:
            for axis, dim in enumerate(m.context.inference.facts[value].shape or ()):
                if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                    found.setdefault(dim.value, (value, axis))
        return found

    def rewrite(self, m: Match) -> Replacement:
        sources = self._sources(m)
        nodes: list[ir.Node] = []
        shapes: dict[ir.Value, ir.Value] = {}
        parts: list[ir.Value] = []
        for dim in self._sizes(m):
            if isinstance(dim, int):
                parts.append(m.initializer(np.array([dim], np.int64), "size"))
                continue
            assert dim.value is not None
            source, axis = sources[dim.value]
            if source not in shapes:
                nodes.append(m.new_node("Shape", [source]))
                shapes[source] = nodes[-1].outputs[0]
            nodes.append(m.new_node("Gather", [shapes[source], m.initializer(np.array([axis], np.int64), "axis")]))
            parts.append(nodes[-1].outputs[0])
        nodes.append(m.new_node("Concat", parts, {"axis": 0}))
        for place, node in enumerate(nodes):
            node.name = f"{m.root.name}_{place}"
        return Replacement(nodes, {m.root.outputs[0]: nodes[-1].outputs[0]})


RULES: tuple[Rule, ...] = (ShapeFromInputs(),)
