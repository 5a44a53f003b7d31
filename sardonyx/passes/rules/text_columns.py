"""Columns of strings, each with a table of its own: all are looked up at once, and the rest is done with numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from sardonyx.graph.constants import array_of, is_constant
from sardonyx.passes.base import Context, Level
from sardonyx.passes.rule import Match, Replacement, Rule
from sardonyx.passes.rules.text_categories import numbered

DOMAIN = "ai.onnx.ml"
_PICKERS = {("", "Gather"), (DOMAIN, "ArrayFeatureExtractor")}
# The attributes with the strings that encoders know, and those with numbers in their place.
_KEYS = {
    (DOMAIN, "LabelEncoder"): ("keys_strings", "keys_int64s"),
    (DOMAIN, "OneHotEncoder"): ("cats_strings", "cats_int64s"),
}


class ColumnsMatch(Match):
    """Encoders of strings that are picked from one value; the first one is the root."""

    def __init__(self, root: ir.Node, context: Context, source: ir.Value, encoders: Sequence[ir.Node]) -> None:
        super().__init__(root, context)
        self.source = source
        self.encoders = encoders

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        return tuple(self.encoders)

    @property
    def shared_nodes(self) -> Sequence[ir.Node]:
        """Whoever reads a result reads that of the encoder of numbers."""
        return self.encoders


def _kind(node: ir.Node | None) -> tuple[str, str]:
    return ("", "") if node is None else (node.domain, node.op_type)


def _places(picker: ir.Node) -> ir.Value | None:
    """What a node picks by, where that is a constant of the graph."""
    places = picker.inputs[1] if len(picker.inputs) == 2 else None
    return places if places is not None and places.producer() is None and is_constant(places) else None


def _keys(encoder: ir.Node) -> list[str] | None:
    """The strings that an encoder gives numbers for; None where it does another thing."""
    if _kind(encoder) not in _KEYS:
        return None
    given, (texts, numbers) = encoder.attributes, _KEYS[_kind(encoder)]
    values = given.get("values_tensor")
    gives_texts = "values_strings" in given or (values is not None and values.as_tensor().dtype == ir.DataType.STRING)
    if gives_texts or texts not in given or numbers in given or "keys_tensor" in given:
        return None
    return list(given[texts].as_strings())


def _in_last(picker: ir.Node, rank: int) -> bool:
    axis = picker.attributes.get("axis")
    return picker.domain == DOMAIN or (axis is not None and axis.as_int() in (-1, rank - 1))


class NumberColumns(Rule):
    """Encoders of columns of one matrix of strings encode numbers, which one LabelEncoder gives for all columns.

    It is the only step that needs Python objects then.
    """

    name = "NumberColumns"
    level = Level.EXTENDED

    def roots(self) -> Iterable[tuple[str, str]]:
        return _KEYS

    def matches(self, node: ir.Node, context: Context) -> Iterator[Match]:
        picker = None if node.inputs[0] is None else node.inputs[0].producer()
        if picker is None or _kind(picker) not in _PICKERS or picker.inputs[0] is None:
            return
        source = picker.inputs[0]
        known = context.inference.facts.get(source)
        if known is None or known.dtype != ir.DataType.STRING or not known.shape:
            return
        encoders, picked = [], 0
        for one, place in source.uses():
            if (
                place
                or _kind(one) not in _PICKERS
                or one.graph is not node.graph
                or not _in_last(one, len(known.shape))
            ):
                continue
            places = _places(one)
            readers = [use.node for use in one.outputs[0].uses()]
            found = [reader for reader in readers if reader.graph is node.graph and _keys(reader) is not None]
            if places is not None and found:
                encoders += found
                picked += math.prod(array_of(places).shape)
        columns = known.shape[-1]
        if node in encoders and len(encoders) > 1 and isinstance(columns, int) and 2 * picked >= columns:
            yield ColumnsMatch(node, context, source, encoders)

    def rewrite(self, m: Match) -> Replacement:
        assert isinstance(m, ColumnsMatch)
        keys = [_keys(encoder) or [] for encoder in m.encoders]
        numbers = {name: place for place, name in enumerate(dict.fromkeys(name for some in keys for name in some))}
        joint = numbered(m, m.source, list(numbers))
        joint.name = f"{m.root.name}_of_all_columns"
        joint.outputs[0].name = f"{m.root.outputs[0].name}_of_all_columns"
        nodes, values = [joint], {}
        for encoder, some in zip(m.encoders, keys, strict=True):
            picker = encoder.inputs[0].producer()  # type: ignore[union-attr]
            assert picker is not None
            column = _copy(picker, [joint.outputs[0], picker.inputs[1]])
            column.outputs[0].name = f"{encoder.outputs[0].name}_number"
            texts, replaced = _KEYS[_kind(encoder)]
            result = _copy(encoder, column.outputs, without=texts)
            result.attributes.add(ir.AttrInt64s(replaced, [numbers[name] for name in some]))
            nodes += [column, result]
            values[encoder.outputs[0]] = result.outputs[0]
        graph, covered = m.root.graph, set(m.encoders)
        assert isinstance(graph, ir.Graph)
        return Replacement(nodes, values, place=next(node for node in graph if node in covered))


def _copy(node: ir.Node, inputs: Sequence[ir.Value | None], without: str = "") -> ir.Node:
    """The same node with other inputs, and without one of its attributes."""
    kept = [attribute for name, attribute in node.attributes.items() if name != without]
    return ir.Node(node.domain, node.op_type, inputs, kept, version=node.version, name=node.name)


RULES = (NumberColumns(),)
