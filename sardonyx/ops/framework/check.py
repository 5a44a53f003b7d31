"""Checks every node of a model against its operator's schema, with the errors that onnxruntime gives."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from sardonyx import errors
from sardonyx.graph.constants import nodes_of
from sardonyx.graph.types import MapType, type_name
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.schema import ONNX_DOMAINS, Parameter, Schema, schema_of, suggestion

# Deprecated forms that onnxruntime runs all the same: GroupNormalization of opset 18.
_STILL_RUN = frozenset({"GroupNormalization"})


def check_model(model: ir.Model) -> None:
    """Check the nodes of all graphs of a model; the first problem is raised."""
    for node in nodes_of(model.graph):
        check_node(node)


def check_node(node: ir.Node) -> Schema:
    """Check one node, whose version is set, and return its schema.

    `errors.InvalidGraph` for an operator that its domain does not have, a deprecated one, wrong arity or attributes;
    `errors.Fail` for an operator of a domain that ONNX does not define.
    """
    version = 1 if node.version is None else node.version
    schema = schema_of(node.domain, node.op_type, version)
    if schema is None:
        hint = suggestion(node.domain, node.op_type)
        if node.domain in ONNX_DOMAINS:
            raise _invalid(node, f"No Op registered for {node.op_type} with domain_version of {version}.{hint}")
        raise errors.Fail(f"Fatal error: {node.domain}:{node.op_type}(-1) is not a registered function/op.{hint}")
    if schema.deprecated and node.op_type not in _STILL_RUN:
        raise _invalid(node, f"Op registered for {node.op_type} is deprecated in domain_version of {version}")
    _check_arity(node, schema)
    _check_attributes(node, schema)
    return schema


def _check_arity(node: ir.Node, schema: Schema) -> None:
    sides = (
        ("input", [value is not None and value.name != "" for value in node.inputs], schema.inputs, schema.input_range),
        ("output", [value.name != "" for value in node.outputs], schema.outputs, schema.output_range),
    )
    for side, given, formal, (least, most) in sides:
        if not least <= len(given) <= most:
            shown = most if most < 2**31 - 1 else "unlimited"
            raise _invalid(
                node,
                f"Node({node.name or ''}) with schema({schema.domain}::{schema.name}:{schema.since}) has {side} size "
                f"{len(given)} not in range [min={least}, max={shown}].",
            )
        for index, present in enumerate(given):
            kind = formal[min(index, len(formal) - 1)].kind if formal else "optional"
            is_one_of_many = kind == "variadic" and side == "input" and node.domain in ONNX_DOMAINS
            if not present and (kind == "single" or is_one_of_many):
                raise _invalid(
                    node,
                    f"Node ({node.name or ''})'s {side} {index} is marked {kind} but has an empty string in the graph",
                )


def _check_attributes(node: ir.Node, schema: Schema) -> None:
    for name, attribute in node.attributes.items():
        rule = schema.attributes.get(name)
        if rule is None:
            if not name.startswith("__"):  # ONNX lets such attributes pass
                raise _invalid(node, f"Unrecognized attribute: {name} for operator {node.op_type}")
        elif rule.type is not None and attribute.type != rule.type:
            raise _invalid(
                node,
                f"Mismatched attribute type in '{node.name or ''} : {name}'. Expected: '{rule.type.name}', "
                f"actual: '{attribute.type.name}'",
            )
    for name, rule in schema.attributes.items():
        if rule.required and name not in node.attributes:
            raise _invalid(node, f"Required attribute '{name}' is missing.")


def check_types(node: ir.Node, inputs: Sequence[Fact | None]) -> None:
    """Check the known types of a node's inputs against its schema.

    `errors.InvalidGraph` for a type that a parameter does not take, `errors.Fail` where inputs of one type parameter
    have different types.
    """
    if node.version is None:
        return
    schema = schema_of(node.domain, node.op_type, node.version)
    if schema is None or not schema.inputs:
        return
    bound: dict[str, str] = {}
    for index, fact in enumerate(inputs):
        if fact is None or fact.type is None:
            continue
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        if not formal.types or _holds_map(fact.type):
            continue
        name = type_name(fact.type)
        if name not in formal.types:
            raise invalid_type(node, index, name)
        if _binds(formal) and bound.setdefault(formal.label, name) != name:
            raise errors.Fail(
                f"Type Error: Type parameter ({formal.label}) of Optype ({node.op_type}) bound to different types "
                f"({bound[formal.label]} and {name} in node ({node.name or ''})."
            )


def invalid_type(node: ir.Node, index: int, name: str) -> errors.InvalidGraph:
    """The error of an input whose type, `name`, an operator does not take."""
    return errors.InvalidGraph(
        f"This is an invalid model. Type Error: Type '{name}' of input parameter "
        f"({_name_of(node, index)}) of operator ({node.op_type}) in node ({node.name or ''}) is invalid."
    )


def check_output_type(node: ir.Node, value: ir.Value, declared: Fact, inferred: Fact) -> None:
    """Check the type that a model declares for an output against the inferred one; `errors.Fail` where they differ."""
    if declared.type is None or inferred.type is None or declared.type == inferred.type:
        return
    ours, theirs = type_name(inferred.type), type_name(declared.type)
    if ours != theirs:
        raise errors.Fail(
            f"Type Error: Type ({theirs}) of output arg ({value.name}) of node ({node.name or ''}) does not match "
            f"expected type ({ours})."
        )


def _binds(formal: Parameter) -> bool:
    return formal.label != "" and (formal.kind != "variadic" or formal.homogeneous)


def _holds_map(kind: object) -> bool:
    """ONNX writes map types in a form of its own; operators that take maps check them themselves."""
    if type(kind) is ir.TensorType:
        return False
    while isinstance(kind, ir.SequenceType | ir.OptionalType):
        kind = kind.elem_type
    return isinstance(kind, MapType)


def _name_of(node: ir.Node, index: int) -> str:
    value = node.inputs[index]
    return "" if value is None else value.name or ""


def describe_call(node: ir.Node) -> str:
    """A node with its values and their types, as onnxruntime shows it in messages."""

    def shown(values: Sequence[ir.Value | None]) -> str:
        parts = []
        for value in values:
            name = "" if value is None else value.name or ""
            known = value is not None and value.type is not None
            parts.append(f'"{name}": {type_name(value.type)},' if value is not None and known else f'"{name}",')
        return f"({''.join(parts)})"

    return f'("{node.name or ""}", {node.op_type}, "{node.domain}", -1) : {shown(node.inputs)} -> {shown(node.outputs)}'


def _invalid(node: ir.Node, problem: str) -> errors.InvalidGraph:
    return errors.InvalidGraph(f"This is an invalid model. In Node, {describe_call(node)} , Error {problem}")
