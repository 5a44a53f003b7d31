"""Attention that exporters write out as its parts becomes one node."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import Dims, same, unknown_dim
from sardonyx.passes.base import Context, Level
from sardonyx.passes.rule import Match, NearMissError, Replacement, Rule
from sardonyx.passes.rules.attention_bias import NewInputs
from sardonyx.passes.rules.attention_heads import SPLIT, text
from sardonyx.passes.rules.attention_mask import Mask, as_filled, fits, is_beginning, is_causal, may_hide_all
from sardonyx.passes.rules.attention_match import NAME, AttentionMatch, Weighted, first_reader, readers
from sardonyx.passes.rules.attention_scores import guard_of, is_over_last_axis, scores_of, weighted_product
from sardonyx.passes.rules.facts import in_main_graph, may_be_same, permutation, shape_of
from sardonyx.passes.rules.reshapes import constant_target


class FuseAttention(Rule):
    """Projections split into heads, softmax(Q K^T * scale + mask) V, heads merged: one MultiHeadAttention.

    - Keys and values come as (batch, length, heads * size), with a past that they are appended to where there is one,
      or as (batch, heads, length, size) where the model has them so.
    - Scales before, in and after the product become one. What is added to the scores becomes the bias; a condition
      that replaces scores becomes a bias when what it puts there is too low to leave a trace of the score. The plain
      causal mask becomes the attribute.
    - What is added to the windows of an image, while the scores are (images, windows, heads, queries, keys), becomes a
      bias for each window of the batch.
    - Where every key is hidden from a query by minus infinity, MultiHeadAttention gives zeros. That is what the guard
      means that torch puts after the softmax (Where(IsNaN(p), 0, p)), which therefore goes away. Without this guard
      such a row is NaN: where the model itself shows that there may be one, attention stays as it is.
    """

    name = NAME
    level = Level.EXTENDED
    patterns = ()

    def roots(self) -> Iterable[tuple[str, str]]:
        return [("", "Softmax")]

    def matches(self, node: ir.Node, context: Context) -> Iterator[Match]:
        product = weighted_product(node)
        scores = scores_of(node.inputs[0], context)
        if product is None or scores is None:
            return
        if not is_over_last_axis(node):
            raise NearMissError("the softmax is not over the last of four axes")
        shape = shape_of(scores.product.outputs[0], context)
        if shape is None or len(shape) != 4:
            raise NearMissError(f"the scores are {text(shape)}, not (batch, heads, queries, keys)")
        yield AttentionMatch(node, scores, Weighted(guard_of(node)[0], product, *_merge(product)), context)

    def check(self, m: Match) -> str | None:
        assert isinstance(m, AttentionMatch)
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        fact = m.context.inference.fact(m.query.rows)
        if fact is None or fact.dtype != ir.DataType.FLOAT:
            return "MultiHeadAttention computes in float32, in which other types would round differently"
        if not math.isfinite(m.scale) or np.float32(m.scale) == 0:
            return f"its scale is {m.scale}"
        if m.scores.cap:
            return "its scores have a soft cap"
        return _shapes_reason(m) or _layout_reason(m) or _masks_reason(m) or _order_reason(m)

    def rewrite(self, m: Match) -> Replacement:
        assert isinstance(m, AttentionMatch)
        causal, place = _plain_causal(m), _place(m)
        new = NewInputs(m, place)
        bias = None if causal else new.bias()
        key, value = m.operands
        inputs = [new.rows(m.query)]
        inputs += [new.rows(heads) if m.has_rows else heads.tensor for heads in m.operands]
        if bias is not None or m.has_past:
            inputs += [None, None, bias]
        if m.has_past:
            inputs += [key.past, value.past]
        attributes = {"num_heads": m.shape[1], "scale": float(m.scale)}
        if causal:
            attributes["unidirectional"] = 1
        attention = m.new_node(
            "MultiHeadAttention", inputs, attributes, domain="com.microsoft", version=1, outputs=3 if m.has_past else 1
        )
        values = {m.root.outputs[0]: attention.outputs[0]}
        values |= {join.outputs[0]: attention.outputs[1 + place] for place, join in enumerate(m.joins)}
        nodes = [*new.nodes, attention]
        target = _merged_target(m)
        if target is not None:
            shape = m.initializer(np.array(target, np.int64), "shape")
            view = m.new_node("Reshape", [attention.outputs[0], shape], version=m.root.version)
            nodes.append(view)
            values[m.root.outputs[0]] = view.outputs[0]
            attention.name = f"{m.root.name}_attention"
        return Replacement(nodes, values, place)


def _merge(product: ir.Node) -> tuple[ir.Node, ir.Node]:
    """The Transpose and the Reshape that merge the heads of a product."""
    result = product.outputs[0]
    transpose = next(iter(readers(result, "Transpose")), None)
    if transpose is None:
        raise NearMissError("the heads of its result are not merged: no Transpose reads it")
    order = permutation(transpose, 4)
    if order != SPLIT:
        raise NearMissError(f"the heads of its result are merged by Transpose {order}, not {SPLIT}")
    reshape = next(iter(readers(transpose.outputs[0], "Reshape")), None)
    if reshape is None:
        raise NearMissError("the heads of its result are not merged: no Reshape follows the Transpose")
    return transpose, reshape


def _merged_shape(m: AttentionMatch) -> Dims:
    batch, heads, length, _ = m.query.shape
    size = m.value_heads.shape[3]
    width = heads * size if isinstance(heads, int) and isinstance(size, int) else unknown_dim()
    return batch, length, width


def _merged_target(m: AttentionMatch) -> list[int] | str | None:
    """What the merged result is reshaped to: None where it is (batch, length, heads * size), else a constant shape.

    A text says why there is none.
    """
    merged, found = _merged_shape(m), shape_of(m.root.outputs[0], m.context)
    if found is not None and len(found) == 3 and all(map(same, merged, found)):
        return None
    if found is None or len(found) < 2 or not same(found[-1], merged[-1]):
        return f"its result is {text(found)}, which is not known to hold the merged heads {text(merged)}"
    return constant_target(found, merged, None)


# Why it may not be fused


def _shapes_reason(m: AttentionMatch) -> str | None:
    """Why the operands do not go together."""
    batch, heads, _, size = m.query.shape
    key, value = m.key.shape, m.value_heads.shape
    if not (same(key[0], batch) and same(value[0], batch)):
        return f"query, keys and values are not known to have one batch: {batch}, {key[0]} and {value[0]}"
    if not (heads == key[1] == value[1]):
        return f"query, keys and values differ in heads: {heads}, {key[1]} and {value[1]}"
    if size != key[3]:
        return f"heads of the query have size {size}, those of the keys {key[3]}"
    # The last product needs as many values as there are keys, which attention checks in every run as it does.
    if not may_be_same(key[2], value[2]):
        return f"there are {key[2]} keys and {value[2]} values"
    if not isinstance(value[3], int):
        return f"the size of the values' heads is {value[3]}"
    target = _merged_target(m)
    return target if isinstance(target, str) else None


def _layout_reason(m: AttentionMatch) -> str | None:
    """Why keys and values do not come in one of the operator's layouts."""
    if m.has_rows or all(heads.tensor is not None for heads in m.operands):
        return None
    return "keys and values come in different layouts"


