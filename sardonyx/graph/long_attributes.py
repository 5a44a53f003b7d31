"""Attributes of many numbers or strings, such as the nodes of tree ensembles: read as one piece.

onnx-ir converts and checks them one by one, although protobuf has given them the right type already.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx
import onnx_ir as ir

# Fewer items than this may be converted one by one.
_LONG = 256


class LongAttribute(ir.Attr):
    """An attribute of integers, floats or strings that need no conversion."""

    __slots__ = ("_items",)

    def __init__(self, proto: onnx.AttributeProto, items: tuple[Any, ...]) -> None:
        super().__init__(proto.name, ir.AttributeType(proto.type), (), doc_string=proto.doc_string or None)
        self._items = items

    @property
    def value(self) -> tuple[Any, ...]:
        return self._items


def set_aside(graph: onnx.GraphProto) -> dict[int, list[LongAttribute]]:
    """The long attributes of a graph's nodes, by the number of the node; they are left empty in the message."""
    found: dict[int, list[LongAttribute]] = {}
    for index, node in enumerate(graph.node):
        for attribute in node.attribute:
            items = getattr(attribute, _FIELDS.get(attribute.type, "ints"))
            if len(items) >= _LONG and not attribute.ref_attr_name:
                found.setdefault(index, []).append(LongAttribute(attribute, _items(attribute.type, items)))
                del items[:]
    return found


_FIELDS = {onnx.AttributeProto.FLOATS: "floats", onnx.AttributeProto.STRINGS: "strings"}


def _items(kind: int, items: Iterable[Any]) -> tuple[Any, ...]:
    """The values of an attribute; of strings, which must be UTF-8, there are often but a few."""
    if kind != onnx.AttributeProto.STRINGS:
        return tuple(items)
    texts = tuple(items)
    decoded = {text: text.decode() for text in set(texts)}
    return tuple(map(decoded.__getitem__, texts))


def put_back(found: dict[int, list[LongAttribute]], graph: ir.Graph) -> None:
    """Give the attributes to the nodes of the graph that was made from the message."""
    if found:
        nodes = list(graph)
        for index, attributes in found.items():
            for attribute in attributes:
                nodes[index].attributes[attribute.name] = attribute
