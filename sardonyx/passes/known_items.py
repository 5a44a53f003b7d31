"""Sequences whose items are known one by one: who takes an item reads the value that was put there.

Exporters write a tensor that is split at given places as a Loop over the places, each round of which adds a part to a
sequence, out of which the parts are taken again. Nothing is known of an item of a sequence but its type, so that all
that follows ran node by node.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import tensor_of
from sardonyx.graph.types import element_type
from sardonyx.ops.framework.facts import of_array
from sardonyx.passes.base import Context
from sardonyx.passes.branches import inline

ROUNDS = "SingleRoundElimination"
ITEMS = "SequenceItemElimination"

_AROUND = 2  # inputs of a Loop and of its body before the carried values


def inline_single_rounds(context: Context) -> int:
    """Put the body of a Loop that always does one round in its place; how many Loops went.

    Loops inside others are left alone, as are those that stack what their rounds make.
    """
    graph = context.model.graph
    loops = [node for node in _nodes(graph, "Loop") if _is_single(node, context)]
    for loop in loops:
        body = loop.attributes["body"].as_graph()
        given = [_counter(loop, body, context), _constant(graph, f"{_name(loop)}_going", np.array(True), context)]
        for taken, value in zip(list(body.inputs), [*given, *loop.inputs[_AROUND:]], strict=True):
            assert value is not None
            taken.replace_all_uses_with(value, replace_graph_outputs=True)
        del body.inputs[:], body.outputs[0]
        for added in inline(graph, loop, body, ROUNDS):
            context.added(added)
    if loops:
        _infer(graph, context)
    return len(loops)


def _is_single(loop: ir.Node, context: Context) -> bool:
    """Whether a Loop does one round in every run, and stacks nothing."""
    body = loop.attributes["body"].as_graph()
    if len(loop.inputs) < _AROUND or len(body.inputs) != len(loop.inputs) or len(body.outputs) != len(body.inputs) - 1:
        return False
    limit, going = loop.inputs[:_AROUND]
    if len(loop.outputs) != len(body.outputs) - 1 or None in loop.inputs[_AROUND:]:
        return False
    if _number(limit, context) != 1:
        return False
    return going is None or going.name == "" or _number(going, context) == 1


def _counter(loop: ir.Node, body: ir.Graph, context: Context) -> ir.Value:
    """The number of the first round, in the shape that the body declares."""
    declared = body.inputs[0].shape
    shape = (1,) if declared is not None and len(declared) == 1 else ()
    return _constant(context.model.graph, f"{_name(loop)}_round", np.zeros(shape, np.int64), context)


def take_known_items(context: Context) -> int:
    """Let who takes an item of a sequence read the value that was put there; how many nodes were spared."""
    graph = context.model.graph
    changes = 0
    for node in _nodes(graph, "SequenceAt"):
        made = node.outputs[0]
        items, place = _items(node.inputs[0], context), _number(node.inputs[1], context)
        if items is None or place is None or not -len(items) <= place < len(items) or made.is_graph_output():
            continue
        made.replace_all_uses_with(items[place])
        graph.remove(node, safe=True)
        changes += 1
    if changes:
        _infer(graph, context)
    return changes


def _items(sequence: ir.Value | None, context: Context) -> list[ir.Value] | None:
    """What a sequence consists of; None where that is not known."""
    inserted: list[ir.Node] = []
    node = None if sequence is None else sequence.producer()
    while node is not None and _is(node, "SequenceInsert"):
        inserted.append(node)
        sequence = node.inputs[0]
        node = None if sequence is None else sequence.producer()
    if node is None or not (_is(node, "SequenceEmpty") or _is(node, "SequenceConstruct")):
        return None
    items = [value for value in node.inputs if value is not None]
    for node in reversed(inserted):
        _, item, *rest = node.inputs
        place = _number(rest[0], context) if rest and rest[0] is not None else len(items)
        if item is None or place is None or not -len(items) <= place <= len(items):
            return None
        items.insert(place, item)
    return items


def _nodes(graph: ir.Graph, op_type: str) -> Iterator[ir.Node]:
    return (node for node in list(graph) if _is(node, op_type))


def _is(node: ir.Node, op_type: str) -> bool:
    return node.op_type == op_type and node.domain == ""


def _number(value: ir.Value | None, context: Context) -> int | None:
    """The one number that a value is known to hold."""
    fact = context.inference.fact(value)
    found = None if fact is None else fact.integers()
    return found[0] if found is not None and len(found) == 1 else None


def _name(loop: ir.Node) -> str:
    return next((value.name for value in loop.outputs if value.name), loop.name) or "loop"


def _constant(
    graph: ir.Graph, name: str, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], context: Context
) -> ir.Value:
    """A new constant of a graph."""
    while name in graph.initializers:
        name += "_"
    dtype = element_type(array.dtype)
    kind, shape = ir.TensorType(dtype), ir.Shape(array.shape)
    value = ir.Value(name=name, type=kind, shape=shape, const_value=tensor_of(array, dtype, name))
    graph.register_initializer(value)
    context.inference.facts[value] = of_array(array, dtype)
    return value


def _infer(graph: ir.Graph, context: Context) -> None:
    """Infer all nodes again: what was not known of a sequence's items was not known of anything behind them."""
    for node in graph:
        context.inference.node(node)
