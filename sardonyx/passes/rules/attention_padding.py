"""A bias of attention that hides the padding of a batch: the mask of the padding takes its place.

Exporters make that bias of a mask (batch, keys) of ones and zeros, by axes that are put in between, by conversions,
and by one of the forms below. Each hides a key by adding the same large negative number for all heads and queries.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import same
from sardonyx.passes.base import Context, Level, MaskFormat
from sardonyx.passes.rule import Match, Replacement, Rule
from sardonyx.passes.rules.attention_mask import repeated
from sardonyx.passes.rules.facts import in_main_graph, producer, shape_of, unsqueezed_axes
from sardonyx.passes.rules.narrow_integers import as_int32

_MASK, _BIAS = 4, 5  # inputs of MultiHeadAttention
_FLAGS = frozenset({ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64})


@dataclass(frozen=True)
class Padding:
    """A mask (batch, keys), not 0 where a key is visible, and what is added to the scores of the others."""

    mask: ir.Value
    filler: float


# For each of the four axes of the scores, its axis of a value; None for one that the value has as 1 or not at all.
Axes = tuple[int | None, ...]


def padding_of(bias: ir.Value, context: Context) -> Padding | None:
    """The padding that a bias (batch, heads, queries, keys) hides, if it does that and nothing else.

    Known forms, `m` being the mask as a number: Where(m, 0, filler), Where(not m, filler, 0), Where(1 - m, filler,
    1 - m) and (1 - m) * filler, between and behind views that put axes in between.
    """
    for inner, axes in _unviewed(bias, (0, 1, 2, 3), context):
        found = _hidden(inner, axes, context)
        if found is not None:
            return found
    return None


def _unviewed(value: ir.Value, axes: Axes, context: Context) -> Iterator[tuple[ir.Value, Axes]]:
    """A value and what it is a view of, with the axes of each."""
    while True:
        yield value, axes
        view = producer(value, "Expand", "Unsqueeze")
        if view is None or view.inputs[0] is None:
            return
        outer, inner = shape_of(value, context), shape_of(view.inputs[0], context)
        if outer is None or inner is None:
            return
        if view.op_type == "Expand":
            added = len(outer) - len(inner)
            kept = [place for place in range(added, len(outer)) if inner[place - added] != 1]
            axes = tuple(axis - added if axis in kept else None for axis in axes)
        else:
            new = unsqueezed_axes(view, len(outer), context)
            if new is None:
                return
            old = [place for place in range(len(outer)) if place not in new]
            axes = tuple(old.index(axis) if axis in old else None for axis in axes)
        value = view.inputs[0]


def _hidden(value: ir.Value, axes: Axes, context: Context) -> Padding | None:
    node = producer(value, "Where", "Mul")
    if node is None:
        return None
    if node.op_type == "Mul":
        for factor, other in (node.inputs, node.inputs[::-1]):
            mask = _complement(factor, axes, context)
            filler = repeated(other)
            if mask is not None and filler is not None and filler < 0:
                return Padding(mask, filler)
        return None
    condition, yes, no = node.inputs
    if not _same_rank(condition, value, context):
        return None
    for hidden, shown, keeps in ((no, yes, True), (yes, no, False)):
        filler = repeated(hidden)
        if filler is None or not filler < 0:
            continue
        mask = _visible(condition, axes, keeps, context)
        if mask is not None and (repeated(shown) == 0 or _complement(shown, axes, context) is mask):
            return Padding(mask, filler)
    return None


def _same_rank(one: ir.Value | None, other: ir.Value | None, context: Context) -> bool:
    a, b = shape_of(one, context), shape_of(other, context)
    return a is not None and b is not None and len(a) == len(b)


def _complement(value: ir.Value | None, axes: Axes, context: Context) -> ir.Value | None:
    """The mask m of a value 1 - m."""
    node = producer(value, "Sub")
    if node is None or repeated(node.inputs[0]) != 1 or not _same_rank(node.inputs[1], value, context):
        return None
    return _mask(node.inputs[1], axes, context)


def _visible(value: ir.Value | None, axes: Axes, keeps: bool, context: Context) -> ir.Value | None:
    """The mask behind a condition that holds where a key is visible (`keeps`) or hidden."""
    if value is None:
        return None
    for inner, inside in _unviewed(value, axes, context):
        node = producer(inner, "Not", "Cast")
        if node is None:
            continue
        if node.op_type == "Not":
            return _visible(node.inputs[0], inside, not keeps, context)
        if not keeps and (mask := _complement(node.inputs[0], inside, context)) is not None:
            return mask
        if producer(node.inputs[0], "Cast", "Not", "Unsqueeze", "Expand") is not None:
            found = _visible(node.inputs[0], inside, keeps, context)
            if found is not None:
                return found
    return _mask(value, axes, context) if keeps else None


def _mask(value: ir.Value | None, axes: Axes, context: Context) -> ir.Value | None:
    """The (batch, keys) of integers or flags whose elements a value shows, converted and with axes in between."""
    while value is not None:
        for inner, inside in _unviewed(value, axes, context):
            value, axes = inner, inside
        fact = context.inference.fact(value)
        if fact is not None and fact.rank == 2 and fact.dtype in _FLAGS and axes == (0, None, None, 1):
            return value
        cast = producer(value, "Cast")
        value = None if cast is None else cast.inputs[0]
    return None


class FusePaddingMask(Rule):
    """A bias that hides padding gives way to the mask that it is made of, `key_padding_mask`.

    The mask's elements are taken for 1 and 0, which is what padding masks consist of. For models that are saved, where
    callers look for the mask; here the bias is made once for all layers, and costs as much.
    """

    name = "AttentionMaskFusion"
    level = Level.EXTENDED
    patterns = ()

    def roots(self) -> list[tuple[str, str]]:
        return [("com.microsoft", "MultiHeadAttention")]

    def matches(self, node: ir.Node, context: Context) -> Iterator[Match]:
        if len(node.inputs) > _BIAS and node.inputs[_BIAS] is not None and node.inputs[_MASK] is None:
            yield PaddingMatch(node, context)

    def check(self, m: Match) -> str | None:
        assert isinstance(m, PaddingMatch)
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        if m.padding is None:
            return "its bias is not known to be made of a mask of the padding"
        mask, bias = shape_of(m.padding.mask, m.context), shape_of(m.root.inputs[_BIAS], m.context)
        query = shape_of(m.root.inputs[0], m.context)
        if mask is None or bias is None or query is None or not same(mask[0], query[0]):
            return "its mask is not known to have a row for each entry of the batch"
        return None if same(mask[1], bias[3]) else "its mask is not known to have an element for each key"

    def rewrite(self, m: Match) -> Replacement:
        assert isinstance(m, PaddingMatch)
        assert m.padding is not None
        inputs = list(m.root.inputs)
        inputs[_BIAS] = None
        attributes = {}
        if m.context.settings.mask_format is MaskFormat.RAW:
            inputs[_MASK] = as_int32(m.padding.mask, m)
            attributes["mask_filter_value"] = m.padding.filler
        return m.altered(inputs, attributes)


class PaddingMatch(Match):
    """MultiHeadAttention with a bias, and the padding that the bias hides."""

    def __init__(self, root: ir.Node, context: Context) -> None:
        super().__init__(root, context)
        bias = root.inputs[_BIAS]
        assert bias is not None
        self.padding = padding_of(bias, context)

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        return (self.root,)


RULES: tuple[Rule, ...] = (FusePaddingMask(),)
