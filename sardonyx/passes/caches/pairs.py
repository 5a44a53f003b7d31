"""The caches of a decoder: inputs that new keys or values are appended to, and the outputs that hold both."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import onnx_ir as ir

from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.dims import add, subtract
from sardonyx.ops.framework.facts import symbol

# Operators that append to a past themselves: which of the inputs goes with which of the outputs, along which axis.
_APPENDING = {
    ("", "Attention"): ({4: 1, 5: 2}, 2),
    ("com.microsoft", "MultiHeadAttention"): ({6: 1, 7: 2}, 2),
}

# Inputs whose first axis is the batch, by the names that exporters give them, and whose second one counts what is new.
_NEW = ("input_ids", "decoder_input_ids", "inputs_embeds", "decoder_inputs_embeds")
_MASKS = ("attention_mask", "decoder_attention_mask")
_NAME = re.compile(r"[A-Za-z_][\w.]*")


class DeclinedError(Exception):
    """Why caches stay as the model has them; the text names the node or the value."""


@dataclass(frozen=True)
class Cache:
    """A cache: the input, the output that is the input and new rows along an axis, and the node that makes it."""

    past: ir.Value
    present: ir.Value
    axis: int
    node: ir.Node


def caches_of(graph: ir.Graph) -> list[Cache]:
    """The caches of a graph in the order of its inputs."""
    found = []
    for value in graph.inputs:
        for use in value.uses():
            cache = _appended(value, use.node, use.idx)
            if cache is not None and use.node.graph is graph:
                found.append(cache)
                break
    return found


def _appended(past: ir.Value, node: ir.Node, place: int) -> Cache | None:
    """What a node makes of a past, if it appends to it and the result is an output of the graph."""
    if node.op_type == "Concat" and node.domain == "":
        rank = None if past.shape is None else len(past.shape)
        axis = node.attributes["axis"].as_int()
        if len(node.inputs) != 2 or place != 0 or rank is None:
            return None
        present, axis = node.outputs[0], axis % rank
    else:
        places, axis = _APPENDING.get((node.domain, node.op_type), ({}, 0))
        if place not in places or places[place] >= len(node.outputs):
            return None
        present = node.outputs[places[place]]
    output = _output_of(present)
    return None if output is None else Cache(past, output, axis, node)


def _output_of(value: ir.Value) -> ir.Value | None:
    """The output of the graph that a value is, be it by way of copies."""
    if value.is_graph_output():
        return value
    for use in value.uses():
        if use.node.op_type == "Identity" and use.node.domain == "":
            found = _output_of(use.node.outputs[0])
            if found is not None:
                return found
    return None


def agree(graph: ir.Graph, caches: Collection[Cache]) -> str:
    """Let all pasts have one length, by one name, which is given, and masks the length of what is filled and new.

    A caller of caches that are written in place has no others. DeclinedError for pasts of numbers of positions.
    """
    renamed: dict[str, str] = {}
    length = ""
    batch = _symbol_of(_first(graph.inputs, _NEW), 0)
    for cache in caches:
        assert cache.past.shape is not None
        dim = cache.past.shape[cache.axis]
        if isinstance(dim, int):
            raise DeclinedError(f"input {cache.past.name} has a past of {dim} positions, not one of any length")
        length = length or dim.value or "past_sequence_length"
        if dim.value is not None:
            renamed[dim.value] = length
    for cache in caches:
        assert cache.past.shape is not None
        dims = list(cache.past.shape)
        dims[cache.axis] = ir.SymbolicDim(length)
        if batch and not isinstance(dims[0], int) and cache.axis != 0:
            dims[0] = ir.SymbolicDim(batch)
        cache.past.shape = ir.Shape(dims)
        cache.present.shape = None
    _rename(graph, renamed)
    new, mask = _first(graph.inputs, _NEW), _first(graph.inputs, _MASKS)
    if new is not None and mask is not None:
        _agree_mask(graph, new, mask, length)
    for value in graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape([_as_computed(dim) for dim in value.shape])
    return length


def _as_computed(dim: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    """A declared dimension, written as inference writes what it computes."""
    if isinstance(dim, int) or dim.value is None or _NAME.fullmatch(dim.value):
        return dim
    return subtract(add(symbol(dim.value), 1), 1)


def _agree_mask(graph: ir.Graph, new: ir.Value, mask: ir.Value, length: str) -> None:
    """Declare that a mask (batch, keys) has the batch of what is new, and a column for each filled or new position."""
    if mask.shape is None or new.shape is None or len(mask.shape) != 2 or len(new.shape) < 2:
        return
    columns, count = mask.shape[1], new.shape[1]
    known = columns if isinstance(columns, int) else columns.value
    others = {_text(dim) for value in graph.inputs if value is not mask for dim in value.shape or ()}
    if isinstance(known, int) or (not isinstance(count, int) and count.value is None):
        return
    if known is None or known not in others:  # the length of something else, as of what an encoder has read, stays
        batch = mask.shape[0] if isinstance(mask.shape[0], int) else new.shape[0]
        mask.shape = ir.Shape([batch, add(ir.SymbolicDim(length), count)])


def _text(dim: int | ir.SymbolicDim) -> str:
    return str(dim) if isinstance(dim, int) else dim.value or ""


def _first(inputs: Iterable[ir.Value], names: Iterable[str]) -> ir.Value | None:
    by_name = {value.name: value for value in inputs}
    return next((by_name[name] for name in names if name in by_name), None)


def _symbol_of(value: ir.Value | None, axis: int) -> str | None:
    if value is None or value.shape is None or len(value.shape) <= axis:
        return None
    dim = value.shape[axis]
    return None if isinstance(dim, int) else dim.value


def _rename(graph: ir.Graph, renamed: dict[str, str]) -> None:
    """Call dimensions by other names, also in expressions, wherever a value declares them."""
    renamed = {old: new for old, new in renamed.items() if old != new}
    if not renamed:
        return
    values = [*graph.inputs, *graph.outputs, *(value for node in graph.all_nodes() for value in node.outputs)]
    for value in values:
        if value.shape is None:
            continue
        dims = [
            dim
            if isinstance(dim, int) or dim.value is None
            else ir.SymbolicDim(_NAME.sub(lambda name: renamed.get(name[0], name[0]), dim.value))
            for dim in value.shape
        ]
        value.shape = ir.Shape(dims)
