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
from sardonyx.passes.rules.attention_heads import SPLIT, constant_factor, text
from sardonyx.passes.rules.attention_mask import ABSORBING, Mask, as_filled, fits, is_causal, may_hide_all, repeated
from sardonyx.passes.rules.attention_match import NAME, AttentionMatch, Scores, Weighted, flag, readers
from sardonyx.passes.rules.facts import in_main_graph, permutation, producer, shape_of
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
        product = _weighted_product(node)
        scores = _scores(node.inputs[0], context)
        if product is None or scores is None:
            return
        if not _over_last_axis(node):
            raise NearMissError("the softmax is not over the last of four axes")
        shape = shape_of(scores.product.outputs[0], context)
        if shape is None or len(shape) != 4:
            raise NearMissError(f"the scores are {text(shape)}, not (batch, heads, queries, keys)")
        yield AttentionMatch(node, scores, Weighted(_guard(node)[0], product, *_merge(product)), context)

    def check(self, m: Match) -> str | None:
        assert isinstance(m, AttentionMatch)
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        fact = m.context.inference.fact(m.query.rows)
        if fact is None or fact.dtype != ir.DataType.FLOAT:
            return "MultiHeadAttention computes in float32, in which other types would round differently"
        if not math.isfinite(m.scale) or np.float32(m.scale) == 0:
            return f"its scale is {m.scale}"
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


def _over_last_axis(softmax: ir.Node) -> bool:
    axis = softmax.attributes.get("axis")
    default = -1 if (softmax.version or 1) >= 13 else 1
    return (default if axis is None else axis.as_int()) in (-1, 3)


# What comes before the softmax


def _scores(value: ir.Value | None, context: Context, depth: int = 6) -> Scores | None:
    """How a value is made from a product of two tensors by scaling and masking; None where it is not."""
    node = None if value is None else value.producer()
    if node is None or depth == 0:
        return None
    if (node.domain, node.op_type) in (("", "MatMul"), ("com.microsoft", "FusedMatMul")):
        return _product(node)
    if node.domain != "":
        return None
    if node.op_type in ("Mul", "Div"):
        return _scaled_scores(node, context, depth)
    if node.op_type == "Add":
        return _added_scores(node, context, depth)
    if node.op_type == "Reshape":
        return _windowed_scores(node, context, depth)
    return _filled_scores(node, context, depth) if node.op_type == "Where" else None


def _product(node: ir.Node) -> Scores | None:
    if node.op_type == "MatMul":
        return Scores(node)
    if any(flag(node, name) for name in ("transA", "transBatchA", "transBatchB")):
        return None
    alpha = node.attributes.get("alpha")
    return Scores(node, 1.0 if alpha is None else alpha.as_float())


def _scaled_scores(node: ir.Node, context: Context, depth: int) -> Scores | None:
    found = constant_factor(node)
    if found is not None:
        scores = _scores(found[0], context, depth - 1)
        return None if scores is None else scores.scaled(found[1], node)
    if any(_scores(value, context, depth - 1) is not None for value in node.inputs):
        raise NearMissError(f"the scores go through a {node.op_type} by what is not one constant number")
    return None


def _added_scores(node: ir.Node, context: Context, depth: int) -> Scores | None:
    for value, mask in (node.inputs, node.inputs[::-1]):
        scores = _scores(value, context, depth - 1)
        if scores is not None and mask is not None:
            return scores.masked(Mask(mask), node)
    return None


