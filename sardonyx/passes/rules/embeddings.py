"""Embeddings that are added and normalised, as one node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import array_of, is_constant
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Dim, Dims, same
from sardonyx.passes.base import Context, Level, is_named
from sardonyx.passes.rule import Match, Replacement, Rule
from sardonyx.passes.rules.attention_mask import fits
from sardonyx.passes.rules.facts import in_main_graph, producer, shape_of
from sardonyx.passes.rules.narrow_integers import as_int32

_MICROSOFT = "com.microsoft"
_IDS = frozenset({ir.DataType.INT32, ir.DataType.INT64})
_SUM = 2  # the output that is the sum before its normalisation


@dataclass(frozen=True)
class Lookup:
    """Rows of a table (ids, width): those of `ids`, or the first ones in order where there are none."""

    table: ir.Value
    ids: ir.Value | None
    rows: int
    nodes: tuple[ir.Node, ...] = ()


class EmbeddingMatch(Match):
    """A normalisation, the sums before it, and the lookups that these add."""

    def __init__(self, root: ir.Node, context: Context, sums: Sequence[ir.Node], lookups: Sequence[Lookup]) -> None:
        super().__init__(root, context)
        self.sums = sums
        self.lookups = lookups
        counted = [lookup for lookup in lookups if lookup.ids is None]
        others = sorted((lookup for lookup in lookups if lookup.ids is not None), key=lambda lookup: -lookup.rows)
        # A sum is the same in any order; words have most rows, kinds of segments fewest.
        self.words = others[0] if others else None
        self.positions = counted[0] if counted else others[1] if len(others) > 1 else None
        rest = [lookup for lookup in others[1:] if lookup is not self.positions]
        self.segments = rest[0] if rest else None

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        looked_up = [node for lookup in self.lookups for node in lookup.nodes]
        return tuple(dict.fromkeys([self.root, *self.sums, *looked_up]))

    @property
    def shared_nodes(self) -> Sequence[ir.Node]:
        """The sum may be read by a residual; what is looked up stays for other readers."""
        return [self.sums[0], *(node for lookup in self.lookups for node in lookup.nodes)]


def _lookup(value: ir.Value | None, shape: Dims, context: Context) -> Lookup | None:
    """The lookup that a summand of this shape (batch, length, width) is."""
    if value is None:
        return None
    if is_constant(value):
        return _counted(value, shape, context)
    gather = producer(value, "Gather")
    if gather is None or gather.inputs[0] is None or gather.inputs[1] is None:
        return None
    table, ids = gather.inputs[0], gather.inputs[1]
    axis = gather.attributes.get("axis")
    table_shape, ids_shape = shape_of(table, context), shape_of(ids, context)
    fact = context.inference.fact(ids)
    if not is_constant(table) or table_shape is None or len(table_shape) != 2 or ids_shape is None or fact is None:
        return None
    if (axis is not None and axis.as_int() not in (0, -2)) or fact.dtype not in _IDS:
        return None
    rows = table_shape[0]
    if not isinstance(rows, int):
        return None
    if counts_up(ids, shape[1], context):
        return Lookup(table, None, rows, (gather,))
    if len(ids_shape) != 2 or not same(ids_shape[1], shape[1]):
        return None
    return Lookup(table, ids, rows, (gather,))


def _counted(value: ir.Value, shape: Dims, context: Context) -> Lookup | None:
    """Constant rows that are added to each entry of the batch, as folding leaves those of the positions."""
    found = shape_of(value, context)
    if found is None or len(found) not in (2, 3) or (len(found) == 3 and found[0] != 1):
        return None
    if not same(found[-2], shape[1]) or not same(found[-1], shape[2]) or not isinstance(found[-2], int):
        return None
    return Lookup(value, None, found[-2])


def counts_up(ids: ir.Value | None, length: Dim, context: Context) -> bool:
    """Whether ids are 0, 1, 2, … up to `length`, for each entry of the batch the same."""
    shape = shape_of(ids, context)
    if shape is None or not shape or not fits(shape[-1], length):
        return False
    if any(dim != 1 for dim in shape[:-1]) and producer(ids, "Expand") is None:
        return False
    while (view := producer(ids, "Unsqueeze", "Expand", "Cast")) is not None:
        ids = view.inputs[0]
        inner = shape_of(ids, context)
        if inner is None or not inner or not fits(inner[-1], length):
            return False
    counted = producer(ids, "Range")
    if counted is not None:
        return [_scalar(counted.inputs[place], context) for place in (0, 2)] == [0, 1]
    cut = producer(ids, "Slice")
    if cut is None:
        return ids is not None and is_constant(ids) and _is_count(ids)
    starts, steps = (_numbers(cut, place, context) for place in (1, 4))
    if not all(start == 0 for start in starts or [1]) or not all(step == 1 for step in steps or []):
        return False
    return cut.inputs[0] is not None and is_constant(cut.inputs[0]) and _is_count(cut.inputs[0])


def _is_count(value: ir.Value) -> bool:
    array = array_of(value)
    return array.size == array.shape[-1] and bool((array.ravel() == np.arange(array.size)).all())


def _scalar(value: ir.Value | None, context: Context) -> object:
    fact = context.inference.fact(value)
    return None if fact is None or fact.elements is None or len(fact.elements) != 1 else fact.elements[0]


def _numbers(node: ir.Node, place: int, context: Context) -> list[int] | None:
    fact = context.inference.fact(node.inputs[place]) if place < len(node.inputs) else None
    return None if fact is None else fact.integers()


def _summands(value: ir.Value | None) -> tuple[list[ir.Node], list[ir.Value | None]]:
    """The sums of a sum of two or three, the outer one first, and what is added."""
    outer = producer(value, "Add")
    if outer is None:
        return [], []
    for one, other in (outer.inputs, outer.inputs[::-1]):
        inner = producer(one, "Add")
        if inner is not None:
            return [outer, inner], [*inner.inputs, other]
    return [outer], list(outer.inputs)


class FuseEmbeddings(Rule):
    """LayerNormalization of looked-up words, positions and kinds of segments is EmbedLayerNormalization.

    Positions that count up are left out: the operator counts by itself. For models that are saved; here the parts are
    as fast.
    """

    name = "EmbedLayerNormFusion"
    level = Level.EXTENDED
    patterns = ()

    def roots(self) -> list[tuple[str, str]]:
        return [("", "LayerNormalization")]

    def matches(self, node: ir.Node, context: Context) -> Iterator[Match]:
        sums, summands = _summands(node.inputs[0])
        shape = shape_of(node.inputs[0], context)
        if not sums or shape is None or len(shape) != 3:
            return
        lookups = [lookup for value in summands if (lookup := _lookup(value, shape, context)) is not None]
        if len(lookups) == len(summands):
            yield EmbeddingMatch(node, context, sums, lookups)

    def check(self, m: Match) -> str | None:
        assert isinstance(m, EmbeddingMatch)
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        if m.words is None or m.positions is None or len([one for one in m.lookups if one.ids is None]) > 1:
            return "its embeddings are not those of words and positions"
        rank, fact = 3, m.context.inference.facts[m.sums[0].outputs[0]]
        if fact.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
            return "only single and half precision have such a kernel in onnxruntime"
        if m.attribute(m.root, "axis", -1) not in (-1, rank - 1) or any(map(is_named, m.root.outputs[1:])):
            return "it normalises more than the last dimension, or its statistics are read"
        if len(m.root.inputs) < 3 or m.root.inputs[2] is None:
            return "it has no offset"
        if any(value is not None and value.producer() is not None for value in m.root.inputs[1:]):
            return "its scale or its offset is computed"
        return self._batch_reason(m)

    @staticmethod
    def _batch_reason(m: EmbeddingMatch) -> str | None:
        assert m.words is not None
        assert m.positions is not None
        words = shape_of(m.words.ids, m.context)
        whole = m.context.inference.facts[m.sums[0].outputs[0]].shape
        assert words is not None
        assert whole is not None
        if not same(words[0], whole[0]) or not same(words[1], whole[1]):
            return "its words are not known to have an id for each place"
        if m.segments is not None:
            segments = shape_of(m.segments.ids, m.context)
            if segments is None or not all(map(same, segments, words)):
                return "its segments are not known to have a kind for each place"
        if m.positions.ids is not None:
            positions = shape_of(m.positions.ids, m.context)
            if positions is None or not (positions[0] == 1 or same(positions[0], words[0])):
                return "its positions are not known to be those of one entry of the batch, or of all"
        return None

    def rewrite(self, m: Match) -> Replacement:
        assert isinstance(m, EmbeddingMatch)
        words, positions, segments = m.words, m.positions, m.segments
        assert words is not None
        assert words.ids is not None
        assert positions is not None
        total = m.sums[0].outputs[0]
        keeps = total.is_graph_output() or any(use.node is not m.root for use in total.uses())
        inputs = [
            as_int32(words.ids, m),
            None if segments is None or segments.ids is None else as_int32(segments.ids, m),
            words.table,
            self._table(m, positions),
            None if segments is None else segments.table,
            m.root.inputs[1],
            m.root.inputs[2],
        ]
        if positions.ids is not None:
            inputs += [None, as_int32(positions.ids, m)]
        node = m.new_node(
            "EmbedLayerNormalization",
            inputs,
            {"epsilon": m.attribute(m.root, "epsilon", 1e-5)},
            domain=_MICROSOFT,
            version=1,
            outputs=_SUM + 1 if keeps else _SUM,  # onnxruntime wants the second one, read or not
        )
        values = {m.root.outputs[0]: node.outputs[0]}
        if keeps:
            values[total] = node.outputs[_SUM]
        return Replacement((node,), values, place=m.sums[0])

    @staticmethod
    def _table(m: Match, positions: Lookup) -> ir.Value:
        """The positions' rows as a matrix."""
        shape = shape_of(positions.table, m.context)
        if shape is None or len(shape) == 2:
            return positions.table
        return m.initializer(array_of(positions.table)[0], "positions")


RULES: tuple[Rule, ...] = (FuseEmbeddings(),)
