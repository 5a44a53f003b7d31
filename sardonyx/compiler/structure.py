"""What operations have in common that bind alike."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import onnx_ir as ir

from sardonyx.compiler.fusion import Group
from sardonyx.kernel.canonical import canonical


def structure_of(group: Group) -> Hashable | None:
    """What groups have in common that bind alike; None for a group that is like no other.

    A pointwise loop is its expressions. A template or a view is its operator with its attributes, the inputs and
    outputs that its node has, and its epilogue.
    """
    exprs = canonical(list(group.values.values()))
    dtypes = tuple(value.dtype for value in group.operands)
    if group.anchor is None:
        return "loop", exprs, dtypes
    item = group.anchor
    node = item.node
    attributes = _plain(node.attributes)
    if attributes is None:
        return None
    given = tuple(None if value is None or value.name == "" else value.dtype for value in node.inputs)
    made = tuple(None if value.name == "" else value.dtype for value in node.outputs)
    return (
        item.role,
        type(item.operator),
        node.domain,
        node.op_type,
        node.version,
        attributes,
        given,
        made,
        group.rounded,
        exprs,
        dtypes,
    )


_PLAIN = (ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING)
_LONG = 1000  # elements: trees have their nodes in attributes, and to write them out takes long
_PLAIN_LISTS = (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS)


def _plain(attributes: Mapping[str, ir.Attr]) -> Hashable | None:
    """Attributes as something to compare; None where one is no number, text or list of them, or a long list, which
    no two nodes have alike."""
    found: list[tuple[str, str]] = []
    for name, attribute in sorted(attributes.items()):
        if attribute.type in _PLAIN_LISTS:
            if len(attribute.value) > _LONG:
                return None
            found.append((name, repr(tuple(attribute.value))))
        elif attribute.type in _PLAIN:
            found.append((name, repr(attribute.value)))
        else:
            return None
    return tuple(found)
