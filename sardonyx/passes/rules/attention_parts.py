"""Queries, keys and values that one projection holds side by side: where each of them lies in it."""

from __future__ import annotations

import math

import onnx_ir as ir

from sardonyx.graph.constants import array_of, is_constant
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import same
from sardonyx.passes.base import Context
from sardonyx.passes.rules.facts import permutation, producer, shape_of

# How axes of (batch, length, parts, heads, size) become (batch, heads, length, size) of a part, and the axis of parts.
_SPLIT = (0, 3, 1, 4)
_PARTS = 2


@dataclass(frozen=True)
class Rows:
    """(batch, length, heads * size): all of `value`, or so many `columns` of it; and the nodes that take it apart."""

    value: ir.Value
    nodes: tuple[ir.Node, ...]
    columns: tuple[int, int] | None = None


@dataclass(frozen=True)
class Pick:
    """One `index` of an `axis` of a value, which the nodes take."""

    source: ir.Value
    axis: int
    index: int
    nodes: tuple[ir.Node, ...]


def rows_of(split: ir.Value, context: Context) -> Rows | None:
    """The rows of (batch, length, heads, size): split by a Reshape, or one of several parts that a Reshape splits."""
    picked = _pick(split, context)
    if picked is not None:
        return _rows_of_part(picked.source, picked, context) if picked.axis == _PARTS else None
    found = _split_width(split, 2, context)
    return None if found is None else Rows(*found[:2])


def rows_behind_transpose(heads: ir.Value, context: Context) -> Rows | None:
    """The rows of (batch, heads, length, size) that is picked from parts which were transposed all at once."""
    picked = _pick(heads, context)
    if picked is None:
        return None
    transpose = producer(picked.source, "Transpose")
    if transpose is None:
        return None
    order = permutation(transpose, 5)
    if order is None or len(order) != 5 or order[picked.axis] != _PARTS or transpose.inputs[0] is None:
        return None
    if (*order[: picked.axis], *order[picked.axis + 1 :]) != _SPLIT:
        return None
    return _rows_of_part(transpose.inputs[0], picked, context, (transpose,))


def _rows_of_part(parts: ir.Value, picked: Pick, context: Context, between: tuple[ir.Node, ...] = ()) -> Rows | None:
    """The columns of a part of (batch, length, parts, heads, size), which a Reshape splits.

    `between` are the nodes from there to where the part is picked.
    """
    found = _split_width(parts, 3, context)
    if found is None:
        return None
    value, nodes, (_, heads, size) = found
    width = heads * size
    return Rows(value, (*picked.nodes, *between, *nodes), (picked.index * width, (picked.index + 1) * width))


def _split_width(
    split: ir.Value, count: int, context: Context
) -> tuple[ir.Value, tuple[ir.Node, ...], tuple[int, ...]] | None:
    """The (batch, length, width) whose width a Reshape splits into `count` sizes, the Reshape, and the sizes."""
    reshape = producer(split, "Reshape")
    if reshape is None or reshape.inputs[0] is None:
        return None
    before, after = shape_of(reshape.inputs[0], context), shape_of(split, context)
    if before is None or after is None or len(before) != 3 or len(after) != 2 + count:
        return None
    sizes = tuple(size for size in after[2:] if isinstance(size, int))
    if len(sizes) != count or not all(map(same, before[:2], after[:2])) or before[2] != math.prod(sizes):
        return None
    return reshape.inputs[0], (reshape,), sizes


def _pick(value: ir.Value, context: Context) -> Pick | None:
    """What one index of an axis is taken of, by Gather, or by Squeeze of a part of Split; None for another value."""
    node = value.producer()
    if node is None or node.domain != "" or not node.inputs or node.inputs[0] is None:
        return None
    if node.op_type == "Gather":
        source, given = node.inputs[0], node.inputs[1]
        shape = shape_of(source, context)
        if shape is None or given is None or not is_constant(given) or given.shape is None or len(given.shape) != 0:
            return None
        axis = node.attributes.get("axis")
        place = (0 if axis is None else axis.as_int()) % len(shape)
        index, count = int(array_of(given)), shape[place]
        if not isinstance(count, int) or not -count <= index < count:
            return None
        return Pick(source, place, index % count, (node,))
    return _pick_of_split(node, context)


def _pick_of_split(node: ir.Node, context: Context) -> Pick | None:
    """That of a Squeeze, or of the Reshape that it became, of a part of Split of size 1."""
    part = node.inputs[0]
    split = None if part is None else part.producer()
    if part is None or split is None or split.op_type != "Split" or split.domain != "":
        return None
    source = split.inputs[0]
    shape, before, after = shape_of(source, context), shape_of(part, context), shape_of(node.outputs[0], context)
    if source is None or shape is None or before is None or after is None or node.op_type not in ("Squeeze", "Reshape"):
        return None
    axis = split.attributes.get("axis")
    place = (0 if axis is None else axis.as_int()) % len(shape)
    without = (*before[:place], *before[place + 1 :])
    if shape[place] != len(split.outputs) or before[place] != 1 or len(after) != len(without):
        return None
    if not all(map(same, after, without)):
        return None
    return Pick(source, place, split.outputs.index(part), (node, split))
