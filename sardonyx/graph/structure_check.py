"""Checks the form of a model before anything is built from it: names, scopes, order, types.

It works on the protobuf message, because there every name is still as it was written. Each problem is the typed
error, with the text, that onnxruntime gives for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

import onnx

from sardonyx import errors
from sardonyx.graph.value_types import check_type
from sardonyx.light_dataclass import dataclass

_REFERENCE_ONLY = onnx.AttributeProto.UNDEFINED


@dataclass
class Scope:
    """The names of one graph: those that exist at all, and those defined up to the node being looked at."""

    every: set[str]
    defined: set[str]
    in_function: bool


@dataclass
class Structure:
    """What the check learnt about a model."""

    unsorted: bool = False  # some node reads what a later one writes
    functions: set[tuple[str, str, str]] = field(default_factory=set)


def check_structure(model: onnx.ModelProto) -> Structure:
    """Check a model and its functions; the first problem is raised.

    The default domain's other name, ``ai.onnx``, is replaced by the empty one on the way.
    """
    found = Structure()
    for function in model.functions:
        _check_readable((function.domain, function.name, function.overload, *function.attribute))
        if function.domain == "ai.onnx":
            function.domain = ""
        key = (function.domain, function.name, function.overload)
        if key in found.functions:
            raise errors.Fail(f"Duplicate model-local function identifier: {function.domain}:{function.name}")
        found.functions.add(key)
        _check_function(function, found)
    _check_graph(model.graph, [], found, in_function=False)
    return found


def _check_function(function: onnx.FunctionProto, found: Structure) -> None:
    names = _distinct(function.input)
    scope = Scope(names | _outputs(function.node, names), set(names), in_function=True)
    _check_nodes(function.node, [scope], found)
    for name in function.output:
        if name not in scope.defined:
            raise errors.InvalidArgument(
                f"Failed to load model with error: the output '{name}' of the function "
                f"{function.domain}:{function.name} is not computed in it"
            )
    for info in function.value_info:
        check_type(info)


def _check_graph(graph: onnx.GraphProto, outer: Sequence[Scope], found: Structure, in_function: bool) -> None:
    inputs = _distinct(info.name for info in graph.input)
    _check_types(graph, is_main=not outer)
    names = inputs | {tensor.name for tensor in graph.initializer}
    names.update(sparse.values.name for sparse in graph.sparse_initializer)
    names.discard("")
    scope = Scope(names | _outputs(graph.node, names), set(names), in_function)
    _check_nodes(graph.node, [*outer, scope], found)
    for info in graph.output:
        if info.name in scope.every:
            continue
        if any(info.name in other.every for other in outer):
            raise errors.Fail(
                f"This is an invalid model. Subgraph output ({info.name}) is an outer scope value being returned "
                "directly. Please update the model to add an Identity node between the outer scope value and the "
                "subgraph output."
            )
        raise errors.Fail(f"This is an invalid model. Graph output ({info.name}) does not exist in the graph.")


def _check_types(graph: onnx.GraphProto, is_main: bool) -> None:
    for info in graph.input:
        check_type(info)
        if is_main and not info.name:
            raise errors.InvalidArgument("Invalid model. An input of the graph has no name.")
        if is_main and info.type.WhichOneof("value") is None:
            raise errors.Fail(f"This is an invalid model. Model input ({info.name}) does not have type information.")
    for infos in (graph.output, graph.value_info):
        for info in infos:
            check_type(info)


def _check_nodes(nodes: Iterable[onnx.NodeProto], scopes: Sequence[Scope], found: Structure) -> None:
    own = scopes[-1]
    texts: set[str | bytes] = set()
    for node in nodes:
        texts.update((node.op_type, node.domain, node.name))
        if node.domain == "ai.onnx":
            node.domain = ""
        if not node.op_type:
            raise errors.InvalidGraph(_in_node(node, "Field 'op_type' of 'node' is required to be non-empty."))
        for name in node.input:
            if name and name not in own.defined:
                _check_reference(node, name, scopes, found)
        if node.attribute:
            _check_attributes(node, scopes, found)
        own.defined.update(node.output)
    _check_readable(texts)
    _check_readable(own.every)


def _check_reference(node: onnx.NodeProto, name: str, scopes: Sequence[Scope], found: Structure) -> None:
    """Whether a name that its own graph has not defined yet comes from anywhere."""
    if name in scopes[-1].every:
        if len(scopes) == 1:
            found.unsorted = True
            return
    else:
        for scope in reversed(scopes[:-1]):
            if name in scope.every:
                found.unsorted = found.unsorted or name not in scope.defined
                return
        if len(scopes) == 1:
            raise errors.InvalidArgument(
                f"Invalid model. Node input '{name}' is not a graph input, initializer, or output of a previous node."
            )
    raise errors.InvalidGraph(
        _in_node(
            node,
            f"Nodes in a graph must be topologically sorted, however input '{name}' of node: is not output "
            "of any previous nodes.",
        )
    )


def _check_attributes(node: onnx.NodeProto, scopes: Sequence[Scope], found: Structure) -> None:
    names = set()
    for attribute in node.attribute:
        name = attribute.name
        if name in names:
            raise errors.InvalidGraph(_in_node(node, f"Attribute '{name}' appeared multiple times."))
        names.add(name)
        _check_readable((name, attribute.ref_attr_name))
        if attribute.ref_attr_name:
            if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                raise errors.Fail(
                    _in_node(node, f"Attribute '{name}': functions with graphs as parameters are not supported.")
                )
            if not scopes[-1].in_function:
                raise errors.InvalidGraph(
                    _in_node(node, f"Attribute '{name}' refers to '{attribute.ref_attr_name}', outside of a function.")
                )
        elif attribute.type == _REFERENCE_ONLY:
            raise errors.InvalidGraph(_in_node(node, f"type field and data field mismatch in attribute {name}."))
        elif attribute.type == onnx.AttributeProto.GRAPH:
            _check_graph(attribute.g, scopes, found, scopes[-1].in_function)
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            for graph in attribute.graphs:
                _check_graph(graph, scopes, found, scopes[-1].in_function)
        elif attribute.type == onnx.AttributeProto.TYPE_PROTO:
            check_type(attribute.tp)
        elif attribute.type == onnx.AttributeProto.TYPE_PROTOS:
            for kind in attribute.type_protos:
                check_type(kind)
        elif attribute.type == onnx.AttributeProto.STRINGS:
            for text in set(attribute.strings):
                _check_text(node, name, text)


def _check_text(node: onnx.NodeProto, name: str, text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError:
        raise errors.InvalidGraph(_in_node(node, f"Attribute '{name}' holds a string that is not UTF-8.")) from None


def _check_readable(names: Iterable[str | bytes]) -> None:
    """Protobuf gives strings that are not UTF-8 as bytes."""
    if bytes in set(map(type, names)):
        bad = next(name for name in names if isinstance(name, bytes))
        raise errors.InvalidArgument(f"Invalid model. The name {bad!r} is not UTF-8.")


def _distinct(names: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for name in names:
        if name and name in found:
            raise errors.Fail(f"This is an invalid model. Error: Duplicate definition-site for ({name}).")
        found.add(name)
    return found


def _outputs(nodes: Iterable[onnx.NodeProto], taken: set[str]) -> set[str]:
    """Names that nodes define, each once and none that inputs or initializers have."""
    names: set[str] = set()
    for node in nodes:
        for name in node.output:
            if name in names or name in taken:
                if name:
                    raise errors.Fail(f"This is an invalid model. Error: Duplicate definition of name ({name}).")
            else:
                names.add(name)
    names.discard("")
    return names


def _in_node(node: onnx.NodeProto, problem: str) -> str:
    return (
        f'This is an invalid model. In Node, ("{node.name}", {node.op_type}, "{node.domain}", -1) : '
        f"({', '.join(map(str, node.input))}) -> ({', '.join(map(str, node.output))}) , Error {problem}"
    )
