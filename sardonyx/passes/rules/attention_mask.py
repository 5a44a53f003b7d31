"""What exporters add to the scores of attention: what it hides, and whether it is the plain causal mask."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import Array, array_of, is_constant
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.dims import add, minimum
from sardonyx.ops.framework.facts import Dim, Dims, same
from sardonyx.passes.base import Context
from sardonyx.passes.rules.attention_heads import number
from sardonyx.passes.rules.facts import producer, shape_of

# What replaces scores must absorb what it replaces when it is added: any score up to 3e22 in float32.
ABSORBING = -1e30

_VIEWS = ("Unsqueeze", "Reshape", "Expand")
_MOVES = (*_VIEWS, "Slice", "Transpose", "Squeeze", "Concat", "Cast", "Add", "Sub", "Mul", "Neg", "Max")


@dataclass(frozen=True)
class Mask:
    """A step between the scores and the softmax.

    Either `value` is added to the scores, or `filler` replaces those where `value` is False (`keeps`) or True. Where it
    is added to scores of `windows`, (images, windows, heads, queries, keys), the batch is that of their first two.
    What is added is `factor` times the value where the scores are scaled afterwards.
    """

    value: ir.Value
    filler: float | None = None
    keeps: bool = True
    windows: Dims | None = None
    factor: float = 1.0

    def scaled(self, factor: float) -> Mask:
        """The same before scores are scaled by a factor of at most 1, as a mask behind that."""
        if self.filler is None:
            return replace(self, factor=self.factor * factor)
        return replace(self, filler=self.filler * factor)

    def hides(self, added: float | None) -> bool:
        """Whether a number of the value is too low to leave a trace of a score that it is added to."""
        return added is not None and added * self.factor <= ABSORBING


_LEAST = re.compile(r"\bMin\(([^()]*)\)")
_NAME = re.compile(r"[A-Za-z_][\w.]*")


def fits(dim: Dim, size: Dim, scores: Dims = ()) -> bool:
    """Whether a dimension of a mask that broadcasts to `size` is `size` in every run that does not fail.

    A mask that is the beginning of a table of `limit` rows has Min(limit, size) of them: broadcasting fails where that
    is not `size`, since it is 1 only where `size` is. So it is where `size` is Min(limit, dim). The limit may be the
    length of another tensor, as that of a caller's mask is, if none of the dimensions of the `scores` has to do with
    it: such a tensor of one element is not taken for one that goes for all keys.
    """
    if same(dim, size) or _is_beginning(dim, size) or _is_beginning(size, dim):
        return True
    parts = _limits(dim)
    names = {name for one in scores if isinstance(one, ir.SymbolicDim) for name in _NAME.findall(one.value or "")}
    others = [ir.SymbolicDim(part) for part in parts if scores and _NAME.fullmatch(part) and part not in names]
    return any(same(dim, minimum(other, size)) for other in others)


def is_beginning(dim: Dim, size: Dim) -> bool:
    """Whether a dimension is Min(length, size), the length being any other one."""
    if isinstance(dim, int) or dim.value is None or isinstance(size, int):
        return False
    found = [part for part in _limits(dim) if part != size.value]
    return len(found) == 1 and same(dim, minimum(ir.SymbolicDim(found[0]), size))


def _is_beginning(dim: Dim, size: Dim) -> bool:
    """Whether a dimension is Min(limit, size) for a number above 1."""
    return any(int(part) > 1 and same(dim, minimum(int(part), size)) for part in _limits(dim) if part.isdecimal())


def _limits(dim: Dim) -> list[str]:
    """What the minima in a dimension are of."""
    if isinstance(dim, int) or dim.value is None:
        return []
    return [part.strip() for least in _LEAST.findall(dim.value) for part in least.split(",")]


def as_filled(mask: Mask) -> Mask:
    """An added Where(condition, 0, filler) as a mask that fills; any other mask as it is."""
    where = producer(mask.value, "Where") if mask.filler is None else None
    if where is None or where.inputs[0] is None:
        return mask
    for yes, no, keeps in ((where.inputs[1], where.inputs[2], True), (where.inputs[2], where.inputs[1], False)):
        filler = repeated(no)
        if repeated(yes) == 0 and filler is not None and mask.hides(filler):
            return Mask(where.inputs[0], filler * mask.factor, keeps)
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

    Known forms: a constant or the beginning of one; a triangle; a comparison of the positions of the keys with those
    of the queries, each a Range; the latter two possibly joined by And with masks that hide nothing.
    """
    mask = as_filled(mask)
    if is_constant(mask.value):
        return _is_causal_array(mask, shape, past)
    value = _unviewed(mask.value, context)
    triangle = _Triangle(shape, past, context)
    if mask.filler is None:
        cut = producer(value, "Trilu")
        filler = None if cut is None else repeated(cut.inputs[0])
        return mask.hides(filler) and triangle.is_at(value) is False
    if mask.filler > ABSORBING:
        return False
    if not mask.keeps:
        return triangle.is_at(value) is False
    parts = [part for part in _conjuncts(value, context) if repeated(part) != 1]
    return len(parts) == 1 and triangle.is_at(parts[0]) is True


