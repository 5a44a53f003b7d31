"""Reshape, Squeeze, Unsqueeze and Flatten: with constant shapes, chains as one, those without effect gone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import Dims, same
from sardonyx.passes.base import Level
from sardonyx.passes.rule import Match, OpPattern, Rule, op
from sardonyx.passes.rules.facts import all_known, in_main_graph, may_change_shape, result_fact, same_shape

VIEWS = "Reshape|Squeeze|Unsqueeze|Flatten"


def constant_target(shape: Dims | None, source: Dims | None, hole: int | None) -> list[int] | str:
    """A shape for Reshape that gives `shape` in every run, or why there is none.

    A size that varies is copied from the same place of the input (0) or is what is left over (-1). What is left over
    is not defined where another size is 0: -1 stands only at `hole`, where the model has it, or beside plain numbers.
    """
    if shape is None or source is None:
        return "the shape of its input or its result is not known"
    target: list[int] = []
    open_places = []
    for place, dim in enumerate(shape):
        if dim == 0:
            return "a size of its result is 0"
        if isinstance(dim, int):
            target.append(dim)
        elif place < len(source) and same(dim, source[place]):
            target.append(0)
        else:
            target.append(-1)
            open_places.append(place)
    if len(open_places) > 1:
        return "more than one size of its result varies and is not at the same place of its input"
    if open_places and open_places != [hole] and 0 in target:
        return "what is left over is not defined where another size is 0"
    return target


class ConstantReshape(Rule):
    """Reshape to sizes that are computed becomes Reshape to a constant: 0 copies a size, -1 is what is left over."""

    name = "ReshapeFusion"
    level = Level.BASIC
    patterns = (op.Reshape("x", "shape"),)

    def check(self, m: Match) -> str | None:
        if m.constant("shape") is not None:
            return ""
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        target = self._target(m)
        if isinstance(target, str):
            return target
        if -1 in target and self._is_data(m):
            return "the sizes come with the run, which refuses those that do not fit"
        return None

    @staticmethod
    def _is_data(m: Match) -> bool:
        """Whether nothing is known of the sizes, or of the only one not that it is the number of elements."""
        wanted, source = m.fact("shape").elements, m.fact("x").shape
        if wanted is None or source is None:
            return True
        return len(wanted) == 1 and wanted[0] != -1 and not same(wanted[0], dims.product(source))

    @staticmethod
    def _target(m: Match) -> list[int] | str:
        wanted = m.fact("shape").elements
        hole = wanted.index(-1) if wanted is not None and -1 in wanted else None
        result = result_fact(m)
        if m.root.outputs[0].is_graph_output():  # callers of onnxruntime declare outputs carelessly: it only warns
            inference = m.context.inference
            (result,) = inference.operator(m.root).infer([m.fact("x"), m.fact("shape")], inference)
        return constant_target(result.shape, m.fact("x").shape, hole)

    def rewrite(self, m: Match) -> ir.Node:
        target = m.initializer(np.array(self._target(m), np.int64), "shape")
        return m.new_node("Reshape", [m.value("x"), target], version=m.root.version)


class EliminateView(Rule):
    """A view that gives its input the shape that it has is the input."""

    name = "ReshapeElimination"
    level = Level.BASIC
    patterns = (OpPattern(VIEWS, ("x", "how?")),)

    def check(self, m: Match) -> str | None:
        return may_change_shape(m)

    def rewrite(self, m: Match) -> ir.Value:
        return m.value("x")


class MergeViews(Rule):
    """A view of a view is one Reshape of what the first one reads, or that itself."""

    name = "ReshapeChainFusion"
    level = Level.BASIC
    patterns = (OpPattern(VIEWS, (OpPattern(VIEWS, ("x", "first?"), shared=True), "second?")),)

    def check(self, m: Match) -> str | None:
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        source, shape = m.fact("x").shape, result_fact(m).shape
        if not all_known(source) or not all_known(shape):
            return "the shape of its input or its result is not known"
        if _gives_back(m):
            return None
        target = constant_target(shape, source, None)
        return target if isinstance(target, str) else None

    def rewrite(self, m: Match) -> ir.Node | ir.Value:
        if _gives_back(m):
            return m.value("x")
        source, shape = m.fact("x").shape, result_fact(m).shape
        target = m.initializer(np.array(constant_target(shape, source, None), np.int64), "shape")
        opset = m.context.model.opset_imports.get("", 1)
        return m.new_node("Reshape", [m.value("x"), target], version=max(opset, 5))


def _gives_back(m: Match) -> bool:
    """Whether the result is the first value itself; an output of the model stays a value of its own."""
    return same_shape(m.fact("x").shape, result_fact(m).shape) and not m.root.outputs[0].is_graph_output()


class MergeUnsqueezes(Rule):
    """Unsqueeze of Unsqueeze inserts all axes at once."""

    name = "UnsqueezeElimination"
    level = Level.BASIC
    patterns = (op.Unsqueeze(op.Unsqueeze("x", "first!", shared=True), "second!"),)

    def check(self, m: Match) -> str | None:
        return None if m.fact("x").rank is not None else "the number of its input's dimensions is not known"

    def rewrite(self, m: Match) -> ir.Node:
        rank, first, second = m.fact("x").rank, m.constant("first"), m.constant("second")
        assert rank is not None
        assert first is not None
        assert second is not None
        inner = {int(axis) % (rank + first.size) for axis in first.ravel()}
        result = rank + first.size + second.size
        outer = {int(axis) % result for axis in second.ravel()}
        # The axes of the first result, in order, take the places that the second one leaves.
        places = [place for place in range(result) if place not in outer]
        axes = sorted(outer | {places[axis] for axis in inner})
        return m.new_node(
            "Unsqueeze", [m.value("x"), m.initializer(np.array(axes, np.int64), "axes")], version=m.root.version
        )


RULES: tuple[Rule, ...] = (ConstantReshape(), MergeUnsqueezes(), MergeViews(), EliminateView())
