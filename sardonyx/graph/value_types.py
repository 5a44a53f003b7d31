"""Declared types: checked, and maps carried past onnx-ir, which has no class for them.

A map type in the protobuf message is exchanged for a tensor type whose denotation is a mark; afterwards every value
and attribute with a mark gets its `MapType`. When a model is saved, the way is the opposite.
"""

from __future__ import annotations

import os
from typing import Any

import onnx
import onnx_ir as ir

from sardonyx import errors
from sardonyx.graph.constants import nodes_of
from sardonyx.graph.types import MapType

_KINDS = frozenset(int(kind) for kind in ir.DataType)
_MARK = f"sardonyx.map.{os.urandom(16).hex()}."  # no model can contain it


def check_type(holder: onnx.ValueInfoProto | onnx.TypeProto) -> None:
    """Check the type of a value, and bring it into the form that onnx-ir reads.

    Negative sizes become unknown ones; a tensor type without element type becomes no type at all, except in the
    inside of another type. `errors.InvalidArgument` for what is no type.
    """
    kind = holder.type if isinstance(holder, onnx.ValueInfoProto) else holder
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        tensor = kind.tensor_type
        if tensor.elem_type not in _KINDS or (tensor.HasField("elem_type") and tensor.elem_type == 0):
            raise errors.InvalidArgument(
                f"Failed to load model with error: Invalid tensor data type {tensor.elem_type}.{_of(holder)}"
            )
        if tensor.elem_type == 0:
            kind.Clear()
        elif tensor.HasField("shape"):
            _check_shape(tensor.shape)
    elif which is not None:
        _check_nested(kind, holder)


def _check_nested(kind: onnx.TypeProto, holder: Any) -> None:
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(kind, which)
        if tensor.elem_type not in _KINDS or tensor.elem_type == 0:
            raise errors.InvalidArgument(
                f"Failed to load model with error: Invalid tensor data type {tensor.elem_type}.{_of(holder)}"
            )
        _check_shape(tensor.shape)
    elif which in ("sequence_type", "optional_type"):
        _check_nested(getattr(kind, which).elem_type, holder)
    elif which == "map_type":
        if kind.map_type.key_type not in _KINDS or kind.map_type.key_type == 0:
            raise errors.InvalidArgument(
                f"Failed to load model with error: Invalid map key type {kind.map_type.key_type}.{_of(holder)}"
            )
        _check_nested(kind.map_type.value_type, holder)
        _mark(kind)
    else:
        raise errors.InvalidArgument(
            f"Failed to load model with error: a type without element type or of an unsupported kind.{_of(holder)}"
        )


def _check_shape(shape: onnx.TensorShapeProto) -> None:
    for dim in shape.dim:
        if dim.dim_value < 0:
            dim.ClearField("dim_value")


def _of(holder: Any) -> str:
    return f" (value '{holder.name}')" if isinstance(holder, onnx.ValueInfoProto) else ""


def _mark(kind: onnx.TypeProto) -> None:
    """Exchange a map type, whose value type is checked, for a tensor type with a mark that describes it."""
    encoded = kind.SerializeToString().hex()
    kind.Clear()
    kind.tensor_type.elem_type = onnx.TensorProto.FLOAT
    kind.denotation = _MARK + encoded


def restore_maps(model: ir.Model) -> None:
    """Give every value and attribute whose type bears a mark its map type."""
    for root in (model.graph, *(function.graph for function in model.functions.values())):
        for value in root.inputs:
            _restore(value)
        for node in nodes_of(root):
            for value in node.outputs:
                _restore(value)
            for name, attribute in node.attributes.items():
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.GRAPH:
                    for value in attribute.as_graph().inputs:
                        _restore(value)
                elif attribute.type == ir.AttributeType.TYPE_PROTO and _is_marked(attribute.value.type):
                    kind = ir.TypeAndShape(_restored(attribute.value.type), None)
                    node.attributes[name] = ir.AttrTypeProto(name, kind)


def _restore(value: ir.Value) -> None:
    if value.type is not None and _is_marked(value.type):
        value.type = _restored(value.type)
        value.shape = None


def _is_marked(kind: Any) -> bool:
    while kind is not None and not isinstance(kind, ir.TensorType):
        kind = getattr(kind, "elem_type", None) if not isinstance(kind, ir.DataType) else None
    mark = None if kind is None else kind.denotation
    return isinstance(mark, str) and mark.startswith(_MARK)  # text that is not UTF-8 comes as bytes


def _restored(kind: Any) -> Any:
    """The type with map types in place of marks; the same object where there is none."""
    if not _is_marked(kind):
        return kind
    if isinstance(kind, ir.SequenceType):
        return ir.SequenceType(_restored(kind.elem_type))
    if isinstance(kind, ir.OptionalType):
        return ir.OptionalType(_restored(kind.elem_type))
    proto = onnx.TypeProto.FromString(bytes.fromhex(kind.denotation.removeprefix(_MARK)))
    inner = ir.serde.deserialize_type_proto_for_type(proto.map_type.value_type)
    return MapType(ir.DataType(proto.map_type.key_type), _restored(inner))
