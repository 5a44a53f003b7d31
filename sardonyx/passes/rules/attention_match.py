"""What the attention rule found: the products, what scales and masks the scores, and which nodes go away."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import onnx_ir as ir

from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Dims
from sardonyx.passes.base import Context
from sardonyx.passes.rule import Match, NearMissError
from sardonyx.passes.rules.attention_heads import Heads, keys, past_or_split, query
from sardonyx.passes.rules.attention_mask import ABSORBING, Mask

NAME = "AttentionFusion"
GROUPED_NAME = "GroupedAttentionFusion"
HEADS_NAME = "HeadAttentionFusion"
BY_HEADS = frozenset({GROUPED_NAME, HEADS_NAME})  # these make ONNX's Attention
NAMES = BY_HEADS | {NAME}


@dataclass(frozen=True)
class Scores:
    """The product of query and keys, what scales it and what masks it, in the order in which that happens."""

    product: ir.Node
    factor: float = 1.0
    masks: tuple[Mask, ...] = ()
    nodes: tuple[ir.Node, ...] = ()
    cap: float = 0.0  # they are cap * tanh(scores / cap), before they are masked

    def scaled(self, factor: float, node: ir.Node) -> Scores:
        if self.cap:
            raise NearMissError("the scores are scaled after they are capped")
        if self.masks and not 0 < factor <= 1:  # a larger one makes an infinity of the lowest number
            raise NearMissError(f"the scores are scaled by {factor} after they are masked")
        masks = tuple(mask.scaled(factor) for mask in self.masks)
        if any(mask.filler is not None and mask.filler > ABSORBING for mask in masks):
            raise NearMissError("what replaces hidden scores is scaled to a number that leaves a trace of the score")
        return replace(self, factor=self.factor * factor, masks=masks, nodes=(*self.nodes, node))

    def capped(self, cap: float, node: ir.Node) -> Scores:
        return replace(self, cap=cap, nodes=(*self.nodes, node))

    def masked(self, mask: Mask, node: ir.Node) -> Scores:
        return replace(self, masks=(*self.masks, mask), nodes=(*self.nodes, node))

    def viewed(self, node: ir.Node) -> Scores:
        """The same scores in another shape."""
        return replace(self, nodes=(*self.nodes, node))


@dataclass(frozen=True)
class Weighted:
    """What follows the softmax: an optional guard against NaN, the product with the values, the merge of the heads."""

    guard: tuple[ir.Node, ...]
    product: ir.Node
    transpose: ir.Node
    reshape: ir.Node


class MaskedMatch(Match):
    """Attention whose scores may be masked."""

    scores: Scores
    query: Heads

    @property
    def shape(self) -> Dims:
        """(batch, heads, queries, keys) of the scores."""
        raise NotImplementedError


class AttentionMatch(MaskedMatch):
    """Attention from the projections to the merged heads; the root is the Reshape that merges them."""

    def __init__(self, softmax: ir.Node, scores: Scores, weighted: Weighted, context: Context) -> None:
        super().__init__(weighted.reshape, context)
        self.scores = scores
        self.weighted = weighted
        product_inputs = [value for value in scores.product.inputs if value is not None]
        weighted_values = weighted.product.inputs[1]
        assert weighted_values is not None
        self.query, query_factor = query(product_inputs[0], context)
        transposed = not flag(scores.product, "transB")
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


def flag(node: ir.Node, name: str) -> bool:
    attribute = node.attributes.get(name)
    return attribute is not None and attribute.as_int() != 0


def readers(value: ir.Value, *op_types: str) -> list[ir.Node]:
    return [use.node for use in value.uses() if use.node.op_type in op_types and use.node.domain == ""]


def first_reader(m: Match, joins: Iterable[ir.Node], inputs: Iterable[ir.Value | None]) -> ir.Node | None:
    """The first reader of what `joins` give where that comes before the root, else None.

    What is made of `inputs` has to stand before it; NearMissError where these come later.
    """
    covered = set(m.nodes)
    uses = [use.node for join in joins for use in join.outputs[0].uses() if use.node not in covered]
    graph = m.root.graph
    if not uses or not isinstance(graph, ir.Graph):
        return None
    if any(node.graph is not graph for node in uses):
        raise NearMissError("another graph reads the present keys or values")
    position = {node: place for place, node in enumerate(graph)}
    first = min(uses, key=position.__getitem__)
    if position[first] > position[m.root]:
        return None
    makers = [value.producer() for value in inputs if value is not None]
    if any(position.get(node, -1) >= position[first] for node in makers if node is not None):
        raise NearMissError(f"{first.op_type} reads the present keys or values before its inputs are there")
    return first
