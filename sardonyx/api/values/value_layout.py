"""`session.gqa_value_layout`: caches of values that the caller holds as (batch, heads, size, length)."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx import errors

KEY = "session.gqa_value_layout"
TURNED = "BNHS"

_ATTENTION = ("com.microsoft", "GroupQueryAttention")
_PAST, _PRESENT = 4, 2  # the cache of values among the inputs, and among the outputs
_SWAP = (0, 1, 3, 2)


def turn_value_caches(model: ir.Model) -> None:
    """Let inputs and outputs that are caches of values of GroupQueryAttention have their last two dimensions swapped.

    The nodes see (batch, heads, length, size) as before, by a Transpose on either side. `Fail` where something else
    reads such an input.
    """
    graph = model.graph
    for node in [node for node in graph if (node.domain, node.op_type) == _ATTENTION]:
        past = _source(node.inputs[_PAST]) if len(node.inputs) > _PAST else None
        if past is not None and past.is_graph_input() and not past.is_initializer():
            _turn_input(model, past, node)
        present = _result(node.outputs[_PRESENT]) if len(node.outputs) > _PRESENT else None
        if present is not None and present.is_graph_output():
            _turn_output(model, present)


def _source(value: ir.Value | None) -> ir.Value | None:
    """What a value is the same as, by way of Identity."""
    while value is not None and (node := value.producer()) is not None and node.op_type == "Identity":
        value = node.inputs[0]
    return value


def _result(value: ir.Value) -> ir.Value:
    """The output of the graph that is the same as a value, by way of Identity; the value itself without one."""
    while not value.is_graph_output():
        readers = [use.node for use in value.uses()]
        if len(readers) != 1 or readers[0].op_type != "Identity":
            return value
        value = readers[0].outputs[0]
    return value


def _turn_input(model: ir.Model, past: ir.Value, node: ir.Node) -> None:
    if past.is_graph_output() or any(_ends(use.node, use.idx) != {_ATTENTION} for use in past.uses()):
        raise errors.Fail(
            f"session option '{KEY}' = '{TURNED}': input '{past.name}' is the past of values of '{node.name}', and "
            "other nodes read it too; leave the option at 'BNSH'"
        )
    _swap(past)
    turned = _transpose(model, past, f"{past.name}_BNSH")
    ir.convenience.replace_all_uses_with(past, turned.outputs[0])
    model.graph.insert_before(model.graph[0], turned)
    turned.replace_input_with(0, past)


def _ends(node: ir.Node, place: int) -> set[tuple[str, str]]:
    """The operators that read a value at the end of Identity nodes; attention counts as itself as the past alone."""
    if node.op_type == "Identity":
        return {end for use in node.outputs[0].uses() for end in _ends(use.node, use.idx)}
    found = (node.domain, node.op_type)
    return {found if found != _ATTENTION or place == _PAST else ("", "another input")}


def _turn_output(model: ir.Model, present: ir.Value) -> None:
    graph, producer = model.graph, present.producer()
    assert producer is not None
    name = present.name
    turned = _transpose(model, present, name)
    present.name = f"{name}_BNSH"
    graph.insert_after(producer, turned)
    turned.outputs[0].type, turned.outputs[0].shape = present.type, present.shape
    _swap(turned.outputs[0])
    graph.outputs[list(graph.outputs).index(present)] = turned.outputs[0]


def _transpose(model: ir.Model, value: ir.Value, result: str | None) -> ir.Node:
    version = model.opset_imports.get("", 1)
    node = ir.node("Transpose", [value], {"perm": _SWAP}, version=version, name=f"{value.name}_turned")
    node.outputs[0].name = result
    return node


def _swap(value: ir.Value) -> None:
    """Swap the last two dimensions that a value declares."""
    if value.shape is not None and len(value.shape) == len(_SWAP):
        dims = list(value.shape)
        value.shape = ir.Shape([dims[axis] for axis in _SWAP])
