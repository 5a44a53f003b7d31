"""The projections before MultiHeadAttention inside it: Attention with one weight for queries, keys and values.

For models that are saved. Here the product stays a node of its own, which the kernels of products and the rules for
joint projections take like every other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.computed_tensor import JoinedTensor
from sardonyx.graph.constants import Array, array_of, is_constant
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact
from sardonyx.passes.base import Context, Level
from sardonyx.passes.rule import Match, Replacement, Rule
from sardonyx.passes.rules.facts import in_main_graph
from sardonyx.passes.rules.projections import Projection, projection_of

_ATTENTION = ("com.microsoft", "MultiHeadAttention")
_ADDED, _MASK, _BIAS, _PAST = 3, 4, 5, 6  # inputs of MultiHeadAttention behind queries, keys and values
_OUTPUTS = 1


@dataclass(frozen=True)
class Sources:
    """Where queries, keys and values come from: one projection each, or one for all three and its Split."""

    projections: Sequence[Projection]
    split: ir.Node | None = None

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        nodes = [node for projection in self.projections for node in projection.nodes]
        return tuple(nodes if self.split is None else [self.split, *nodes])


def _sources(node: ir.Node) -> Sources | None:
    """The projections that a MultiHeadAttention reads, if all its operands are such."""
    operands = node.inputs[:3]
    if len(operands) < 3 or any(value is None for value in operands):
        return None
    split = operands[0].producer() if operands[0] is not None else None
    if split is not None and split.op_type == "Split" and split.domain == "":
        whole = projection_of(split.inputs[0]) if tuple(split.outputs) == tuple(operands) else None
        return None if whole is None else Sources([whole], split)
    found = [projection_of(value) for value in operands]
    projections = [projection for projection in found if projection is not None]
    return Sources(projections) if len(projections) == len(operands) else None


class ProjectionMatch(Match):
    """A MultiHeadAttention and the projections before it."""

    def __init__(self, root: ir.Node, context: Context, sources: Sources) -> None:
        super().__init__(root, context)
        self.sources = sources

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        return (self.root, *self.sources.nodes)

    @property
    def shared_nodes(self) -> Sequence[ir.Node]:
        """Projections stay for whoever else reads them."""
        return self.sources.nodes

    def known(self, value: ir.Value | None) -> Fact:
        return Fact() if value is None else self.context.inference.facts.get(value, Fact())

    def input(self, place: int) -> ir.Value | None:
        return self.root.inputs[place] if place < len(self.root.inputs) else None

    @property
    def widths(self) -> list[int] | None:
        """The widths of queries, keys and values, where all are known."""
        shapes = [self.known(value).shape for value in self.root.inputs[:3]]
        widths = [shape[2] for shape in shapes if shape is not None and len(shape) == 3 and isinstance(shape[2], int)]
        return widths if len(widths) == len(shapes) else None


class FuseProjections(Rule):
    """MultiHeadAttention over three projections of one input, or over the parts of one, is Attention.

    Its weight holds theirs side by side, its bias their biases; a projection without one has zeros.
    """

    name = "AttentionProjectionFusion"
    level = Level.EXTENDED
    patterns = ()

    def roots(self) -> list[tuple[str, str]]:
        return [_ATTENTION]

    def matches(self, node: ir.Node, context: Context) -> Iterator[Match]:
        sources = _sources(node)
        if sources is not None:
            yield ProjectionMatch(node, context, sources)

    def check(self, m: Match) -> str | None:
        assert isinstance(m, ProjectionMatch)
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        if m.input(_PAST) is not None:
            return "its past keys and values are two tensors, those of Attention one"
        if m.input(_ADDED) is not None or len(m.root.outputs) > _OUTPUTS:
            return "it adds a bias of its own, or gives out keys and values"
        if len({projection.source for projection in m.sources.projections}) > 1:
            return "its queries, keys and values are projected from different inputs"
        source = m.known(m.sources.projections[0].source)
        if source.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16) or source.rank != 3:
            return f"its input is not (batch, length, width) of single or half precision, but {source.dtype}"
        widths = m.widths
        if widths is None or widths[0] != widths[1]:
            return "its queries and keys are not known to have one width"
        return self._weights_reason(m, source, widths)

    @staticmethod
    def _weights_reason(m: ProjectionMatch, source: Fact, widths: Sequence[int]) -> str | None:
        for projection in m.sources.projections:
            weight = m.known(projection.weight)
            if weight.rank != 2 or weight.dtype != source.dtype or weight.shape is None:
                return "a weight is no matrix of the type of its input"
            if projection.bias is not None and m.known(projection.bias).shape != weight.shape[1:]:
                return "a bias is not one row"
        columns = [m.known(projection.weight).shape for projection in m.sources.projections]
        if sum(shape[1] for shape in columns if shape is not None and isinstance(shape[1], int)) != sum(widths):
            return "a weight has other columns than what is made with it"
        return None

    def rewrite(self, m: Match) -> ir.Node:
        assert isinstance(m, ProjectionMatch)
        widths = m.widths
        assert widths is not None
        weight, bias = self._weight(m), self._bias(m)
        inputs = [m.sources.projections[0].source, weight, bias, m.input(_MASK), None, m.input(_BIAS)]
        while inputs[-1] is None:
            inputs.pop()
        attributes = {name: attribute.value for name, attribute in m.root.attributes.items()}
        if len(set(widths)) > 1:
            attributes["qkv_hidden_sizes"] = widths
        return m.new_node("Attention", inputs, attributes, domain="com.microsoft", version=1)

    @staticmethod
    def _weight(m: ProjectionMatch) -> ir.Value:
        """The weights side by side; layers that share theirs share this one, too."""
        weights = [projection.weight for projection in m.sources.projections]
        if len(weights) == 1:
            return weights[0]
        graph = m.root.graph
        assert isinstance(graph, ir.Graph)
        tensors = [weight.const_value for weight in weights if weight.const_value is not None]
        for value in graph.initializers.values():
            made = value.const_value
            if isinstance(made, JoinedTensor) and [*map(id, made.parts)] == [*map(id, tensors)]:
                return value
        return m.computed(lambda name: JoinedTensor(tensors, name), "qkv_weight")

    @staticmethod
    def _bias(m: ProjectionMatch) -> ir.Value:
        """The biases one after the other: onnxruntime crashes without, though the operator does not ask for one."""
        projections = m.sources.projections
        if len(projections) == 1 and projections[0].bias is not None:
            return projections[0].bias
        return m.initializer(np.concatenate([_row(m, projection) for projection in projections]), "qkv_bias")


def _row(m: ProjectionMatch, projection: Projection) -> Array:
    """The bias of a projection, zeros where it has none."""
    if projection.bias is not None:
        return array_of(projection.bias)
    weight = m.known(projection.weight)
    assert weight.shape is not None
    assert weight.dtype is not None
    return np.zeros(int(weight.shape[1]), weight.dtype.numpy())  # type: ignore[arg-type]


class FuseOperandBiases(Rule):
    """The rows that are added to queries, keys and values are the fourth input of MultiHeadAttention.

    For models that are saved; here they are added by the products before. Where keys and values are caches, of four
    dimensions, only queries have one.
    """

    name = "MultiHeadAttentionBiasFusion"
    level = Level.EXTENDED
    patterns = ()

    def roots(self) -> list[tuple[str, str]]:
        return [_ATTENTION]

    def matches(self, node: ir.Node, context: Context) -> Iterator[Match]:
        operands = node.inputs[:3]
        if len(operands) < 3 or any(value is None for value in operands):
            return
        if len(node.inputs) > _ADDED and node.inputs[_ADDED] is not None:
            return
        biased = [_biased(value) for value in operands]
        if any(found is not None for found in biased):
            yield BiasesMatch(node, context, biased)

    def check(self, m: Match) -> str | None:
        assert isinstance(m, BiasesMatch)
        facts = m.context.inference.facts
        for value, found in zip(m.root.inputs[:3], m.biased, strict=True):
            assert value is not None
            shape = facts[value].shape
            if shape is None or not isinstance(shape[-1], int) or (found is not None and len(shape) != 3):
                return "its operands have no known width"
            if found is not None and facts[found.bias].shape != shape[-1:]:
                return "what is added is not a row as long as the last dimension"
        return None

    def rewrite(self, m: Match) -> Replacement:
        assert isinstance(m, BiasesMatch)
        inputs = list(m.root.inputs)
        rows = []
        for place, found in enumerate(m.biased):
            if found is None:
                rows.append(np.zeros(self._width(m, place), m.dtype))
            else:
                inputs[place] = found.value
                rows.append(array_of(found.bias))
        inputs += [None] * (_ADDED + 1 - len(inputs))
        inputs[_ADDED] = m.initializer(np.concatenate(rows), "bias")
        return m.altered(inputs)

    @staticmethod
    def _width(m: Match, place: int) -> int:
        """The elements of the bias of an operand: heads times size."""
        value = m.root.inputs[place]
        assert value is not None
        shape = m.context.inference.facts[value].shape
        assert shape is not None
        width = shape[-1]
        assert isinstance(width, int)
        return width * int(m.attribute(m.root, "num_heads") if len(shape) == 4 else 1)


@dataclass(frozen=True)
class Biased:
    """A value plus a constant row."""

    value: ir.Value
    bias: ir.Value
    total: ir.Node


def _biased(value: ir.Value | None) -> Biased | None:
    total = None if value is None else value.producer()
    if total is None or (total.domain, total.op_type) != ("", "Add"):
        return None
    for one, other in (total.inputs, total.inputs[::-1]):
        if one is not None and other is not None and is_constant(other) and not is_constant(one):
            return Biased(one, other, total)
    return None


class BiasesMatch(Match):
    """A MultiHeadAttention and the sums that its operands are."""

    def __init__(self, root: ir.Node, context: Context, biased: Sequence[Biased | None]) -> None:
        super().__init__(root, context)
        self.biased = biased

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        return (self.root, *self.shared_nodes)

    @property
    def shared_nodes(self) -> Sequence[ir.Node]:
        return list(dict.fromkeys(found.total for found in self.biased if found is not None))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the rows."""
        found = next(found for found in self.biased if found is not None)
        kind: np.dtype[Any] = array_of(found.bias).dtype
        return kind


RULES: tuple[Rule, ...] = (FuseProjections(), FuseOperandBiases())
