"""From a model in memory to a valid ONNX file, its weights inside or beside it."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx import errors
from sardonyx.graph.sparse_constants import DOMAIN, write_constants
from sardonyx.graph.types import MapType
from sardonyx.graph.wire_format import varint_bytes
from sardonyx.runtime.files.opening import replacing

_ALIGNMENT = 4096  # of weights in the external file: readers map them by pages
_LARGEST_MESSAGE = (1 << 31) - (1 << 20)  # protobuf's limit of 2 GB, less what the graph itself takes
_BLOCK = 1 << 20  # bytes of an external file that are written, or left out, at once
_SPLICED_BYTES = 1 << 16  # weights of this size and more are written into a model from where they lie
# Tags of fields that hold bytes: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
_GRAPH, _INITIALIZER, _RAW_DATA = b"\x3a", b"\x2a", b"\x4a"


def save_model(
    model: ir.Model, path: str | os.PathLike[str], external_file: str | None = None, external_min_bytes: int = 1024
) -> None:
    """Write `model` to `path`; weights of `external_min_bytes` and more go to `external_file` beside it.

    Without `external_file` the weights are in the model itself, or, where they do not fit into 2 GB, in a file named
    after the model with ``.data`` behind it. `errors.Fail` where a file cannot be written, or no reader of the model
    would take it as its weights.
    """
    target = Path(path)
    large = {
        id(tensor): tensor
        for tensor in _weights(model)
        if tensor.dtype != ir.DataType.STRING and tensor.nbytes >= max(external_min_bytes, 1)
    }
    if external_file is None and sum(tensor.nbytes for tensor in large.values()) >= _LARGEST_MESSAGE:
        external_file = f"{target.name}.data"
    if external_file is not None:
        _check_location(target, external_file)
    try:
        entries: dict[int, tuple[str, int, int]] = {}
        if external_file is not None and large:
            entries = _write_external(target.parent / external_file, external_file, large.values())
        _name_constants_apart(model)
        spliced = {
            name: value.const_value
            for name, value in model.graph.initializers.items()
            if value.const_value is not None
            and value.const_value.dtype != ir.DataType.STRING
            and value.const_value.nbytes >= _SPLICED_BYTES
            and id(value.const_value) not in entries
        }
        proto = _to_proto(model, entries | {id(tensor): ("", 0, 0) for tensor in spliced.values()})
        _name_apart(proto.graph)
        with replacing(target) as file:
            _write_proto(file, proto, spliced)
    except OSError as error:
        raise errors.Fail(f"Saving the model to {target} failed: {error.strerror or error}") from error


def _write_proto(file: BinaryIO, proto: onnx.ModelProto, spliced: Mapping[str, ir.TensorProtocol]) -> None:
    """Write a message with the contents of the initializers in `spliced`, which it lacks, and which are not copied.

    They come after the rest of the graph: fields of a message are in any order.
    """
    kept = []
    weights = []
    for proto_tensor in proto.graph.initializer:
        tensor = spliced.get(proto_tensor.name)
        if tensor is None:
            kept.append(proto_tensor)
            continue
        data = _contents(tensor)
        head = onnx.TensorProto(name=proto_tensor.name, data_type=proto_tensor.data_type, dims=proto_tensor.dims)
        head.doc_string = tensor.doc_string or ""
        for key, text in tensor.metadata_props.items():
            head.metadata_props.add(key=key, value=text)
        front = head.SerializeToString() + _RAW_DATA + varint_bytes(data.size)
        weights.append((_INITIALIZER + varint_bytes(len(front) + data.size) + front, data))
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    inside = proto.graph.SerializeToString()
    proto.ClearField("graph")
    size = len(inside) + sum(len(front) + data.size for front, data in weights)
    file.write(proto.SerializeToString() + _GRAPH + varint_bytes(size) + inside)
    for front, data in weights:
        file.write(front)
        file.write(data.data)


def _name_constants_apart(model: ir.Model) -> None:
    """Give a constant that has the name of an input, a node's result or another graph's constant a name of its own:
    rewrites name those that they make after what is near, which a model may have used already."""
    graphs = (model.graph, *model.graph.subgraphs())
    taken = {value.name for graph in graphs for value in graph.inputs}
    taken |= {value.name for graph in graphs for node in graph for value in node.outputs}
    kept = {name for graph in graphs for name in graph.initializers}
    seen: set[str | None] = set()
    for graph in graphs:
        for name, value in list(graph.initializers.items()):
            if not value.is_graph_input() and (name in taken or name in seen):
                numbered = (f"{name}_{number}" for number in itertools.count(1))
                value.name = next(free for free in numbered if free not in taken and free not in kept)
                kept.add(value.name)
            seen.add(value.name)


def _name_apart(graph: onnx.GraphProto) -> None:
    """Give a node that has the name of another one in its graph a name of its own: onnxruntime refuses such models."""
    taken = {node.name for node in graph.node}
    seen = {""}
    for node in graph.node:
        if node.name and node.name in seen:
            numbered = (f"{node.name}_{number}" for number in itertools.count(1))
            node.name = next(name for name in numbered if name not in taken)
            taken.add(node.name)
        seen.add(node.name)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _name_apart(inner)


def _check_location(target: Path, location: str) -> None:
    """`errors.Fail` for a file that is the model itself or lies outside of its folder."""
    place = os.path.normpath(location)
    if os.path.isabs(place) or place.split(os.sep)[0] in (os.pardir, os.curdir) or place == target.name:
        raise errors.Fail(
            f"Saving the model to {target} failed: its weights must go to another file in its folder, not to {location}"
        )


def to_message(model: ir.Model) -> onnx.ModelProto:
    """The ModelProto of a model, its weights inside; more than 2 GB of them are held, but cannot be serialised."""
    return _to_proto(model, {})


def write_message(model: onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    """Write a message as it is, in the format that the name's extension stands for; OSError."""
    formats = onnx.serialization.registry
    form = formats.get_format_from_file_extension(os.path.splitext(path)[1]) or "protobuf"
    content = formats.get(form).serialize_proto(model)
    with replacing(path) as file:
        file.write(content)


