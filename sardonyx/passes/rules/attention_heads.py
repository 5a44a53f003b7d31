"""The operands of attention as exporters write them: split into heads, scaled, transposed, appended to a past."""

from __future__ import annotations

import math
from dataclasses import replace

import onnx_ir as ir

from sardonyx.graph.constants import array_of, is_constant
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Dims
from sardonyx.passes.base import Context
from sardonyx.passes.rule import NearMissError
from sardonyx.passes.rules.attention_parts import rows_behind_transpose, rows_of
from sardonyx.passes.rules.facts import permutation, producer, shape_of

_NO_NUMBERS = (ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)

SPLIT = (0, 2, 1, 3)  # (batch, length, heads, size) to (batch, heads, length, size), and back


@dataclass(frozen=True)
class Heads:
    """One operand of attention, of `shape` (batch, heads, length, size).

    - `rows` holds it as (batch, length, heads * size), in all of its columns or in `columns`; where there is a past,
      its new positions alone.
    - `tensor` holds it in four dimensions.
    - `past` is what `rows` are appended to, and `join` the Concat that does so.
    - `split` are the nodes between `rows` and `tensor`, `nodes` those that follow; both may have other readers.
    """

    shape: Dims
    rows: ir.Value | None = None
    tensor: ir.Value | None = None
    columns: tuple[int, int] | None = None
    past: ir.Value | None = None
    join: ir.Node | None = None
    split: tuple[ir.Node, ...] = ()
    nodes: tuple[ir.Node, ...] = ()


@dataclass(frozen=True)
class Scaled:
    """A value without the constant factors that follow it, their product, and the nodes that apply them."""

    value: ir.Value
    factor: float = 1.0
    nodes: tuple[ir.Node, ...] = ()


def origin(value: ir.Value | None) -> str:
    """Where a value comes from, in words."""
    node = None if value is None else value.producer()
    return "an input or a constant" if node is None else node.op_type


def text(shape: Dims | None) -> str:
    """A shape for a reason."""
    return "of unknown shape" if shape is None else "(" + ", ".join(str(dim) for dim in shape) + ")"


def number(value: ir.Value | None) -> float | None:
    """The one element of a constant, else None."""
    if value is None or not is_constant(value) or value.const_value is None or value.const_value.size != 1:
        return None
    if value.const_value.dtype in _NO_NUMBERS:
        return None
    return float(array_of(value).reshape(()))


def constant_factor(node: ir.Node | None) -> tuple[ir.Value, float] | None:
    """What a Mul or Div by a constant scales, and by what; None for another node or one that adds dimensions."""
    if node is None or node.domain != "" or node.op_type not in ("Mul", "Div"):
        return None
    pairs = [(node.inputs[0], node.inputs[1])]
    if node.op_type == "Mul":
        pairs.append((node.inputs[1], node.inputs[0]))
    for value, constant in pairs:
        factor = number(constant)
        if value is None or factor is None or constant is None or constant.shape is None:
            continue
        if len(constant.shape) <= 1 and math.isfinite(factor) and factor != 0:
            return value, factor if node.op_type == "Mul" else 1 / factor
    return None


def unscaled(value: ir.Value) -> Scaled:
    """A value without the constant factors that follow it."""
    factor, nodes = 1.0, []
    while (found := constant_factor(value.producer())) is not None:
        node = value.producer()
        assert node is not None
        nodes.append(node)
        value, factor = found[0], factor * found[1]
    return Scaled(value, factor, tuple(nodes))


def _split(value: ir.Value, context: Context) -> Heads | None:
    """A (batch, heads, length, size) that is split from (batch, length, heads * size), else None."""
    shape, transpose = shape_of(value, context), producer(value, "Transpose")
    if transpose is None:
        found = rows_behind_transpose(value, context)
    elif transpose.inputs[0] is not None and permutation(transpose, 4) == SPLIT:
        found = rows_of(transpose.inputs[0], context)
    else:
        return None
    if found is None or shape is None:
        return None
    before = () if transpose is None else (transpose,)
    return Heads(shape, found.value, value, columns=found.columns, split=(*before, *found.nodes))


def query(value: ir.Value, context: Context) -> tuple[Heads, float]:
    """The query, split from (batch, length, heads * size), and its factor, before or after the split."""
    outer = unscaled(value)
    heads = _split(outer.value, context)
    if heads is None or heads.rows is None:
        raise NearMissError(_not_split("query", outer.value, context))
    inner = unscaled(heads.rows)
    split = (*outer.nodes, *heads.split, *inner.nodes)
    return Heads(heads.shape, inner.value, columns=heads.columns, split=split), outer.factor * inner.factor


def keys(value: ir.Value, context: Context, transposed: bool) -> tuple[Heads, float]:
    """The keys and their factor; `value` is (batch, heads, size, length), or not `transposed` where the product is."""
    if not transposed:
        only = unscaled(value)
        return replace(past_or_split(only.value, context), nodes=only.nodes), only.factor
    outer = unscaled(value)
    transpose = producer(outer.value, "Transpose")
    if transpose is None or transpose.inputs[0] is None:
        raise NearMissError(f"the keys are not transposed: they come from {origin(outer.value)}")
    source, order = transpose.inputs[0], permutation(transpose, 4)
    nodes = (*outer.nodes, transpose)
    if order == (0, 2, 3, 1):
        found, shape = rows_of(source, context), shape_of(source, context)
        if found is None or shape is None:
            raise NearMissError(_not_split("key", source, context))
        batch, length, heads, size = shape
        swapped = (batch, heads, length, size)
        return Heads(swapped, found.value, columns=found.columns, split=found.nodes, nodes=nodes), outer.factor
    if order != (0, 1, 3, 2):
        raise NearMissError(f"the keys are transposed by {order}, which does not exchange length and size")
    inner = unscaled(source)
    plain = replace(past_or_split(inner.value, context), nodes=(*nodes, *inner.nodes))
    return plain, outer.factor * inner.factor


def past_or_split(value: ir.Value, context: Context) -> Heads:
    """Keys or values (batch, heads, length, size): appended to a past, split from rows, or as they are."""
    shape = shape_of(value, context)
    if shape is None or len(shape) != 4:
        raise NearMissError(f"keys or values are {text(shape)}, not (batch, heads, length, size)")
    concat = producer(value, "Concat")
    if concat is not None and len(concat.inputs) == 2 and concat.attributes["axis"].as_int() in (2, -2):
        past, new = concat.inputs
        split = None if new is None else _split(new, context)
        past_shape = shape_of(past, context)
        if split is not None and past_shape is not None and len(past_shape) == 4:
            return Heads(shape, split.rows, value, split.columns, past, concat, split.split)
    return _split(value, context) or Heads(shape, tensor=value)


def _not_split(name: str, value: ir.Value, context: Context) -> str:
    """Why an operand is not one that was split into heads."""
    transpose = producer(value, "Transpose")
    if transpose is not None and permutation(transpose, 4) != SPLIT:
        return f"the {name} is split into heads by Transpose {permutation(transpose, 4)}, not {SPLIT}"
    source = value if transpose is None else transpose.inputs[0]
    reshape = producer(source, "Reshape")
    if reshape is None:
        return f"the {name} is not split into heads: it comes from {origin(source)}"
    before, after = shape_of(reshape.inputs[0], context), shape_of(source, context)
    return (
        f"the {name} is not split into heads from (batch, length, heads * size): "
        f"its Reshape makes {text(after)} of {text(before)}"
    )
