"""What the rounds of a Loop need not do: hand on what stays, and multiply the items of a sequence one by one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import array_of, is_constant
from sardonyx.ops.framework.facts import UNKNOWN
from sardonyx.passes.base import Context
from sardonyx.passes.rule import stamp, take_over

INVARIANTS = "LoopInvariantElimination"
PRODUCTS = "LoopProductFusion"

_AROUND = 2  # inputs of a Loop and of its body before the carried values


def read_invariants(context: Context) -> int:
    """Let a body read a value that every round hands on as it is where it comes from, and carry it no more."""
    return sum(_without_invariants(loop, context) for loop in _loops(context))


def _without_invariants(loop: ir.Node, context: Context) -> int:
    body = loop.attributes["body"].as_graph()
    staying = [
        place
        for place, given in enumerate(loop.inputs[_AROUND:])
        if given is not None
        and body.outputs[1 + place] is body.inputs[_AROUND + place]
        and body.outputs.count(body.outputs[1 + place]) == 1
        and not loop.outputs[place].is_graph_output()
    ]
    if not staying:
        return 0
    kept = [place for place in range(len(loop.outputs)) if place not in staying]
    given = [value for place, value in enumerate(loop.inputs) if place - _AROUND not in staying]
    new = ir.node("Loop", given, num_outputs=len(kept), name=loop.name, version=loop.version)
    for place in reversed(staying):
        origin, taken = loop.inputs[_AROUND + place], body.inputs[_AROUND + place]
        assert origin is not None
        del body.outputs[1 + place], body.inputs[_AROUND + place]
        taken.replace_all_uses_with(origin, replace_graph_outputs=True)
        loop.outputs[place].replace_all_uses_with(origin)
    for place, value in zip(kept, new.outputs, strict=True):
        take_over(value, loop.outputs[place])
        loop.outputs[place].replace_all_uses_with(value, replace_graph_outputs=True)
    new.metadata_props.update(loop.metadata_props)
    stamp([new], INVARIANTS, [loop])
    graph = loop.graph
    assert isinstance(graph, ir.Graph)
    graph.insert_before(loop, new)
    attribute = loop.attributes.pop("body")
    new.attributes["body"] = attribute
    graph.remove(loop, safe=True)
    context.added(new)
    return len(staying)


def hoist_products(context: Context) -> int:
    """Multiply a whole sequence before a loop whose rounds multiply one item each by a constant.

    A round then takes its item of the result: the constant is read once, not in every round.
    """
    changes = 0
    for loop in _loops(context):
        body = loop.attributes["body"].as_graph()
        products = [node for node in body if _is(node, "MatMul")]
        found = sum(_hoist(node, loop, body, context) for node in products)
        if found:
            context.inference.node(loop)
        changes += found
    return changes


def _hoist(node: ir.Node, loop: ir.Node, body: ir.Graph, context: Context) -> bool:
    one, weight = node.inputs
    item = None if one is None else one.producer()
    if item is None or item.graph is not body or not _is(item, "Gather"):
        return False
    sequence, index = item.inputs
    assert sequence is not None
    if item.attributes.get_int("axis", 0) != 0 or sequence.graph is body or not _counts(index, body):
        return False
    if not is_constant(weight):
        return False
    assert weight is not None
    if weight.graph is body or is_constant(sequence):
        # Of a table rounds may look up a few rows.
        context.decline(node, "the loop itself holds the weights, or looks up rows of a table")
        return False
    ranks = [context.inference.facts.get(value, UNKNOWN).rank for value in (sequence, weight)]
    if ranks[0] is None or ranks[0] < 2 or ranks[1] != 2:
        context.decline(node, "a factor is no matrix")
        return False
    name = f"{next((value.name for value in loop.outputs if value.name), loop.name)}_{node.outputs[0].name}"
    product = ir.node("MatMul", [sequence, weight], version=node.version, name=f"{name}_product")
    product.outputs[0].name = f"{name}_products"
    taken = ir.node("Gather", [product.outputs[0], index], {"axis": 0}, version=item.version, name=f"{name}_item")
    stamp([product, taken], PRODUCTS, [node])
    graph = loop.graph
    assert isinstance(graph, ir.Graph)
    graph.insert_before(loop, product)
    context.added(product)
    take_over(taken.outputs[0], node.outputs[0])
    body.insert_before(node, taken)
    node.outputs[0].replace_all_uses_with(taken.outputs[0], replace_graph_outputs=True)
    body.remove(node, safe=True)
    if not (item.outputs[0].uses() or item.outputs[0].is_graph_output()):
        body.remove(item, safe=True)
    context.added(taken)
    return True


def _counts(index: ir.Value | None, body: ir.Graph) -> bool:
    """Whether a value of a body is the number of the round, or one that each round adds 1 to."""
    if index is body.inputs[0]:
        return True
    for taken, handed in zip(body.inputs[_AROUND:], body.outputs[1:], strict=False):
        step = handed.producer()
        if taken is not index or step is None or not _is(step, "Add") or index not in step.inputs:
            continue
        return any(is_constant(value) and _is_one(value) for value in step.inputs)
    return False


def _is_one(value: ir.Value | None) -> bool:
    assert value is not None
    array = array_of(value)
    return array.size == 1 and bool(np.all(array == 1))


def _loops(context: Context) -> Iterator[ir.Node]:
    for node in list(context.index.find([("", "Loop")])):
        if node.graph is not None:
            yield node


def _is(node: ir.Node, op_type: str) -> bool:
    return node.domain == "" and node.op_type == op_type
