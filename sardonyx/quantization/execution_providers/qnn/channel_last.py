"""Inputs and outputs whose channels come last, with a Transpose between them and a model that has them second."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from sardonyx.graph.constants import graphs_of, nodes_of
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.selection import nearest


def inputs_to_channel_last(graph: ir.Graph, names: Sequence[str]) -> bool:
    """Let inputs be (N, D1, ..., Dn, C); whether there are any. `InvalidQuantization` for names that do not fit."""
    for name in dict.fromkeys(names):
        value = _found("input", name, graph.inputs)
        if value.is_graph_output() or value.is_initializer():
            raise InvalidQuantization(f"Input '{name}' is an output or a weight as well, and can't be turned")
        shape = _shape("input", value)
        first = _channel_first(graph, value)
        first.shape, value.shape = ir.Shape(shape), ir.Shape([shape[0], *shape[2:], shape[1]])
        ir.convenience.replace_all_uses_with(value, first)
        rank = len(shape)
        turn = _transpose(graph, value, first, [0, rank - 1, *range(1, rank - 1)])
        start = next(iter(graph), None)
        if start is None:
            graph.append(turn)
        else:
            graph.insert_before(start, turn)
    return bool(names)


def outputs_to_channel_last(graph: ir.Graph, names: Sequence[str]) -> bool:
    """Let outputs be (N, D1, ..., Dn, C); whether there are any. `InvalidQuantization` for names that do not fit."""
    for name in dict.fromkeys(names):
        value = _found("output", name, graph.outputs)
        if value.producer() is None:
            raise InvalidQuantization(f"Output '{name}' is an input or a weight as well, and can't be turned")
        shape = _shape("output", value)
        last = ir.Value(type=value.type, shape=ir.Shape([shape[0], *shape[2:], shape[1]]))
        value.name, last.name = _channel_first(graph, value).name, name
        for place, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[place] = last
        graph.append(_transpose(graph, value, last, [0, *range(2, len(shape)), 1]))
    return bool(names)


def _found(kind: str, name: str, values: Sequence[ir.Value]) -> ir.Value:
    known = {value.name or "": value for value in values}
    if name not in known:
        raise InvalidQuantization(
            f"{kind}s_to_make_channel_last: the model has no {kind} '{name}'.{nearest(name, known)} It has "
            f"{', '.join(known)}"
        )
    return known[name]


def _shape(kind: str, value: ir.Value) -> list[int | ir.SymbolicDim]:
    if value.shape is None or len(value.shape) < 3:
        rank = "a number of dimensions that is not known" if value.shape is None else f"{len(value.shape)} dimensions"
        raise InvalidQuantization(
            f"{kind}s_to_make_channel_last: '{value.name}' has {rank}, and at least 3 are needed: N, C and another"
        )
    return list(value.shape)


def _channel_first(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """A new value of the type of another and a free name after its name."""
    taken = {
        one.name
        for inner in graphs_of(graph)
        for one in (*inner.inputs, *inner.initializers.values(), *(made for node in inner for made in node.outputs))
    }
    return ir.Value(name=_free(f"{value.name}_channel_first_", taken), type=value.type)


def _transpose(graph: ir.Graph, source: ir.Value, result: ir.Value, order: Sequence[int]) -> ir.Node:
    name = _free("Transpose_channel_", {node.name for node in nodes_of(graph)})
    return ir.Node("", "Transpose", [source], [ir.AttrInt64s("perm", order)], outputs=[result], name=name)


def _free(prefix: str, taken: set[str | None]) -> str:
    numbered: Iterator[str] = (f"{prefix}{number}" for number in itertools.count())
    return next(name for name in numbered if name not in taken)
