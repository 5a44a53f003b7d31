"""Queries, keys and values that are projected from the same input: one matrix product for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.graph.computed_tensor import JoinedTensor
from sardonyx.graph.constants import is_constant
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact
from sardonyx.passes.base import Context, Level
from sardonyx.passes.rule import Match, Replacement, Rule

_ATTENTIONS = (
    ("com.microsoft", "MultiHeadAttention"),
    ("com.microsoft", "GroupQueryAttention"),
    ("", "Attention"),
)
_BETWEEN = frozenset({"Mul", "Reshape", "RotaryEmbedding", "Transpose"})
_OPERANDS = 3  # queries, keys and values are the first inputs of all of them


@dataclass(frozen=True)
class Projection:
    """x @ weight + bias: the nodes, and the constants; `bias` None where there is no Add."""

    result: ir.Value
    product: ir.Node
    weight: ir.Value
    total: ir.Node | None = None
    bias: ir.Value | None = None

    @property
    def source(self) -> ir.Value | None:
        return self.product.inputs[0]

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        return (self.product,) if self.total is None else (self.total, self.product)


def _before_heads(value: ir.Value | None) -> ir.Value | None:
    """The value before what may stand between a projection and attention: split into heads, scaled, rotated."""
    while value is not None:
        node = value.producer()
        if node is None or node.op_type not in _BETWEEN or value is not node.outputs[0]:
            return value
        if node.op_type == "Mul" and not is_constant(node.inputs[1]):
            return value
        value = node.inputs[0]
    return None


def projection_of(value: ir.Value | None) -> Projection | None:
    """The projection that computes a value, if one does."""
    node = None if value is None else value.producer()
    if node is None or value is None or node.domain != "":
        return None
    if node.op_type == "MatMul" and is_constant(node.inputs[1]):
        assert node.inputs[1] is not None
        return Projection(value, node, node.inputs[1])
    if node.op_type != "Add":
        return None
    for one, other in (node.inputs, node.inputs[::-1]):
        product = None if one is None else one.producer()
        if product is None or product.op_type != "MatMul" or product.domain != "":
            continue
        if is_constant(product.inputs[1]) and is_constant(other):
            assert product.inputs[1] is not None
            return Projection(value, product, product.inputs[1], node, other)
    return None


class ProjectionsMatch(Match):
    """Two or three projections of one input that one attention reads."""

    def __init__(self, root: ir.Node, context: Context, projections: Sequence[Projection]) -> None:
        super().__init__(root, context)
        self.projections = projections

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        return tuple(node for projection in self.projections for node in projection.nodes)

    @property
    def shared_nodes(self) -> Sequence[ir.Node]:
        """A sum may have any readers: they read its part of the joint result."""
        return [projection.nodes[0] for projection in self.projections]

    def known(self, value: ir.Value) -> Fact:
        return self.context.inference.facts.get(value, Fact())


class MergeProjections(Rule):
    """The products that compute queries, keys and values of one input become one product and a Split.

    The joint weight takes the place of the separate ones, which must have no other reader.
    """

    name = "QKVProjectionFusion"
    level = Level.EXTENDED

    def roots(self) -> Iterable[tuple[str, str]]:
        return _ATTENTIONS

    def matches(self, node: ir.Node, context: Context) -> Iterator[Match]:
        by_source: dict[ir.Value | None, dict[ir.Value, Projection]] = {}
        for value in node.inputs[:_OPERANDS]:
            projection = projection_of(_before_heads(value))
            if projection is not None:
                by_source.setdefault(projection.source, {})[projection.result] = projection
        for group in by_source.values():
            if len(group) > 1:
                yield ProjectionsMatch(node, context, list(group.values()))

    def check(self, m: Match) -> str | None:
        assert isinstance(m, ProjectionsMatch)
        depths, kinds = set(), set()
        for projection in m.projections:
            weight = m.known(projection.weight)
            if weight.rank != 2 or weight.shape is None:
                return "a weight is no matrix"
            if len(projection.weight.uses()) > 1:
                return "a weight is read elsewhere too, and would be there twice"
            depths.add(weight.shape[0])
            kinds.add(weight.dtype)
            if projection.bias is not None:
                bias = m.known(projection.bias)
                if bias.shape != weight.shape[1:]:
                    return "a bias is not one row"
                kinds.add(bias.dtype)
            if m.known(projection.result).rank is None:
                return "the number of its dimensions is not known"
            if projection.product.graph is not m.root.graph:
                return "a projection is in another graph"
        if len(depths) > 1 or len(kinds) > 1:
            return "the weights differ in type or depth"
        return None

    def rewrite(self, m: Match) -> Replacement:
        assert isinstance(m, ProjectionsMatch)
        first = m.projections[0]
        name = first.product.name or first.result.name or "MatMul"
        version, opset = first.product.version, m.context.model.opset_imports.get("", 1)
        weight = self._joined(m, [projection.weight for projection in m.projections], f"{first.weight.name}_joined")
        product = ir.node("MatMul", [first.source, weight], version=version, name=f"{name}_joined")
        nodes, result = [product], product.outputs[0]
        result.name = f"{name}_joined_product"
        if any(projection.bias is not None for projection in m.projections):
            bias = self._bias(m, f"{name}_joined_bias")
            nodes.append(ir.node("Add", [result, bias], version=opset, name=f"{name}_joined_add"))
            result = nodes[-1].outputs[0]
            result.name = f"{name}_joined_sum"
        split = self._split(m, result, f"{name}_joined_split", opset)
        nodes.append(split)
        values = {one.result: part for one, part in zip(m.projections, split.outputs, strict=True)}
        covered = set(m.nodes)
        graph = m.root.graph
        assert isinstance(graph, ir.Graph)
        return Replacement(nodes, values, place=next(node for node in graph if node in covered))

    @staticmethod
    def _widths(m: ProjectionsMatch) -> list[int]:
        return [int(tuple(m.known(projection.weight).shape or ())[1]) for projection in m.projections]  # type: ignore[arg-type]

    def _split(self, m: ProjectionsMatch, whole: ir.Value, name: str, opset: int) -> ir.Node:
        widths = self._widths(m)
        axis = (m.known(m.projections[0].result).rank or 1) - 1
        if opset < 13:
            attributes = {"axis": axis, "split": widths}
            return ir.node("Split", [whole], attributes, num_outputs=len(widths), version=opset, name=name)
        sizes = m.initializer(np.array(widths, np.int64), "widths")
        return ir.node("Split", [whole, sizes], {"axis": axis}, num_outputs=len(widths), version=opset, name=name)

    def _bias(self, m: ProjectionsMatch, name: str) -> ir.Value:
        """The biases side by side, zeros for a projection that has none."""
        parts = []
        for projection, width in zip(m.projections, self._widths(m), strict=True):
            if projection.bias is not None and projection.bias.const_value is not None:
                parts.append(np.asarray(projection.bias.const_value.numpy()))
            else:
                dtype = m.known(projection.weight).dtype
                assert dtype is not None
                parts.append(np.zeros(width, dtype.numpy()))
        return m.initializer(np.concatenate(parts), name.rpartition("_")[2])

    @staticmethod
    def _joined(m: ProjectionsMatch, weights: Sequence[ir.Value], name: str) -> ir.Value:
        graph = m.root.graph
        assert isinstance(graph, ir.Graph)
        while name in graph.initializers:
            name += "_"
        tensors = [weight.const_value for weight in weights if weight.const_value is not None]
        tensor = JoinedTensor(tensors, name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
        graph.register_initializer(value)
        m.context.inference.facts[value] = Fact(value.type, tuple(int(dim) for dim in tensor.shape.numpy()))
        return value


RULES: tuple[Rule, ...] = (MergeProjections(),)
