"""ONNX models of one EPContext node that carries an engine of this package: writing them, and reading them without
protobuf, which would copy the engine.

The fields are those of onnx.proto and of the operator com.microsoft.EPContext. Only models whose single node says that
it comes from here are read; whatever else is left to the ordinary way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sardonyx.light_dataclass import dataclass

SOURCE = "Sardonyx"
OPERATOR, DOMAIN = "EPContext", "com.microsoft"

_GRAPH, _NODE = 7, 1  # of a model, of a graph
_OPERATOR, _ATTRIBUTE, _DOMAIN = 4, 5, 7  # of a node
_NAME, _INTEGER, _TEXT = 1, 3, 4  # of an attribute
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_TEXT = 4096


@dataclass(frozen=True)
class Context:
    """What a node carries: the place and size of an engine in the model's bytes, or the name of its file."""

    embedded: tuple[int, int] | None
    file: str = ""


def context_in(data: memoryview) -> Context | None:
    """What the only node of a serialised model carries; None for other models, and for what is no model."""
    try:
        return _context(data)
    except (IndexError, ValueError):
        return None


class _Field(NamedTuple):
    number: int
    value: int  # of a number; of bytes, where they begin
    size: int  # of bytes


def _context(data: memoryview) -> Context | None:
    graph = _last(data, 0, len(data), _GRAPH)
    if graph is None:
        return None
    nodes = []
    for field in _fields(data, graph.value, graph.value + graph.size):
        if field.number == _NODE:
            nodes.append(field)
            if len(nodes) > 1:
                return None
    if len(nodes) != 1:
        return None
    (node,) = nodes
    texts: dict[int, str] = {}
    values: dict[str, dict[int, _Field]] = {}
    for field in _fields(data, node.value, node.value + node.size):
        if field.number in (_OPERATOR, _DOMAIN):
            texts[field.number] = _text(data, field)
        elif field.number == _ATTRIBUTE:
            parts = {part.number: part for part in _fields(data, field.value, field.value + field.size)}
            if _NAME in parts:
                values[_text(data, parts[_NAME])] = parts
    if texts != {_OPERATOR: OPERATOR, _DOMAIN: DOMAIN}:
        return None
    source, carried = values.get("source", {}).get(_TEXT), values.get("ep_cache_context", {}).get(_TEXT)
    if source is None or carried is None or _text(data, source) != SOURCE:
        return None
    mode = values.get("embed_mode", {}).get(_INTEGER)
    if mode is None or mode.value == 1:
        return Context((carried.value, carried.size))
    return Context(None, _text(data, carried))


def _last(data: memoryview, start: int, end: int, number: int) -> _Field | None:
    found = None
    for field in _fields(data, start, end):
        if field.number == number:
            found = field
    return found


def _text(data: memoryview, field: _Field) -> str:
    if field.size > _LONGEST_TEXT:
        raise ValueError("a text of no name")
    return bytes(data[field.value : field.value + field.size]).decode()


def _fields(data: memoryview, start: int, end: int) -> Iterator[_Field]:
    """The fields of a message; ValueError or IndexError where it is none."""
    from sardonyx.graph.wire_format import SHORT, varint  # which few engines need

    while start < end:
        tag, start = varint(data, start, SHORT)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, start = varint(data, start)
            yield _Field(number, value, 0)
        elif wire == _BYTES:
            size, start = varint(data, start, SHORT)
            if size > end - start:
                raise ValueError("a field is longer than its message")
            yield _Field(number, start, size)
            start += size
        elif wire in (_FIXED64, _FIXED32):
            start += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError("a group")
    if start != end:
        raise ValueError("a field is longer than its message")