def _is_causal_array(mask: Mask, shape: Dims, past: Dim) -> bool:
    queries, keys = shape[-2:]
    array = array_of(mask.value)
    if not isinstance(past, int) or array.ndim < 2 or array.shape[-2:] != (queries, keys) or array[..., 0, 0].size != 1:
        return False
    visible = np.tri(array.shape[-2], array.shape[-1], past) != 0
    if mask.filler is not None:
        return mask.filler <= ABSORBING and bool(((array.reshape(visible.shape) != 0) == (visible == mask.keeps)).all())
    return bool(np.where(visible, array == 0, array * mask.factor <= ABSORBING).all())


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


@dataclass(frozen=True)
class _Triangle:
    """The places of scores of `shape` at which a key is at or before its query, which stands `past` further on."""

    shape: Dims
    past: Dim
    context: Context

    def is_at(self, value: ir.Value | None) -> bool | None:
        """True for a value that is not 0 just at these places, False for one that is 0 just there, else None."""
        if value is None:
            return None
        value = _unviewed(value, self.context)
        found = shape_of(value, self.context)
        if found is None or len(found) < 2 or not all(map(fits, found[-2:], self.shape[-2:])):
            return None
        node = value.producer()
        if node is None or node.domain != "":
            return None
        if node.op_type == "Trilu":
            return self._cut(node)
        if node.op_type == "Slice":
            return self._beginning(node)
        if node.op_type == "Cast":
            return self.is_at(node.inputs[0])
        if node.op_type == "Not" or (node.op_type == "Equal" and repeated(node.inputs[1]) == 0):
            inner = self.is_at(node.inputs[0])
            return None if inner is None else not inner
        return self._compared(node, value)

    def _cut(self, node: ir.Node) -> bool | None:
        """A triangle cut out of a matrix without zeros."""
        fill, upper = repeated(node.inputs[0]), node.attributes.get("upper")
        diagonal = _scalar(node.inputs[1], self.context) if len(node.inputs) > 1 else 0
        if fill is None or fill == 0 or diagonal is None:
            return None
        if upper is not None and upper.as_int() == 0:
            return True if same(diagonal, self.past) else None
        return False if same(diagonal, add(self.past, 1)) else None

    def _beginning(self, node: ir.Node) -> bool | None:
        """The first rows and columns of a constant triangle, which are a triangle themselves."""
        value: ir.Value | None = node.outputs[0]
        while (cut := producer(value, "Slice")) is not None:
            starts, steps = (_whole_numbers(cut, place, self.context) for place in (1, 4))
            if starts is None or any(starts) or (len(cut.inputs) > 4 and (steps is None or set(steps) != {1})):
                return None
            value = cut.inputs[0]
        if value is None or not is_constant(value) or self.past != 0:
            return None
        array = array_of(value)
        if array.ndim < 2 or array[..., 0, 0].size != 1:
            return None
        present = array.reshape(array.shape[-2:]) != 0
        lower = np.tri(*present.shape) != 0
        return True if (present == lower).all() else False if (present != lower).all() else None

    def _compared(self, node: ir.Node, value: ir.Value) -> bool | None:
        """A comparison of the positions of the keys with those of the queries."""
        if node.op_type not in ("LessOrEqual", "GreaterOrEqual", "Less", "Greater"):
            return None
        keys, queries = node.inputs if node.op_type in ("LessOrEqual", "Greater") else node.inputs[::-1]
        rank = len(shape_of(value, self.context) or ())
        key_start = _positions(keys, -1, self.shape[-1], rank, self.context)
        query_start = _positions(queries, -2, self.shape[-2], rank, self.context)
        if key_start is None or query_start is None or not same(add(key_start, self.past), query_start):
            return None
        return node.op_type.endswith("OrEqual")


def _whole_numbers(node: ir.Node, place: int, context: Context) -> list[int] | None:
    fact = context.inference.fact(node.inputs[place]) if place < len(node.inputs) else None
    return None if fact is None else fact.integers()


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
