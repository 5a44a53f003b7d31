"""What exporters add to the scores of attention: what it hides, and whether it is the plain causal mask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import Array, array_of, is_constant
from sardonyx.ops.framework.dims import add
from sardonyx.ops.framework.facts import Dim, Dims, same
from sardonyx.passes.base import Context
from sardonyx.passes.rules.attention_heads import number, producer, shape_of

# What replaces scores must absorb what it replaces when it is added: any score up to 3e22 in float32.
ABSORBING = -1e30

_VIEWS = ("Unsqueeze", "Reshape", "Expand")
_MOVES = (*_VIEWS, "Slice", "Transpose", "Squeeze", "Concat", "Cast", "Add", "Sub", "Mul", "Neg", "Max")


@dataclass(frozen=True)
class Mask:
    """A step between the scores and the softmax.

    Either `value` is added to the scores, or `filler` replaces those where `value` is False (`keeps`) or True.
    """

    value: ir.Value
    filler: float | None = None
    keeps: bool = True


def as_filled(mask: Mask, context: Context) -> Mask:
    """An added Where(condition, 0, filler) as a mask that fills; any other mask as it is."""
    where = producer(mask.value, "Where") if mask.filler is None else None
    if where is None or where.inputs[0] is None:
        return mask
    for yes, no, keeps in ((where.inputs[1], where.inputs[2], True), (where.inputs[2], where.inputs[1], False)):
        filler = repeated(no)
        if repeated(yes) == 0 and filler is not None and filler <= ABSORBING:
            return Mask(where.inputs[0], filler, keeps)
    return mask


def repeated(value: ir.Value | None) -> float | None:
    """The number that every element of a value is, else None."""
    while (view := producer(value, *_VIEWS)) is not None:
        value = view.inputs[0]
    node = producer(value, "ConstantOfShape")
    if node is not None:
        fill = node.attributes.get("value")
        return 0.0 if fill is None else float(np.asarray(fill.as_tensor().numpy()).reshape(()))
    cast = producer(value, "Cast")
    if cast is not None:
        inner = repeated(cast.inputs[0])
        if inner is not None and cast.attributes["to"].as_int() == ir.DataType.BOOL:
            return float(inner != 0)
        return inner if inner is not None and inner.is_integer() else None
    return number(value)


def is_causal(mask: Mask, shape: Dims, past: Dim, context: Context) -> bool:
    """Whether a mask lets query `i` of `shape`'s queries see exactly the keys up to `past + i`.

    Known forms: a constant; a comparison of the positions of the keys with those of the queries, each a Range,
    possibly joined by And with masks that hide nothing.
    """
    mask = as_filled(mask, context)
    if is_constant(mask.value):
        return _is_causal_array(mask, shape, past)
    if mask.filler is None or mask.filler > ABSORBING:
        return False
    if mask.keeps:
        parts = [part for part in _conjuncts(mask.value, context) if repeated(part) != 1]
    else:
        parts = [_unviewed(mask.value, context)]
    return len(parts) == 1 and _compares_positions(parts[0], mask.keeps, shape, past, context)


def _is_causal_array(mask: Mask, shape: Dims, past: Dim) -> bool:
    queries, keys = shape[-2:]
    array = array_of(mask.value)
    if not isinstance(past, int) or array.ndim < 2 or array.shape[-2:] != (queries, keys) or array[..., 0, 0].size != 1:
        return False
    visible = np.tri(array.shape[-2], array.shape[-1], past, dtype=bool)
    if mask.filler is not None:
        return mask.filler <= ABSORBING and bool(((array.reshape(visible.shape) != 0) == (visible == mask.keeps)).all())
    return bool(np.where(visible, array == 0, array <= ABSORBING).all())


def _unviewed(value: ir.Value, context: Context) -> ir.Value:
    """A mask without the views around it that leave its rows and columns in their places."""
    while (view := producer(value, "Unsqueeze", "Expand")) is not None and view.inputs[0] is not None:
        outer, inner = shape_of(value, context), shape_of(view.inputs[0], context)
        if outer is None or inner is None or len(inner) < 2 or not all(map(same, outer[-2:], inner[-2:])):
            break
        value = view.inputs[0]
    return value


def _conjuncts(value: ir.Value, context: Context) -> Iterator[ir.Value]:
    """The parts that And joins, without the views around them."""
    inner = _unviewed(value, context)
    both = producer(inner, "And")
    if both is None:
        yield inner
        return
    for part in both.inputs:
        if part is not None:
            yield from _conjuncts(part, context)


def _compares_positions(value: ir.Value, keeps: bool, shape: Dims, past: Dim, context: Context) -> bool:
    """Whether a comparison is True just where a key is at or before its query, or just where it is after it."""
    node = producer(value, *(("LessOrEqual", "GreaterOrEqual") if keeps else ("Greater", "Less")))
    if node is None:
        return False
    keys, queries = node.inputs if node.op_type in ("LessOrEqual", "Greater") else node.inputs[::-1]
    rank = len(shape_of(value, context) or ())
    key_start = _positions(keys, -1, shape[-1], rank, context)
    query_start = _positions(queries, -2, shape[-2], rank, context)
    if key_start is None or query_start is None:
        return False
    return same(add(key_start, past), query_start)


def _positions(value: ir.Value | None, axis: int, length: Dim, rank: int, context: Context) -> Dim | None:
    """The start of consecutive numbers along one axis (from the end) of a value, `length` of them, else None."""
    shape = shape_of(value, context)
    if shape is None or not shape or len(shape) > rank or len(shape) < -axis or not same(shape[axis], length):
        return None
    if any(dim != 1 for place, dim in enumerate(shape) if place != len(shape) + axis):
        return None
    while (view := producer(value, *_VIEWS)) is not None:
        value = view.inputs[0]
    moved = producer(value, "Add")
    offset: Dim | None = 0
    if moved is not None:
        for ranged, number_ in (moved.inputs, moved.inputs[::-1]):
            if producer(ranged, "Range") is not None:
                value, offset = ranged, _scalar(number_, context)
    counted = producer(value, "Range")
    if counted is None or offset is None or not same(_length(value, context), length):
        return None
    start, step = _scalar(counted.inputs[0], context), _scalar(counted.inputs[2], context)
    return add(start, offset) if start is not None and step == 1 else None


def _length(value: ir.Value | None, context: Context) -> Dim:
    shape = shape_of(value, context)
    return shape[0] if shape is not None and len(shape) == 1 else ir.SymbolicDim(None)


def _scalar(value: ir.Value | None, context: Context) -> Dim | None:
    """The one element of a whole-number value, be it a symbol."""
    fact = context.inference.fact(value)
    elements = None if fact is None else fact.elements
    return elements[0] if elements is not None and len(elements) == 1 else None


def may_hide_all(mask: Mask) -> bool:
    """Whether a row of an added mask may be minus infinity throughout, as far as the model shows.

    Exporters without such rows write the lowest finite number instead. A mask that callers give is taken to leave
    each query a key.
    """
    if mask.filler is not None:
        return bool(np.isneginf(mask.filler))
    return any(_hides_all(value) for value in _sources(mask.value))


def _hides_all(constant: ir.Value) -> bool:
    if not is_constant(constant) or constant.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return False
    array: Array = array_of(constant)
    return array.size > 0 and bool(np.isneginf(array).all(axis=-1).any() if array.ndim else np.isneginf(array))


def _sources(value: ir.Value) -> Iterator[ir.Value]:
    """The values that a mask is put together from; conditions count for nothing."""
    left, seen = [value], set()
    while left:
        value = left.pop()
        if value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if node is None:
            yield value
        elif node.op_type == "Where":
            left += [item for item in node.inputs[1:] if item is not None]
        elif node.op_type in _MOVES:
            left += [item for item in node.inputs if item is not None]
