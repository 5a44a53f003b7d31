"""Attention over (batch * heads, length, size), as older models write it, with batch and heads apart again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.dims import multiply
from sardonyx.ops.framework.facts import Dims, same
from sardonyx.passes.base import Context, Level
from sardonyx.passes.rule import Match, NearMissError, Replacement, Rule
from sardonyx.passes.rules.attention_heads import constant_factor, origin, text
from sardonyx.passes.rules.attention_match import readers
from sardonyx.passes.rules.facts import in_main_graph, permutation, producer, shape_of

_KEYS_TURNED = (0, 1, 3, 2)
_LONGEST_CHAIN = 8


@dataclass(frozen=True)
class _Operand:
    """A value (batch, heads, …) that a Reshape merges, the nodes behind it, and whether its last axes are exchanged."""

    value: ir.Value
    shape: Dims
    nodes: tuple[ir.Node, ...]
    turned: bool = False


class MergedHeadsMatch(Match):
    """Two products over merged heads; the root is the Reshape that takes batch and heads of their result apart."""

    def __init__(self, softmax: ir.Node, root: ir.Node, last: ir.Node, between: Sequence[ir.Node], context: Context):
        super().__init__(root, context)
        assert last.inputs[1] is not None
        self.last, self.softmax = last, softmax
        self.values = _merged(last.inputs[1], context)
        chain: list[ir.Node] = []
        value = softmax.inputs[0]
        while (node := None if value is None else value.producer()) is not None and node.op_type != "MatMul":
            if node.domain != "" or len(chain) > _LONGEST_CHAIN:
                node = None
                break
            chain.append(node)
            value = _followed(node)
        if node is None:
            raise NearMissError(f"its scores are no product: they come from {origin(value)}")
        self.product, self.chain = node, chain
        assert node.inputs[0] is not None
        assert node.inputs[1] is not None
        self.query, self.keys = _merged(node.inputs[0], context), _merged(node.inputs[1], context)
        self.between = tuple(between)

    @property
    def operands(self) -> tuple[_Operand, _Operand, _Operand]:
        return self.query, self.keys, self.values

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        own = (self.root, self.last, *self.between, self.softmax, *self.chain, self.product)
        return tuple(dict.fromkeys((*own, *(node for one in self.operands for node in one.nodes))))

    @property
    def shared_nodes(self) -> Collection[ir.Node]:
        return {node for one in self.operands for node in one.nodes}


class SplitMergedHeads(Rule):
    """softmax of scores of (batch * heads, queries, keys), times values: the same over (batch, heads, …).

    The Reshapes between the two forms go, so that the rules for attention find four dimensions. What is added to merged
    scores and has their batch is split as they are.
    """

    name = "MergedHeadsSplitting"
    level = Level.EXTENDED
    patterns = ()

    def roots(self) -> Iterable[tuple[str, str]]:
        return [("", "Softmax")]

    def matches(self, node: ir.Node, context: Context) -> Iterator[Match]:
        weights, between = node.outputs[0], []
        for reshape in readers(weights, "Reshape"):
            weights, between = reshape.outputs[0], [reshape]
        last = next((one for one in readers(weights, "MatMul") if one.inputs[0] is weights), None)
        shape = None if last is None else shape_of(last.outputs[0], context)
        root = None if last is None else next(iter(readers(last.outputs[0], "Reshape")), None)
        if last is None or root is None or shape is None or len(shape) != 3:
            return
        yield MergedHeadsMatch(node, root, last, between, context)

    def check(self, m: Match) -> str | None:
        assert isinstance(m, MergedHeadsMatch)
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        lead = m.query.shape[:2]
        if not all(same(a, b) for one in m.operands for a, b in zip(one.shape, lead, strict=False)):
            return f"query, keys and values are {', '.join(text(one.shape) for one in m.operands)}"
        if not isinstance(lead[1], int) or m.query.turned or m.values.turned:
            return f"its heads are {lead[1]}"
        result = shape_of(m.root.outputs[0], m.context)
        wanted = (*lead, m.query.shape[2], m.values.shape[3])
        if result is None or len(result) != 4 or not all(map(same, result, wanted)):
            return f"its result is taken apart as {text(result)}, not {text(wanted)}"
        return self._chain_reason(m)

    @staticmethod
    def _chain_reason(m: MergedHeadsMatch) -> str | None:
        """Why what lies between the products cannot be done over four dimensions."""
        batch, heads, queries = m.query.shape[:3]
        for node in (*m.between, m.softmax, *m.chain):
            before, after = shape_of(_followed(node), m.context), shape_of(node.outputs[0], m.context)
            if before is None or after is None:
                return f"the shape of what {node.op_type} gives is not known"
            for shape in (before, after):
                wanted = (multiply(batch, heads), queries) if len(shape) == 3 else (batch, heads, queries)
                if len(shape) not in (3, 4) or not all(map(same, shape, wanted)):
                    return f"its scores go through {text(shape)}"
            if node.op_type == "Softmax":
                given = node.attributes.get("axis")
                default = -1 if (node.version or 1) >= 13 else 1
                if (default if given is None else given.as_int()) not in (-1, len(before) - 1):
                    return "the softmax is not over the last axis"
            if node.op_type == "Add":
                other = shape_of(_other(node), m.context)
                if other is None or len(other) > len(before):
                    return f"what is added to its scores is {text(other)}"
                if len(other) == 3 and len(before) == 3 and other[0] != 1 and not same(other[0], before[0]):
                    return f"what is added to its scores is {text(other)}"
        return None

    def rewrite(self, m: Match) -> Replacement:
        assert isinstance(m, MergedHeadsMatch)
        new = _NewNodes(m)
        keys = m.keys.value
        if m.keys.turned:
            keys = new.node("Transpose", [keys], {"perm": _KEYS_TURNED})
        scores = new.node("MatMul", [m.query.value, keys])
        for node in reversed(m.chain):
            if node.op_type != "Reshape":
                followed = _followed(node)
                merged = len(shape_of(followed, m.context) or ()) == 3
                read = [scores if one is followed else new.apart(one) if merged else one for one in node.inputs]
                scores = new.node(node.op_type, read)
        weights = new.node("Softmax", [scores], {"axis": 3})
        result = new.node("MatMul", [weights, m.values.value])
        return Replacement(new.nodes, {m.root.outputs[0]: result})


class _NewNodes:
    """The nodes over four dimensions."""

    def __init__(self, m: MergedHeadsMatch) -> None:
        self.m = m
        self.nodes: list[ir.Node] = []

    def node(
        self, op_type: str, inputs: Sequence[ir.Value | None], attributes: dict[str, Any] | None = None
    ) -> ir.Value:
        node = self.m.new_node(op_type, inputs, attributes)
        node.name = f"{self.m.root.name}_{op_type}_{len(self.nodes)}"
        self.nodes.append(node)
        return node.outputs[0]

    def apart(self, value: ir.Value | None) -> ir.Value | None:
        """What is added to merged scores, with its batch and heads apart; what has no such axis as it is."""
        shape = shape_of(value, self.m.context)
        if shape is None or len(shape) != 3 or shape[0] == 1:
            return value
        axes = [0]
        if self.m.context.model.opset_imports.get("", 1) < 13:
            wide = self.node("Unsqueeze", [value], {"axes": axes})
        else:
            wide = self.node("Unsqueeze", [value, self.m.initializer(np.array(axes, np.int64), "axes")])
        sizes = np.array([-1, self.m.query.shape[1], 0, 0], np.int64)
        return self.node("Reshape", [wide, self.m.initializer(sizes, "apart")])


def _merged(value: ir.Value, context: Context) -> _Operand:
    """What a Reshape merges to (batch * heads, …), whose last two axes may be exchanged afterwards."""
    transpose = producer(value, "Transpose")
    nodes: tuple[ir.Node, ...] = ()
    source: ir.Value | None = value
    if transpose is not None and permutation(transpose, 3) == (0, 2, 1):
        nodes, source = (transpose,), transpose.inputs[0]
    reshape = producer(source, "Reshape")
    if reshape is None or reshape.inputs[0] is None:
        raise NearMissError(f"an operand of its products is no Reshape: it comes from {origin(source)}")
    before, after = shape_of(reshape.inputs[0], context), shape_of(source, context)
    if before is None or after is None or len(before) != 4 or len(after) != 3:
        raise NearMissError(f"an operand of its products is {text(after)} of {text(before)}")
    if not all(map(same, after, (multiply(before[0], before[1]), *before[2:]))):
        raise NearMissError(f"an operand of its products is {text(after)} of {text(before)}")
    return _Operand(reshape.inputs[0], before, (*nodes, reshape), bool(nodes))


def _followed(node: ir.Node) -> ir.Value | None:
    """The scores that a node between the products reads; None where it is none of them."""
    if node.op_type in ("Reshape", "Softmax"):
        return node.inputs[0]
    found = constant_factor(node)
    if found is not None:
        return found[0]
    if node.op_type != "Add":
        return None
    return next((value for value in node.inputs if _leads_to_product(value)), None)


def _other(node: ir.Node) -> ir.Value | None:
    """What an Add adds to the scores."""
    followed = _followed(node)
    return next((value for value in node.inputs if value is not followed), None)


def _leads_to_product(value: ir.Value | None) -> bool:
    """Whether a value is a product that was scaled, added to and taken apart, and nothing else."""
    for _ in range(_LONGEST_CHAIN):
        node = None if value is None else value.producer()
        if node is None or node.domain != "":
            return False
        if node.op_type == "MatMul":
            return True
        value = _followed(node) if node.op_type in ("Reshape", "Mul", "Div", "Add") else None
    return False


RULES: tuple[Rule, ...] = (SplitMergedHeads(),)
