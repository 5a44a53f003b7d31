"""Ids and masks in the 32 bits that operators of com.microsoft read."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.rule import Match


def as_int32(value: ir.Value, m: Match) -> ir.Value:
    """The value, or a Cast of it to int32 that all nodes share: it stands where the value is made."""
    fact = m.context.inference.fact(value)
    if fact is not None and fact.dtype == ir.DataType.INT32:
        return value
    name = f"{value.name}_int32"
    for use in value.uses():
        if use.node.op_type == "Cast" and use.node.name == name:
            return use.node.outputs[0]
    graph, producer = m.root.graph, value.producer()
    assert isinstance(graph, ir.Graph)
    cast = m.new_node("Cast", [value], {"to": int(ir.DataType.INT32)})
    cast.name = name
    if producer is None:
        graph.insert_before(graph[0], cast)
    else:
        graph.insert_after(producer, cast)
    m.context.added(cast)
    return cast.outputs[0]