def _weights(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value


def _write_external(path: Path, location: str, tensors: Iterable[ir.TensorProtocol]) -> dict[int, tuple[str, int, int]]:
    """Write weights one after the other; where each lies, by the identity of its tensor."""
    entries: dict[int, tuple[str, int, int]] = {}
    with replacing(path) as file:
        for tensor in tensors:
            offset = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
            file.seek(offset)
            entries[id(tensor)] = location, offset, _write_tensor(file, tensor)
    return entries


def _write_tensor(file: BinaryIO, tensor: ir.TensorProtocol) -> int:
    """Write the contents of a tensor and give their length; blocks of zeros are left out, and take no room on disk."""
    data = _contents(tensor)
    for start in range(0, data.size, _BLOCK):
        block = data[start : start + _BLOCK]
        if block.any():
            file.write(block.data)
        else:
            file.seek(block.size, os.SEEK_CUR)
    file.truncate(file.tell())
    return data.size


def _contents(tensor: ir.TensorProtocol) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a tensor as a file has them, not copied where it lies in memory like that."""
    if sys.byteorder == "little" and tensor.dtype.bitwidth >= 8:
        return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)
    return np.frombuffer(tensor.tobytes(), np.uint8)


def _to_proto(model: ir.Model, external: dict[int, tuple[str, int, int]]) -> onnx.ModelProto:
    """The message of a model: onnx-ir writes everything but external weights and map types, which come after."""
    graphs = [model.graph, *model.graph.subgraphs()]
    maps = {
        value: value.type
        for graph in graphs
        for value in (*graph.inputs, *graph.outputs, *(value for node in graph for value in node.outputs))
        if _has_map(value.type)
    }
    tensors = {
        value: value.const_value
        for graph in graphs
        for value in graph.initializers.values()
        if value.const_value is not None and id(value.const_value) in external
    }
    try:
        for value in maps:
            value.type = None
        for value, tensor in tensors.items():
            location, offset, length = external[id(tensor)]
            value.const_value = ir.ExternalTensor(
                location, offset, length, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name or ""
            )
        proto = ir.to_proto(model)
    finally:
        for value, kind in maps.items():
            value.type = kind
        for value, tensor in tensors.items():
            value.const_value = tensor
    kinds = {value.name: kind for value, kind in maps.items()}
    for graph_proto in _graph_protos(proto.graph):
        for infos in (graph_proto.input, graph_proto.output, graph_proto.value_info):
            for info in infos:
                if info.name in kinds:
                    _write_type(info.type, kinds[info.name])
        if DOMAIN in model.opset_imports:
            write_constants(graph_proto.node)
    imports = [entry for entry in proto.opset_import if entry.domain != DOMAIN]
    del proto.opset_import[:]
    proto.opset_import.extend(imports)
    return proto


def _graph_protos(root: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    waiting = [root]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    waiting.append(attribute.g)
                elif attribute.type == onnx.AttributeProto.GRAPHS:
                    waiting.extend(attribute.graphs)


def _has_map(kind: Any) -> bool:
    while isinstance(kind, ir.SequenceType | ir.OptionalType):
        kind = kind.elem_type
    return isinstance(kind, MapType)


def _write_type(proto: onnx.TypeProto, kind: Any) -> None:
    """Write a type that may hold maps into a message."""
    proto.Clear()
    if isinstance(kind, MapType):
        proto.map_type.key_type = int(kind.key)
        _write_type(proto.map_type.value_type, kind.value)
    elif isinstance(kind, ir.SequenceType):
        _write_type(proto.sequence_type.elem_type, kind.elem_type)
    elif isinstance(kind, ir.OptionalType):
        _write_type(proto.optional_type.elem_type, kind.elem_type)
    else:
        ir.serde.serialize_type_into(proto, kind)
