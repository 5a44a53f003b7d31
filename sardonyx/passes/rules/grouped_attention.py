"""Attention over heads as they are, (batch, heads, length, size), where groups of them may share keys and values."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

import onnx_ir as ir

from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Dim, Dims, same
from sardonyx.passes.base import Context, Level
from sardonyx.passes.rule import Match, NearMissError, Replacement, Rule
from sardonyx.passes.rules.attention_bias import NewInputs
from sardonyx.passes.rules.attention_heads import Heads, origin, text, unscaled
from sardonyx.passes.rules.attention_mask import as_filled, fits, is_causal, may_hide_all
from sardonyx.passes.rules.attention_match import GROUPED_NAME, HEADS_NAME, MaskedMatch, Scores, first_reader, flag
from sardonyx.passes.rules.attention_scores import guard_of, is_over_last_axis, scores_of, weighted_product
from sardonyx.passes.rules.facts import in_main_graph, may_be_same, permutation, producer, shape_of, unsqueezed_axes


_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


@dataclass(frozen=True)
class Cache:
    """Keys or values: `new` ones of (batch, heads, length, size), appended to a `past` by `join` where there is one.

    `length` counts both; each head serves `group` heads of the query, for which `nodes` repeat it. With `by_rows`, new
    ones lie as (batch, length, heads, size).
    """

    new: ir.Value
    shape: Dims
    length: Dim
    group: int = 1
    past: ir.Value | None = None
    join: ir.Node | None = None
    nodes: tuple[ir.Node, ...] = ()
    by_rows: bool = False

    def joined(self) -> Cache:
        """The same without a past: what `join` gives are the new ones."""
        if self.join is None:
            return self
        shape = (*self.shape[:2], self.length, self.shape[3])
        return Cache(self.join.outputs[0], shape, self.length, self.group, nodes=self.nodes)


class HeadAttentionMatch(MaskedMatch):
    """Attention from the heads of queries, keys and values to those of the result; the root is the last product."""

    def __init__(
        self, softmax: ir.Node, scores: Scores, guard: tuple[ir.Node, ...], root: ir.Node, context: Context
    ) -> None:
        super().__init__(root, context)
        left, right = scores.product.inputs
        values = root.inputs[1]
        assert left is not None
        assert right is not None
        assert values is not None
        self.scores, self.guard = scores, guard
        query, key = unscaled(left), _untransposed(right, scores.product, context)
        self.query = Heads(_four(query.value, context, "query"), tensor=query.value)
        self.key, self.value_heads = key.cache or _cache(key.value, context), _cache(values, context)
        self.scale = scores.factor * query.factor * key.factor
        self._own = (root, *guard, softmax, *reversed(scores.nodes), scores.product)
        self._feeders = (*query.nodes, *key.nodes, *self.key.nodes, *self.value_heads.nodes)
        self.place: ir.Node | None = None
        self.joins: tuple[ir.Node, ...] = ()
        self._append()

    def _append(self) -> None:
        """Let the attention append to the past, where that can stand before all that reads the present."""
        joins = tuple(one.join for one in self.operands if one.join is not None)
        if len(joins) == 2 and joins[0] is not joins[1]:
            self.joins = joins
            inputs = [self.query.tensor, *(one.new for one in self.operands), *(m.value for m in self.scores.masks)]
            try:
                self.place = first_reader(self, joins, inputs)
            except NearMissError:
                self.joins = ()
        if not self.joins:
            self.key, self.value_heads = (one.joined() for one in self.operands)

    @property
    def operands(self) -> tuple[Cache, Cache]:
        """Keys and values."""
        return self.key, self.value_heads

    @property
    def has_past(self) -> bool:
        return bool(self.joins)

    @property
    def shape(self) -> Dims:
        """(batch, heads, queries, keys) of the scores."""
        return (*self.query.shape[:3], self.key.length)

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        return tuple(dict.fromkeys((*self._own, *self._feeders, *self.joins)))

    @property
    def shared_nodes(self) -> Collection[ir.Node]:
        return {*self._feeders, *self.joins}


class FuseHeadAttention(Rule):
    """softmax(cap(Q K^T * scale) + mask) V over four dimensions: one Attention, whose result has four dimensions.

    - Keys and values with fewer heads come as they are, not repeated for the heads of the query that share them.
    - Both may be appended to a past, whose length need not be known to be the same for both.
    - A mask whose last dimension is not known to be that of the keys is expanded to it.

    It is for what MultiHeadAttention cannot say: queries that are not rows split into heads (turned in part, normalised
    head by head), shared keys and values, soft caps.
    """

    name = HEADS_NAME
    level = Level.EXTENDED
    patterns = ()

    def roots(self) -> Iterable[tuple[str, str]]:
        return [("", "Softmax")]

    def matches(self, node: ir.Node, context: Context) -> Iterator[Match]:
        root = weighted_product(node)
        scores = scores_of(node.inputs[0], context)
        if root is None or scores is None or not is_over_last_axis(node):
            return
        shape = shape_of(scores.product.outputs[0], context)
        if shape is not None and len(shape) == 4:
            yield HeadAttentionMatch(node, scores, guard_of(node)[0], root, context)

    def check(self, m: Match) -> str | None:
        assert isinstance(m, HeadAttentionMatch)
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        fact = m.context.inference.fact(m.query.tensor)
        if fact is None or fact.dtype not in (_FLOATS if m.context.settings.fuses_any_floats else _FLOATS[:1]):
            return "other types than float32 would round differently"
        if not math.isfinite(m.scale) or m.scale == 0:
            return f"its scale is {m.scale}"
        return _shapes_reason(m) or _masks_reason(m)

    def rewrite(self, m: Match) -> Replacement:
        assert isinstance(m, HeadAttentionMatch)
        new = NewInputs(m, m.place)
        causal = _plain_causal(m)
        bias = None if causal else _bias(m, new)
        inputs: list[ir.Value | None] = [m.query.tensor]
        inputs += [new.heads(one.new) if one.by_rows else one.new for one in m.operands]
        if bias is not None or m.has_past:
            inputs.append(bias)
        if m.has_past:
            inputs += [one.past for one in m.operands]
        attributes: dict[str, float | int] = {"scale": float(m.scale)}
        if m.scores.cap:
            attributes["softcap"] = m.scores.cap
        if causal:
            attributes["is_causal"] = 1
        attention = m.new_node("Attention", inputs, attributes, version=23, outputs=3 if m.has_past else 1)
        values = {m.root.outputs[0]: attention.outputs[0]}
        values |= {join.outputs[0]: attention.outputs[1 + place] for place, join in enumerate(m.joins)}
        return Replacement([*new.nodes, attention], values, m.place)


class FuseGroupedAttention(FuseHeadAttention):
    """The same where heads of the query share keys and values, which other attention would have repeated."""

    name = GROUPED_NAME

    def check(self, m: Match) -> str | None:
        assert isinstance(m, HeadAttentionMatch)
        return "" if m.key.group == 1 else super().check(m)


# The operands


def _four(value: ir.Value, context: Context, name: str) -> Dims:
    shape = shape_of(value, context)
    if shape is None or len(shape) != 4:
        raise NearMissError(f"the {name} is {text(shape)}, not (batch, heads, length, size)")
    return shape


@dataclass(frozen=True)
class _Plain:
    """Keys (batch, heads, length, size), the product of the factors behind them, and the nodes in between.

    The `cache` is given where the keys lie otherwise.
    """

    value: ir.Value
    factor: float
    nodes: tuple[ir.Node, ...]
    cache: Cache | None = None


def _untransposed(keys: ir.Value, product: ir.Node, context: Context) -> _Plain:
    outer = unscaled(keys)
    if flag(product, "transB"):
        return _Plain(outer.value, outer.factor, outer.nodes)
    transpose = producer(outer.value, "Transpose")
    order = None if transpose is None else permutation(transpose, 4)
    if transpose is not None and transpose.inputs[0] is not None and order == (0, 2, 3, 1):
        source = transpose.inputs[0]
        batch, length, heads, size = _four(source, context, "key")
        cache = Cache(source, (batch, heads, length, size), length, by_rows=True)
        return _Plain(source, outer.factor, (*outer.nodes, transpose), cache)
    if transpose is None or transpose.inputs[0] is None or order != (0, 1, 3, 2):
        raise NearMissError(f"the keys are not transposed from (…, length, size): they come from {origin(outer.value)}")
    inner = unscaled(transpose.inputs[0])
    return _Plain(inner.value, outer.factor * inner.factor, (*outer.nodes, transpose, *inner.nodes))


def _cache(value: ir.Value, context: Context) -> Cache:
    """Keys or values, with what repeats heads and appends them to a past taken off."""
    length = _four(value, context, "cache")[2]
    value, group, nodes = _unrepeated(value, context)
    concat = producer(value, "Concat")
    if concat is not None and len(concat.inputs) == 2 and concat.attributes["axis"].as_int() in (2, -2):
        past, new = concat.inputs
        if past is not None and new is not None:
            shape = _four(new, context, "cache")
            return Cache(new, shape, length, group, past, concat, nodes)
    return Cache(value, _four(value, context, "cache"), length, group, nodes=nodes)


def _unrepeated(value: ir.Value, context: Context) -> tuple[ir.Value, int, tuple[ir.Node, ...]]:
    """Heads before each was repeated: (batch, heads, 1, length, size) expanded and taken together; how often it was."""
    merge = producer(value, "Reshape")
    expand = None if merge is None else producer(merge.inputs[0], "Expand")
    apart = None if expand is None else producer(expand.inputs[0], "Unsqueeze", "Reshape")
    if merge is None or expand is None or apart is None or apart.inputs[0] is None:
        return value, 1, ()
    after, five = shape_of(value, context), shape_of(expand.outputs[0], context)
    narrow, before = shape_of(apart.outputs[0], context), shape_of(apart.inputs[0], context)
    if after is None or five is None or narrow is None or before is None:
        return value, 1, ()
    if (len(before), len(narrow), len(five), len(after)) != (4, 5, 5, 4) or narrow[2] != 1:
        return value, 1, ()
    if apart.op_type == "Unsqueeze" and unsqueezed_axes(apart, 5, context) != frozenset({2}):
        return value, 1, ()
    heads, group = five[1], five[2]
    if not isinstance(heads, int) or not isinstance(group, int) or after[1] != heads * group:
        return value, 1, ()
    outer = (five[0], five[1], five[3], five[4])
    kept = all(map(same, outer, before)) and all(map(same, outer, (narrow[0], narrow[1], *narrow[3:])))
    if not kept or not all(map(same, (five[0], *five[3:]), (after[0], *after[2:]))):
        return value, 1, ()
    return apart.inputs[0], group, (merge, expand, apart)


# Why it may not be fused


def _shapes_reason(m: HeadAttentionMatch) -> str | None:
    batch, heads, _, size = m.query.shape
    key, value = m.operands
    if not all(same(one.shape[0], batch) for one in m.operands):
        return f"query, keys and values are not known to have one batch: {batch}, {key.shape[0]} and {value.shape[0]}"
    shared = key.shape[1]
    if not isinstance(heads, int) or not isinstance(shared, int) or value.shape[1] != shared:
        return f"its heads are {heads}, {shared} and {value.shape[1]}"
    if shared * key.group not in (1, heads) or key.group != value.group:  # a product repeats one head by itself
        return f"{heads} heads of the query are not {key.group} for each of the {shared} of the keys"
    if not isinstance(size, int) or size != key.shape[3] or not isinstance(value.shape[3], int):
        return f"heads have the sizes {size}, {key.shape[3]} and {value.shape[3]}"
    # The last product needs as many values as there are keys, which attention checks in every run as it does.
    lengths = (key.shape[2], value.shape[2]) if m.has_past else (key.length, value.length)
    return None if may_be_same(*lengths) else f"there are {lengths[0]} keys and {lengths[1]} values"


def _masks_reason(m: HeadAttentionMatch) -> str | None:
    if _plain_causal(m):
        return None
    for mask in m.scores.masks:
        shape = shape_of(mask.value, m.context)
        if shape is None or mask.windows is not None or not 0 < len(shape) <= 4:
            return f"its mask is {text(shape)}, not one of at most four dimensions"
        if shape[-1] == 1:
            return "its mask is the same for all keys"
        others = zip(shape[-2::-1], m.shape[2::-1], strict=False)
        if not all(dim == 1 or fits(dim, want, m.shape) for dim, want in others):
            return f"its mask {text(shape)} is not known to broadcast to the scores {text(m.shape)}"
        if not m.guard and may_hide_all(as_filled(mask)):
            return "a query from which its mask hides every key gives NaN, with Attention zeros"
    return None


def _plain_causal(m: HeadAttentionMatch) -> bool:
    """Whether the only mask is the causal one, counted from the end of the past."""
    if len(m.scores.masks) != 1:
        return False
    past = shape_of(m.key.past, m.context) if m.has_past else None
    return is_causal(m.scores.masks[0], m.shape, 0 if past is None else past[2], m.context)


# What takes its place


def _bias(m: HeadAttentionMatch, new: NewInputs) -> ir.Value | None:
    """The masks as one tensor that is added to the scores, as long as the keys."""
    found = new.added()
    if found is None:
        return None
    bias, shape = found
    if fits(shape[-1], m.shape[3], m.shape):
        return bias
    lengths = [new.size(m.key.new, 1 if m.key.by_rows else 2)]
    if m.has_past:
        lengths.append(new.size(m.key.past, 2))
    return new.widened(bias, lengths)


RULES: tuple[Rule, ...] = (FuseHeadAttention(),)
SHARED_RULES: tuple[Rule, ...] = (FuseGroupedAttention(),)
