"""Activations that are quantised to signed bytes as unsigned ones: integers and zero point are 128 higher.

The numbers that they stand for are the same. Machines multiply unsigned by signed bytes, and weights are the signed
ones: signed activations would be shifted before each product.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import Array, array_of, is_constant, nodes_of
from sardonyx.passes.base import Context, Level, Pass
from sardonyx.passes.rule import Match

NAME = "QDQS8ToU8Transformer"

# Operators that read a constant beside an activation, as bytes of the same kind.
_BESIDE = frozenset({"Add", "Mul"})


def shift_signed_activations(context: Context) -> int:
    """Make signed bytes between QuantizeLinear and DequantizeLinear unsigned, and constants beside them."""
    changes = 0
    for node in list(nodes_of(context.model.graph)):
        if node.domain not in ("", "com.microsoft"):
            continue
        if node.op_type == "QuantizeLinear":
            changes += _shift_activation(context, node)
        elif node.op_type == "DequantizeLinear":
            changes += _shift_constant(context, node)
    return changes


def _shift_activation(context: Context, node: ir.Node) -> bool:
    integers = node.outputs[0]
    readers = [user for user, _ in integers.uses()]
    if integers.is_graph_output() or not readers or not all(map(_is_dequantization, readers)):
        return False
    if not all(_zero(one) is not None for one in (node, *readers)):
        return False
    for one in (node, *readers):
        _shift_zero(context, one)
    facts = context.inference.facts
    known = facts[integers]
    integers.type = ir.TensorType(ir.DataType.UINT8)
    facts[integers] = type(known)(integers.type, known.shape)
    return True


def _shift_constant(context: Context, node: ir.Node) -> bool:
    """Shift the integers of a constant that is read beside activations, if they have one scale."""
    integers, real = node.inputs[0], node.outputs[0]
    if integers is None or not is_constant(integers) or _zero(node) is None or real.is_graph_output():
        return False
    if not all(user.op_type in _BESIDE and _has_shifted(user, real) for user, _ in real.uses()):
        return False
    node.replace_input_with(0, Match(node, context).initializer(_shifted(array_of(integers)), "shifted"))
    _shift_zero(context, node)
    return True


def _has_shifted(node: ir.Node, real: ir.Value) -> bool:
    """Whether a node reads unsigned bytes beside a value."""
    others = [value.producer() for value in node.inputs if value is not None and value is not real]
    found = [one.inputs[0] for one in others if one is not None and one.op_type == "DequantizeLinear"]
    return bool(found) and all(value is not None and value.dtype == ir.DataType.UINT8 for value in found)


def _is_dequantization(node: ir.Node) -> bool:
    return node.op_type == "DequantizeLinear"


def _zero(node: ir.Node) -> Array | None:
    """The zero point of signed bytes with one scale, where it is known."""
    values = [*node.inputs, None, None][1:3]
    if not all(value is not None and is_constant(value) for value in values):
        return None
    scale, zero = (array_of(value) for value in values if value is not None)
    return zero if zero.dtype == np.int8 and zero.size == scale.size == 1 else None


def _shift_zero(context: Context, node: ir.Node) -> None:
    zero = _zero(node)
    assert zero is not None
    node.replace_input_with(2, Match(node, context).initializer(_shifted(zero), "zero"))


def _shifted(numbers: Array) -> Array:
    """Signed bytes plus 128."""
    return np.asarray(numbers.astype(np.uint8) ^ np.uint8(128))


PASSES = (Pass(NAME, Level.EXTENDED, shift_signed_activations),)
