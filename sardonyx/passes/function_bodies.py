"""Operators that ONNX defines by others: where no kernel is theirs, the definition takes their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from sardonyx.graph.constants import graphs_of
from sardonyx.graph.functions import replace_call
from sardonyx.ops.framework.facts import Fact
from sardonyx.passes.base import Context
from sardonyx.passes.branches import inline
from sardonyx.passes.rule import stamp

NAME = "FunctionBodyExpansion"
_ALLOWZERO = 14  # the opset whose Reshape has it
_GRAPH = ir.AttributeType.GRAPH
_MODIFIERS = "sardonyx.modifiers"  # the domain of what stands for graphs while bodies are made

Array = np.ndarray[Any, Any]


def expand_function_bodies(context: Context) -> int:
    """Replace nodes whose operator asks for it by the function body of their schema; the number of them."""
    changes = 0
    while calls := list(_calls(context)):
        for node, function in calls:
            modifiers = {name: attribute.as_graph() for name, attribute in _graphs_of(node)}
            nodes = replace_call(node, function, context.model)
            nodes = [inner for one in nodes for inner in _modified(one, modifiers)]
            stamp(nodes, NAME, [node])
            for one in nodes:
                context.added(one)
        changes += len(calls)
    return changes


def _graphs_of(node: ir.Node) -> Iterator[tuple[str, ir.Attr]]:
    return ((name, attribute) for name, attribute in node.attributes.items() if attribute.type == _GRAPH)


def _modified(node: ir.Node, modifiers: Mapping[str, ir.Graph]) -> list[ir.Node]:
    """The nodes of a graph, moved to the place of the node that stands for it in a body; other nodes stay."""
    if node.domain != _MODIFIERS:
        return [node]
    graph, modifier = node.graph, modifiers[node.op_type]
    assert isinstance(graph, ir.Graph)
    for taken, given in zip(modifier.inputs, node.inputs, strict=True):
        assert given is not None
        taken.replace_all_uses_with(given, replace_graph_outputs=True)
    del modifier.inputs[:]
    moved = list(modifier)
    return moved + inline(graph, node, modifier, NAME)


def _calls(context: Context) -> Iterator[tuple[ir.Node, ir.Function]]:
    for graph in graphs_of(context.model.graph):
        for node in graph:
            if onnx.defs.has(node.op_type, node.version or 1, node.domain):
                operator = context.inference.operator(node)
                function = _body(node, context) if operator.prefers_body() else None
                if function is not None:
                    yield node, function


def _body(node: ir.Node, context: Context) -> ir.Function | None:
    """The body of a node's operator with versions on its nodes; None where there is none for these types."""
    version = node.version or 1
    schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    facts = [context.inference.fact(value) for value in node.inputs]
    if any(fact is not None and not isinstance(fact.type, ir.TensorType) for fact in facts):
        return None
    if schema.has_context_dependent_function:
        chosen = [one for one in schema.context_dependent_function_opset_versions if one <= version or node.domain]
        types = [_type(fact) for fact in facts]
        proto = _with_stand_ins(node).SerializeToString()
        text = chosen and schema.get_context_dependent_function_with_opset_version(max(chosen), proto, types)
    elif schema.has_function:
        chosen = [one for one in schema.function_opset_versions if one <= version or node.domain]
        text = chosen and schema.get_function_with_opset_version(max(chosen))
    else:
        return None
    if not text:
        return None
    body = onnx.FunctionProto.FromString(text)
    _complete(body)
    context.inference.operator(node).amend_body(body)
    _state_sizes(body)
    function: ir.Function = ir.from_proto(body)
    for name, attribute in schema.attributes.items():
        if attribute.default_value.type and name in function.attributes:
            function.attributes[name] = ir.from_proto(attribute.default_value)
    for inner in function.all_nodes():
        inner.version = function.opset_imports.get(inner.domain) or context.model.opset_imports.get(inner.domain, 1)
    return function


def _with_stand_ins(node: ir.Node) -> onnx.NodeProto:
    """A copy of the node, each graph of which is one node with the attribute's name in a domain of its own.

    ONNX puts such graphs into a body without a look at what they read outside of them, or inside of their own nodes.
    """
    proto: onnx.NodeProto = ir.to_proto(node)
    for attribute in proto.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            inputs, outputs = list(attribute.g.input), list(attribute.g.output)
            for number, value in enumerate((*inputs, *outputs)):
                value.name = f"{attribute.name}/{number}"
            stand_in = onnx.helper.make_node(
                attribute.name, [one.name for one in inputs], [one.name for one in outputs], domain=_MODIFIERS
            )
            attribute.g.CopyFrom(onnx.helper.make_graph([stand_in], attribute.name, inputs, outputs))
    return proto


def _complete(body: onnx.FunctionProto) -> None:
    """Make the outputs that a body leaves out because its call does, so that each has its place."""
    made = {name for node in body.node for name in node.output}.union(body.input)
    for name in body.output:
        if name not in made:
            body.node.append(onnx.helper.make_node("Constant", [], [name], value_float=0.0))


def _state_sizes(body: onnx.FunctionProto) -> None:
    """Let reshapes to sizes that the body computes mean these: a 0 among them would stand for the input's own size."""
    if any(opset.domain == "" and opset.version < _ALLOWZERO for opset in body.opset_import):
        return
    makers = {name: node for node in body.node for name in node.output}
    for node in body.node:
        if node.op_type == "Reshape" and _is_computed(makers.get(node.input[1]), makers):
            node.attribute.append(onnx.helper.make_attribute("allowzero", 1))


def _is_computed(shape: onnx.NodeProto | None, makers: Mapping[str, onnx.NodeProto]) -> bool:
    """Whether a shape is joined of computed numbers and constants above 0, none of which has a meaning of its own."""
    if shape is None or shape.op_type != "Concat":
        return False
    constants = (makers[name] for name in shape.input if name in makers and makers[name].op_type == "Constant")
    return all(np.all(_numbers(one) > 0) for one in constants)


def _numbers(constant: onnx.NodeProto) -> Array:
    content = onnx.helper.get_attribute_value(constant.attribute[0])
    return numpy_helper.to_array(content) if isinstance(content, onnx.TensorProto) else np.asarray(content)


def _type(fact: Fact | None) -> bytes:
    """A serialised type with what is known of the shape; empty for an absent input."""
    if fact is None or fact.dtype is None:
        return b""
    shape = None if fact.shape is None else [dim if isinstance(dim, int) else dim.value for dim in fact.shape]
    return bytes(onnx.helper.make_tensor_type_proto(int(fact.dtype), shape).SerializeToString())