def _masks_reason(m: AttentionMatch) -> str | None:
    if _plain_causal(m):
        return None
    for mask in m.scores.masks:
        shape = shape_of(mask.value, m.context)
        scores = m.shape if mask.windows is None else (1, *mask.windows[1:])
        if shape is None or len(shape) > len(scores):
            return f"its mask is {text(shape)}, not one of at most {len(scores)} dimensions"
        if mask.windows is not None and not all(isinstance(dim, int) for dim in (mask.windows[1], *shape)):
            return f"the sizes of its windows {text(mask.windows)} are not all known"
        wanted = scores[len(scores) - len(shape) :]
        pairs = list(zip(shape, wanted, strict=True))
        if pairs and _is_cut(mask, m):
            pairs.pop()
        if not all(dim == 1 or fits(dim, want, m.shape) for dim, want in pairs):
            return f"its mask {text(shape)} is not known to broadcast to the scores {text(scores)}"
        if not m.weighted.guard and may_hide_all(as_filled(mask)):
            return "a query from which its mask hides every key gives NaN, with MultiHeadAttention zeros"
    if m.scores.masks and not any(_spans_keys(mask, m) for mask in m.scores.masks):
        return "its mask is the same for all keys"
    return None


def _spans_keys(mask: Mask, m: AttentionMatch) -> bool:
    shape = shape_of(mask.value, m.context)
    return shape is not None and len(shape) > 0 and fits(shape[-1], m.shape[3], m.shape)


def _is_cut(mask: Mask, m: AttentionMatch) -> bool:
    """Whether a mask is the beginning of another one of any length, beside one that surely has a column for each key.

    Were it for fewer keys, it would be for a single one, and so for all of them in the sum of both.
    """
    shape, keys = shape_of(mask.value, m.context), m.shape[3]
    others = [shape_of(other.value, m.context) for other in m.scores.masks if other is not mask]
    return shape is not None and is_beginning(shape[-1], keys) and any(one and same(one[-1], keys) for one in others)


def _plain_causal(m: AttentionMatch) -> bool:
    """Whether the only mask is the causal one, counted from the end of the past."""
    if len(m.scores.masks) != 1 or not m.has_rows:
        return False
    past = shape_of(m.key.past, m.context) if m.has_past else None
    start = past[2] if past is not None else 0
    return is_causal(m.scores.masks[0], m.shape, start, m.context)


def _order_reason(m: AttentionMatch) -> str | None:
    """Why the node cannot stand before every reader of the present that it gives out."""
    try:
        _place(m)
    except NearMissError as miss:
        return str(miss)
    return None


def _place(m: AttentionMatch) -> ir.Node | None:
    inputs = [m.query.rows, m.key.rows, m.value_heads.rows, *(mask.value for mask in m.scores.masks)]
    return first_reader(m, m.joins, inputs)


RULES: tuple[Rule, ...] = (FuseAttention(),)
