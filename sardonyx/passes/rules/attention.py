"""Attention that exporters write out as its parts becomes one node."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import Dims, same, unknown_dim
from sardonyx.passes.base import Context, Level
from sardonyx.passes.rule import RULE_KEY, Match, NearMissError, Replacement, Rule
from sardonyx.passes.rules.attention_heads import (
    SPLIT,
    Heads,
    constant_factor,
    keys,
    past_or_split,
    query,
    shape_of,
    text,
)
from sardonyx.passes.rules.attention_mask import ABSORBING, Mask, as_filled, fits, is_causal, may_hide_all, repeated
from sardonyx.passes.rules.facts import in_main_graph, permutation
from sardonyx.passes.rules.reshapes import constant_target


@dataclass(frozen=True)
class Scores:
    """The product of query and keys, what scales it and what masks it, in the order in which that happens."""

    product: ir.Node
    factor: float = 1.0
    masks: tuple[Mask, ...] = ()
    nodes: tuple[ir.Node, ...] = ()

    def scaled(self, factor: float, node: ir.Node) -> Scores:
        if self.masks:
            raise NearMissError("the scores are scaled after they are masked")
        return Scores(self.product, self.factor * factor, (), (*self.nodes, node))

    def masked(self, mask: Mask, node: ir.Node) -> Scores:
        return Scores(self.product, self.factor, (*self.masks, mask), (*self.nodes, node))


@dataclass(frozen=True)
class Weighted:
    """What follows the softmax: an optional guard against NaN, the product with the values, the merge of the heads."""

    guard: tuple[ir.Node, ...]
    product: ir.Node
    transpose: ir.Node
    reshape: ir.Node


class AttentionMatch(Match):
    """Attention from the projections to the merged heads; the root is the Reshape that merges them."""

    def __init__(self, softmax: ir.Node, scores: Scores, weighted: Weighted, context: Context) -> None:
        super().__init__(weighted.reshape, context)
        self.scores = scores
        self.weighted = weighted
        product_inputs = [value for value in scores.product.inputs if value is not None]
        weighted_values = weighted.product.inputs[1]
        assert weighted_values is not None
        self.query, query_factor = query(product_inputs[0], context)
        transposed = not _flag(scores.product, "transB")
        self.key, key_factor = keys(product_inputs[1], context, transposed)
        self.value_heads = past_or_split(weighted_values, context)
        self.scale = scores.factor * query_factor * key_factor
        self.joins = tuple(heads.join for heads in self.operands if self.has_past and heads.join is not None)
        # Nobody else may read what lies between the products; what feeds them stays for its other readers.
        after = (weighted.reshape, weighted.transpose, weighted.product, *weighted.guard)
        self._own = (*after, softmax, *reversed(scores.nodes), scores.product, *self.joins)
        followed = [*self.query.split, *self.key.nodes, *self.value_heads.nodes]
        split = [node for heads in self.operands for node in heads.split if self.has_rows]
        self._feeders = tuple(followed + split)

    @property
    def operands(self) -> tuple[Heads, Heads]:
        """Keys and values."""
        return self.key, self.value_heads

    @property
    def has_past(self) -> bool:
        """Whether keys and values are both appended to a past."""
        return self.key.past is not None and self.value_heads.past is not None

    @property
    def has_rows(self) -> bool:
        """Whether keys and values, or what is appended to the past, both come as (batch, length, heads * size)."""
        with_rows = all(heads.rows is not None for heads in self.operands)
        return with_rows and (self.has_past or all(heads.past is None for heads in self.operands))

    @property
    def shape(self) -> Dims:
        """(batch, heads, queries, keys) of the scores."""
        batch, heads, length, _ = self.query.shape
        return batch, heads, length, self.key.shape[2]

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        return tuple(dict.fromkeys((*self._own, *self._feeders)))

    @property
    def shared_nodes(self) -> Collection[ir.Node]:
        return {*self._feeders, *self.joins}


class FuseAttention(Rule):
    """Projections split into heads, softmax(Q K^T * scale + mask) V, heads merged: one MultiHeadAttention.

    - Keys and values come as (batch, length, heads * size), with a past that they are appended to where there is one,
      or as (batch, heads, length, size) where the model has them so.
    - Scales before, in and after the product become one. What is added to the scores becomes the bias; a condition
      that replaces scores becomes a bias when what it puts there is too low to leave a trace of the score. The plain
      causal mask becomes the attribute.
    - Where every key is hidden from a query by minus infinity, MultiHeadAttention gives zeros. That is what the guard
      means that torch puts after the softmax (Where(IsNaN(p), 0, p)), which therefore goes away. Without this guard
      such a row is NaN: where the model itself shows that there may be one, attention stays as it is.
    """

    name = "AttentionFusion"
    level = Level.EXTENDED
    patterns = ()

    def roots(self) -> Iterable[tuple[str, str]]:
        return [("", "Softmax")]

    def matches(self, node: ir.Node, context: Context) -> Iterator[Match]:
        product = _weighted_product(node)
        scores = _scores(node.inputs[0])
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
        causal = _plain_causal(m)
        nodes: list[ir.Node] = []
        bias = None if causal else _bias(m, nodes)
        key, value = m.operands
        inputs = [m.query.rows, key.rows, value.rows] if m.has_rows else [m.query.rows, key.tensor, value.tensor]
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
        nodes.append(attention)
        target = _merged_target(m)
        if target is not None:
            shape = m.initializer(np.array(target, np.int64), "shape")
            view = m.new_node("Reshape", [attention.outputs[0], shape], version=m.root.version)
            nodes.append(view)
            values[m.root.outputs[0]] = view.outputs[0]
            attention.name = f"{m.root.name}_attention"
        return Replacement(nodes, values, _place(m))


def _flag(node: ir.Node, name: str) -> bool:
    attribute = node.attributes.get(name)
    return attribute is not None and attribute.as_int() != 0


def _readers(value: ir.Value, *op_types: str) -> list[ir.Node]:
    return [use.node for use in value.uses() if use.node.op_type in op_types and use.node.domain == ""]


def _over_last_axis(softmax: ir.Node) -> bool:
    axis = softmax.attributes.get("axis")
    default = -1 if (softmax.version or 1) >= 13 else 1
    return (default if axis is None else axis.as_int()) in (-1, 3)


# What comes before the softmax


def _scores(value: ir.Value | None, depth: int = 6) -> Scores | None:
    """How a value is made from a product of two tensors by scaling and masking; None where it is not."""
    node = None if value is None else value.producer()
    if node is None or depth == 0:
        return None
    if (node.domain, node.op_type) in (("", "MatMul"), ("com.microsoft", "FusedMatMul")):
        return _product(node)
    if node.domain != "":
        return None
    if node.op_type in ("Mul", "Div"):
        return _scaled_scores(node, depth)
    if node.op_type == "Add":
        return _added_scores(node, depth)
    return _filled_scores(node, depth) if node.op_type == "Where" else None


def _product(node: ir.Node) -> Scores | None:
    if node.op_type == "MatMul":
        return Scores(node)
    if any(_flag(node, name) for name in ("transA", "transBatchA", "transBatchB")):
        return None
    alpha = node.attributes.get("alpha")
    return Scores(node, 1.0 if alpha is None else alpha.as_float())


def _scaled_scores(node: ir.Node, depth: int) -> Scores | None:
    found = constant_factor(node)
    if found is not None:
        scores = _scores(found[0], depth - 1)
        return None if scores is None else scores.scaled(found[1], node)
    if any(_scores(value, depth - 1) is not None for value in node.inputs):
        raise NearMissError(f"the scores go through a {node.op_type} by what is not one constant number")
    return None


def _added_scores(node: ir.Node, depth: int) -> Scores | None:
    for value, mask in (node.inputs, node.inputs[::-1]):
        scores = _scores(value, depth - 1)
        if scores is not None and mask is not None:
            return scores.masked(Mask(mask), node)
    return None


def _filled_scores(node: ir.Node, depth: int) -> Scores | None:
    condition = node.inputs[0]
    assert condition is not None
    for value, other, keeps in ((node.inputs[1], node.inputs[2], True), (node.inputs[2], node.inputs[1], False)):
        scores = _scores(value, depth - 1)
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
    for test in _readers(weights, "IsNaN"):
        for where in _readers(test.outputs[0], "Where"):
            if where.inputs[2] is weights and repeated(where.inputs[1]) == 0:
                return (where, test), where.outputs[0]
    return (), weights


def _weighted_product(softmax: ir.Node) -> ir.Node | None:
    """The product of the weights with the values."""
    _, weights = _guard(softmax)
    return next((node for node in _readers(weights, "MatMul") if node.inputs[0] is weights), None)


def _merge(product: ir.Node) -> tuple[ir.Node, ir.Node]:
    """The Transpose and the Reshape that merge the heads of a product."""
    result = product.outputs[0]
    transpose = next(iter(_readers(result, "Transpose")), None)
    if transpose is None:
        raise NearMissError("the heads of its result are not merged: no Transpose reads it")
    order = permutation(transpose, 4)
    if order != SPLIT:
        raise NearMissError(f"the heads of its result are merged by Transpose {order}, not {SPLIT}")
    reshape = next(iter(_readers(transpose.outputs[0], "Reshape")), None)
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
        if shape is None or len(shape) > 4:
            return f"its mask is {text(shape)}, not one of at most four dimensions"
        wanted = m.shape[4 - len(shape) :]
        if not all(dim == 1 or fits(dim, want, m.shape) for dim, want in zip(shape, wanted, strict=True)):
            return f"its mask {text(shape)} is not known to broadcast to the scores {text(m.shape)}"
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


# The bias


def _bias(m: AttentionMatch, nodes: list[ir.Node]) -> ir.Value | None:
    """The masks as one additive tensor of (1 or batch, 1 or heads, queries, keys); adds what makes it to `nodes`."""
    parts = [_additive(mask, m, nodes) for mask in m.scores.masks]
    if not parts:
        return None
    (bias, shape), *others = parts
    for other, other_shape in others:
        shape = _broadcast(shape, other_shape)
        bias = _helper(m, nodes, "Add", [bias, other], "bias")
    if len(shape) < 4:
        missing = 4 - len(shape)
        bias, shape = _unsqueezed(bias, missing, m, nodes), (1,) * missing + shape
    return bias if fits(shape[2], m.shape[2]) else _expanded(bias, shape, m, nodes)


def _broadcast(a: Dims, b: Dims) -> Dims:
    """The shape of two masks that are added: each dimension is 1 or that of the scores."""
    rank = max(len(a), len(b))
    both = [(1,) * (rank - len(shape)) + shape for shape in (a, b)]
    return tuple(y if x == 1 else x for x, y in zip(*both, strict=True))


def _additive(mask: Mask, m: AttentionMatch, nodes: list[ir.Node]) -> tuple[ir.Value, Dims]:
    """A mask as what is added to the scores, and its shape."""
    shape = shape_of(mask.value, m.context)
    assert shape is not None
    if mask.filler is None:
        return mask.value, shape
    made = _made_before(m, mask.value, "Where", shape)
    if made is not None and [repeated(value) for value in made.inputs[1:]] == _choices(mask):
        return made.outputs[0], shape
    constants = [m.initializer(np.array(choice, np.float32), "mask") for choice in _choices(mask)]
    return _helper(m, nodes, "Where", [mask.value, *constants], "mask"), shape


def _choices(mask: Mask) -> list[float]:
    assert mask.filler is not None
    return [0.0, mask.filler] if mask.keeps else [mask.filler, 0.0]


def _unsqueezed(value: ir.Value, count: int, m: AttentionMatch, nodes: list[ir.Node]) -> ir.Value:
    axes = list(range(count))
    if m.context.model.opset_imports.get("", 1) < 13:
        return _helper(m, nodes, "Unsqueeze", [value], "bias", {"axes": axes})
    return _helper(m, nodes, "Unsqueeze", [value, m.initializer(np.array(axes, np.int64), "axes")], "bias")


def _expanded(bias: ir.Value, shape: Dims, m: AttentionMatch, nodes: list[ir.Node]) -> ir.Value:
    """A bias that is the same for all queries, with a row for each, as onnxruntime wants it."""
    wanted = (*shape[:2], m.shape[2], shape[3])
    made = _made_before(m, bias, "Expand", wanted)
    if made is not None:
        return made.outputs[0]
    length = m.shape[2]
    if isinstance(length, int):
        sizes = m.initializer(np.array([1, 1, length, 1], np.int64), "rows")
    else:
        ones = m.initializer(np.ones(2, np.int64), "ones")
        one = m.initializer(np.ones(1, np.int64), "one")
        every = _helper(m, nodes, "Shape", [m.query.rows], "rows")
        rows = _helper(m, nodes, "Gather", [every, one], "rows")
        sizes = _helper(m, nodes, "Concat", [ones, rows, one], "rows", {"axis": 0})
    return _helper(m, nodes, "Expand", [bias, sizes], "bias")


def _made_before(m: AttentionMatch, source: ir.Value, op_type: str, shape: Dims) -> ir.Node | None:
    """The node that this rule made of `source` for another attention, if it stands before this one."""
    graph = m.root.graph
    assert isinstance(graph, ir.Graph)
    for node in _readers(source, op_type):
        found = shape_of(node.outputs[0], m.context)
        ours = FuseAttention.name in node.metadata_props.get(RULE_KEY, "").split(",")
        if not ours or node.graph is not graph or found is None or not all(map(same, found, shape)):
            continue
        place = _place(m) or m.root
        if next(item for item in graph if item in (node, place)) is node:
            return node
    return None


def _helper(
    m: AttentionMatch,
    nodes: list[ir.Node],
    op_type: str,
    inputs: Sequence[ir.Value | None],
    suffix: str,
    attributes: dict[str, object] | None = None,
) -> ir.Value:
    """The result of one more node before the attention."""
    node = m.new_node(op_type, inputs, attributes)
    node.name = f"{m.root.name}_{suffix}_{len(nodes)}"
    nodes.append(node)
    return node.outputs[0]


RULES: tuple[Rule, ...] = (FuseAttention(),)
