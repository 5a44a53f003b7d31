"""Files of models that have more nodes and outputs than another file, written without reading the weights.

In the protobuf wire format the entries of a list lie one after the other, so the graph of the new file is that of the
old one, byte by byte, with what is added in between.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx_ir as ir
from onnx import GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto

from sardonyx import errors
from sardonyx.graph.load import load_model
from sardonyx.graph.wire_format import SHORT, split, varint, varint_bytes
from sardonyx.ops.framework.inference import Inference, infer_model, type_proto
from sardonyx.runtime.files.opening import open_file, replacing
from sardonyx.runtime.memory.mapped_pages import map_open_file
from sardonyx.transformers.graph_order import graphs_of
from sardonyx.transformers.large_weights import point_to

_GRAPH, _NODE = 7, 1  # the field of a model that holds its graph, and that of a graph that holds nodes
_NUMBER, _EIGHT_BYTES, _BYTES = 0, 1, 2  # wire types
_COPIED_AT_ONCE = 1 << 20
OPSET = 17  # of nodes that are added to a model without operators of ONNX


def read_structure(path: Path) -> ModelProto:
    """The model in a file with what inference knows of its values, and its large weights left where they are.

    Weights of 1 KiB and more are external data of the file itself. The typed errors of loading a model.
    """
    loaded = load_model(path)
    inference = infer_model(loaded.model)
    with open_file(path) as file:
        data = map_open_file(file.fileno(), path)
    small, payloads = split(data)
    model = ModelProto.FromString(small)
    start = _address(data)
    for graph in graphs_of(model.graph):
        tensors = [*graph.initializer, *(a.t for node in graph.node for a in node.attribute if a.HasField("t"))]
        for tensor in tensors:
            payload = payloads.find(tensor.raw_data)
            if len(payload) != len(tensor.raw_data):
                tensor.ClearField("raw_data")
                point_to(tensor, path.name, _address(payload) - start, len(payload))
    _write_types(model.graph, loaded.model, inference)
    return model


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def _write_types(graph: GraphProto, model: ir.Model, inference: Inference) -> None:
    """Put the types of all tensors that nodes of the main graph make into `value_info`."""
    listed = {info.name for info in (*graph.input, *graph.output)}
    del graph.value_info[:]
    for node in model.graph:
        for value in node.outputs:
            fact = inference.facts.get(value)
            if value.name and value.name not in listed and fact is not None and isinstance(fact.type, ir.TensorType):
                graph.value_info.append(ValueInfoProto(name=value.name, type=type_proto(fact)))


def has_external_data(model: ModelProto, own: str) -> bool:
    """Whether weights of a model lie in other files than that called `own`."""
    return any(
        tensor.data_location == TensorProto.EXTERNAL
        and any(entry.key == "location" and entry.value != own for entry in tensor.external_data)
        for graph in graphs_of(model.graph)
        for tensor in (*graph.initializer, *(a.t for node in graph.node for a in node.attribute if a.HasField("t")))
    )


def write_with(
    path: Path,
    target: Path,
    nodes: Mapping[int, Sequence[NodeProto]],
    outputs: Sequence[ValueInfoProto],
    has_operators: bool = True,
) -> None:
    """Write the model in `path` to `target` with these nodes, each behind the node of its number (-1: before all of
    them), and these outputs behind its own.

    `has_operators` says whether the model imports operators of ONNX, which the added nodes need. `errors.Fail` where
    the file cannot be written.
    """
    tail = b"" if has_operators else ModelProto(opset_import=[OperatorSetIdProto(version=OPSET)]).SerializeToString()
    try:
        with open_file(path) as source:
            data = map_open_file(source.fileno(), path)
            graphs = [place for number, *place in _fields(data, 0, len(data)) if number == _GRAPH]
            seen, copied = 0, 0
            with replacing(target) as file:
                for tag, start, end in graphs:
                    added, seen = _insertions(data, start, end, nodes, seen)
                    if [tag, start, end] == graphs[-1]:
                        added.append((end, GraphProto(output=outputs).SerializeToString()))
                    _copy(source, file, copied, tag)
                    length = end - start + sum(len(piece) for _, piece in added)
                    file.write(bytes([_GRAPH << 3 | _BYTES]) + varint_bytes(length))
                    copied = start
                    for position, piece in added:
                        _copy(source, file, copied, position)
                        file.write(piece)
                        copied = position
                    copied = end
                _copy(source, file, copied, len(data))
                file.write(tail)
    except OSError as error:
        raise errors.Fail(f"Writing the model for calibration to {target} failed: {error.strerror or error}") from error


def _insertions(
    data: memoryview, start: int, end: int, nodes: Mapping[int, Sequence[NodeProto]], seen: int
) -> tuple[list[tuple[int, bytes]], int]:
    """Where in a graph which bytes go; and the number of nodes up to its end, of which `seen` come before it."""
    found = [(start, _as_fields(nodes.get(-1, ())))] if not seen else []
    for number, _, _, behind in _fields(data, start, end):
        if number == _NODE:
            if seen in nodes:
                found.append((behind, _as_fields(nodes[seen])))
            seen += 1
    return found, seen


def _as_fields(nodes: Sequence[NodeProto]) -> bytes:
    """Nodes as entries of a graph."""
    fields: bytes = GraphProto(node=nodes).SerializeToString()
    return fields


def _fields(data: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: the number of each, where its tag, its contents and what comes behind it begin."""
    position = start
    while position < end:
        first = position
        tag, position = varint(data, position)
        kind, contents = tag & 7, position
        if kind == _BYTES:
            length, contents = varint(data, position, SHORT)
            position = contents + length
        elif kind == _NUMBER:
            _, position = varint(data, position)
        else:
            position += 8 if kind == _EIGHT_BYTES else 4
        yield tag >> 3, first, contents, position


def _copy(source: BinaryIO, target: BinaryIO, start: int, end: int) -> None:
    source.seek(start)
    while start < end:
        block = source.read(min(_COPIED_AT_ONCE, end - start))
        if not block:
            raise OSError("the model's file became shorter while it was read")
        target.write(block)
        start += len(block)


def folder_of(path: Path) -> str:
    """The folder in which a model's external data lie."""
    return os.path.dirname(os.path.abspath(path))