def _windowed_scores(node: ir.Node, context: Context, depth: int) -> Scores | None:
    """Scores to which a mask is added while their batch is (images, windows); `node` puts that together again."""
    total = producer(node.inputs[0], "Add")
    for value, mask in () if total is None else (total.inputs, total.inputs[::-1]):
        split = producer(value, "Reshape")
        scores = None if split is None else _scores(split.inputs[0], context, depth - 1)
        if total is None or split is None or scores is None or mask is None:
            continue
        before, windows = shape_of(split.inputs[0], context), shape_of(split.outputs[0], context)
        after = shape_of(node.outputs[0], context)
        if before is None or after is None or windows is None or len(before) != 4 or len(windows) != 5:
            raise NearMissError(f"its scores are taken apart as {text(windows)}, not (images, windows, heads, …)")
        # A Reshape keeps the number of elements: the batch is the same where the other sizes are.
        if len(after) != 4 or not all(map(same, before[1:], after[1:])) or not all(map(same, before[1:], windows[2:])):
            raise NearMissError(f"its scores are taken apart and put together again as {text(after)} of {text(before)}")
        return scores.viewed(split).masked(Mask(mask, windows=windows), total).viewed(node)
    return None


def _filled_scores(node: ir.Node, context: Context, depth: int) -> Scores | None:
    condition = node.inputs[0]
    assert condition is not None
    for value, other, keeps in ((node.inputs[1], node.inputs[2], True), (node.inputs[2], node.inputs[1], False)):
        scores = _scores(value, context, depth - 1)
        if scores is None:
            continue
        filler = repeated(other)
        if filler is None:
            raise NearMissError("what replaces hidden scores is not one constant number")
        if filler > ABSORBING:
            raise NearMissError(
                f"hidden scores are replaced by {filler}, which cannot be added without a trace of the score"
            )
        return scores.masked(Mask(condition, filler, keeps), node)
    return None


# What comes after the softmax


def _guard(softmax: ir.Node) -> tuple[tuple[ir.Node, ...], ir.Value]:
    """Where(IsNaN(p), 0, p) around the result of a softmax, if it is there, and the weights."""
    weights = softmax.outputs[0]
    for test in readers(weights, "IsNaN"):
        for where in readers(test.outputs[0], "Where"):
            if where.inputs[2] is weights and repeated(where.inputs[1]) == 0:
                return (where, test), where.outputs[0]
    return (), weights


def _weighted_product(softmax: ir.Node) -> ir.Node | None:
    """The product of the weights with the values."""
    _, weights = _guard(softmax)
    return next((node for node in readers(weights, "MatMul") if node.inputs[0] is weights), None)


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
    if not same(key[2], value[2]):
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
        if not all(dim == 1 or fits(dim, want, m.shape) for dim, want in zip(shape, wanted, strict=True)):
            return f"its mask {text(shape)} is not known to broadcast to the scores {text(scores)}"
        if not m.weighted.guard and may_hide_all(as_filled(mask)):
            return "a query from which its mask hides every key gives NaN, with MultiHeadAttention zeros"
    if m.scores.masks and not any(_spans_keys(mask, m) for mask in m.scores.masks):
        return "its mask is the same for all keys"
    return None


def _spans_keys(mask: Mask, m: AttentionMatch) -> bool:
    shape = shape_of(mask.value, m.context)
    return shape is not None and len(shape) > 0 and fits(shape[-1], m.shape[3], m.shape)


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
    """The first reader of the present keys and values where that comes before the root, else None."""
    covered = set(m.nodes)
    readers = [use.node for join in m.joins for use in join.outputs[0].uses() if use.node not in covered]
    graph = m.root.graph
    if not readers or not isinstance(graph, ir.Graph):
        return None
    if any(node.graph is not graph for node in readers):
        raise NearMissError("another graph reads the present keys or values")
    position = {node: place for place, node in enumerate(graph)}
    first = min(readers, key=position.__getitem__)
    if position[first] > position[m.root]:
        return None
    inputs = [m.query.rows, m.key.rows, m.value_heads.rows, *(mask.value for mask in m.scores.masks)]
    makers = [value.producer() for value in inputs if value is not None]
    if any(position.get(node, -1) >= position[first] for node in makers if node is not None):
        raise NearMissError(f"{first.op_type} reads the present keys or values before its inputs are there")
    return first


RULES: tuple[Rule, ...] = (FuseAttention(),)
