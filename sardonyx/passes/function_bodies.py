"""Operators that ONNX defines by others: where no kernel is theirs, the definition takes their place."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from sardonyx.graph.constants import graphs_of
from sardonyx.graph.functions import replace_call
from sardonyx.ops.framework.facts import Fact
from sardonyx.passes.base import Context
from sardonyx.passes.rule import stamp

NAME = "FunctionBodyExpansion"


def expand_function_bodies(context: Context) -> int:
    """Replace nodes whose operator asks for it by the function body of their schema; the number of them."""
    changes = 0
    while calls := list(_calls(context)):
        for node, function in calls:
            nodes = replace_call(node, function, context.model)
            stamp(nodes, NAME, [node])
            for one in nodes:
                context.added(one)
        changes += len(calls)
    return changes


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
        proto = ir.to_proto(node).SerializeToString()
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
    function: ir.Function = ir.from_proto(body)
    for name, attribute in schema.attributes.items():
        if attribute.default_value.type and name in function.attributes:
            function.attributes[name] = ir.from_proto(attribute.default_value)
    for inner in function.all_nodes():
        inner.version = function.opset_imports.get(inner.domain) or context.model.opset_imports.get(inner.domain, 1)
    return function


def _complete(body: onnx.FunctionProto) -> None:
    """Make the outputs that a body leaves out because its call does, so that each has its place."""
    made = {name for node in body.node for name in node.output}.union(body.input)
    for name in body.output:
        if name not in made:
            body.node.append(onnx.helper.make_node("Constant", [], [name], value_float=0.0))


def _type(fact: Fact | None) -> bytes:
    """A serialised type with what is known of the shape; empty for an absent input."""
    if fact is None or fact.dtype is None:
        return b""
    shape = None if fact.shape is None else [dim if isinstance(dim, int) else dim.value for dim in fact.shape]
    return bytes(onnx.helper.make_tensor_type_proto(int(fact.dtype), shape).SerializeToString())
