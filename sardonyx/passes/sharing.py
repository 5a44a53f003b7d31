"""Equal things are kept once: nodes that compute the same, and small constants with the same contents."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import onnx_ir as ir

from sardonyx.graph.constants import graphs_of, is_constant
from sardonyx.ops.framework.facts import Fact, known
from sardonyx.ops.framework.inference import Inference
from sardonyx.passes.base import Context, is_named

# Larger constants are weights: comparing them costs more than it saves.
_SHARED_BYTES = 256


def eliminate_common_subexpressions(context: Context) -> int:
    """Keep the first of several nodes of one graph with the same operator, attributes and inputs."""
    return sum(_share_nodes(graph, context.inference) for graph in graphs_of(context.model.graph))


def _share_nodes(graph: ir.Graph, inference: Inference) -> int:
    seen: dict[Hashable, ir.Node] = {}
    changes = 0
    for node in list(graph):
        key = _node_key(node, inference)
        if key is None:
            continue
        first = seen.setdefault(key, node)
        if first is node or any(value.is_graph_output() for value in node.outputs):
            continue
        ir.convenience.replace_all_uses_with(list(node.outputs), list(first.outputs))
        graph.remove(node, safe=True)
        changes += 1
    return changes


def share_sizes(context: Context) -> int:
    """Let all readers of equal sizes read the first value that holds them.

    Sizes are small integer tensors whose contents inference knows, be it as symbols: the batch size is the batch
    size whether it was taken from the shape of the input or of a result twelve layers on. Only the main graph's
    facts hold in every run.
    """
    seen: dict[Hashable, ir.Value] = {}
    changes = 0
    for node in list(context.model.graph):
        if len(node.outputs) != 1 or context.inference.may_differ(node):
            continue
        value = node.outputs[0]
        key = _size_key(context.inference.fact(value))
        if key is None:
            continue
        first = seen.setdefault(key, value)
        if first is not value and value.uses() and not value.is_graph_output():
            ir.convenience.replace_all_uses_with(value, first)
            changes += 1
    return changes


def _size_key(fact: Fact | None) -> Hashable | None:
    """Equal for tensors of equal sizes; None where some are not known or all are plain numbers."""
    if fact is None or fact.elements is None or fact.shape is None or not all(map(known, fact.elements)):
        return None
    if all(isinstance(dim, int) for dim in fact.elements) or not all(isinstance(dim, int) for dim in fact.shape):
        return None
    return (fact.dtype, fact.shape, fact.elements)


def _node_key(node: ir.Node, inference: Inference) -> Hashable | None:
    """Equal for nodes with equal results; None for a node that must stay."""
    if inference.may_differ(node):
        return None
    attributes = []
    for name, attribute in sorted(node.attributes.items()):
        value = _attribute_key(attribute)
        if value is None:
            return None
        attributes.append((name, value))
    wanted = tuple(is_named(value) for value in node.outputs)  # an output that is left out cannot stand for another's
    return (node.op_identifier(), node.version, tuple(map(id, node.inputs)), tuple(attributes), wanted)


def _attribute_key(attribute: ir.Attr) -> Hashable | None:
    value: Any = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        return None if value.nbytes > _SHARED_BYTES else _tensor_key(value)
    if attribute.type in (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS):
        return (attribute.type, tuple(value))
    if attribute.type in (ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING):
        # -0.0 equals 0.0 and NaN does not equal itself: floats are compared as they are written.
        return (attribute.type, repr(value))
    return None


def share_constants(context: Context) -> int:
    """Merge small equal constants of the main graph, so that nodes which read them compare equal."""
    seen: dict[Hashable, ir.Value] = {}
    changes = 0
    graph = context.model.graph
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or not is_constant(value) or value.is_graph_output() or tensor.nbytes > _SHARED_BYTES:
            continue
        first = seen.setdefault(_tensor_key(tensor), value)
        if first is not value:
            ir.convenience.replace_all_uses_with(value, first)
            del graph.initializers[name]
            changes += 1
    return changes


def share_repeated(context: Context) -> int:
    """Keep once what fusions have written for every layer: constants, sizes, and the nodes that read them.

    Equal sizes make nodes equal that read them, such as the masks of layers with pasts of one length.
    """
    return share_constants(context) + share_sizes(context) + eliminate_common_subexpressions(context)


def _tensor_key(tensor: ir.TensorProtocol) -> Hashable:
    shape = tuple(tensor.shape)
    if tensor.dtype == ir.DataType.STRING:
        return (tensor.dtype, shape, tuple(tensor.numpy().ravel().tolist()))
    return (tensor.dtype, shape, tensor.tobytes())
