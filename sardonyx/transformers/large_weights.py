"""Messages without their large weights: a model of more than 2 GB cannot be serialised as one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from sardonyx import errors
from sardonyx.graph.load import LoadedModel, load_model
from sardonyx.runtime.files.opening import replacing
from sardonyx.transformers.graph_order import graphs_of

# The weights that stay in a message: the graph itself takes part of protobuf's 2 GB.
_LARGEST_MESSAGE = (1 << 31) - (1 << 27)
_SMALL = 1024
_ALIGNMENT = 4096  # of weights in a file: readers map them by pages


def detached(model: ModelProto, least: int = _SMALL, attributes: bool = False) -> tuple[ModelProto, list[TensorProto]]:
    """A copy of a model without the contents of large initializers, and the tensors with these contents.

    Large are raw tensors of `least` bytes and more; with `attributes` those in attributes of nodes, too. `bare_tensors`
    gives the tensors of the copy that lack them, in the same order.
    """
    bare = ModelProto()
    for descriptor, value in model.ListFields():
        if descriptor.name != "graph":
            _copy_field(bare, descriptor.name, value)
    taken: list[TensorProto] = []
    _copy_graph(model.graph, bare.graph, least, taken)
    if attributes:
        for graph in graphs_of(bare.graph):
            for node in graph.node:
                taken.extend(_strip_attributes(node, least))
    return bare, taken


def bare_tensors(model: ModelProto, attributes: bool = False) -> Iterator[TensorProto]:
    """The tensors of a detached model that have no contents, in the order of what was taken from them."""
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL and not tensor.external_data:
            yield tensor
    if attributes:
        for graph in graphs_of(model.graph):
            for node in graph.node:
                for attribute in node.attribute:
                    if attribute.type == AttributeProto.TENSOR and _is_bare(attribute.t):
                        yield attribute.t


class UnreadWeights(errors.InvalidArgument, ValueError):  # noqa: N818 (a name like those of `sardonyx.errors`)
    """The weights of a message lie in files that were not read."""


def load_proto(model: ModelProto) -> LoadedModel:
    """`load_model` for a message of any size; `UnreadWeights` where its weights lie in files that were not read."""
    for graph in graphs_of(model.graph):
        for tensor in graph.initializer:
            if tensor.data_location == TensorProto.EXTERNAL:
                raise UnreadWeights(
                    f"ModelProto has external data not loaded into memory ({tensor.name}): load the model with its "
                    "external data first, or pass the path of its file"
                )
    bare, taken = detached(model)
    buffers = {}
    for index, (tensor, source) in enumerate(zip(bare_tensors(bare), taken, strict=True)):
        contents = source.raw_data
        point_to(tensor, f"weight-{index}", 0, len(contents))
        buffers[f"weight-{index}"] = contents
    return load_model(bare, external_buffers=buffers or None)


def write_model(
    model: ModelProto,
    path: str | os.PathLike[str],
    external: bool = False,
    one_file: bool = True,
    least: int = _SMALL,
    attributes: bool = False,
) -> None:
    """Write a model, its raw weights of `least` bytes and more beside it where `external` says so or size asks for it.

    They go to ``<name>.data``, or each to a file named after the tensor. The model in memory stays as it is.
    `errors.Fail` where a file cannot be written.
    """
    target = Path(path)
    weights = sum(len(tensor.raw_data) for graph in graphs_of(model.graph) for tensor in graph.initializer)
    try:
        if not external and weights < _LARGEST_MESSAGE:
            with replacing(target) as file:
                file.write(model.SerializeToString())
            return
        bare, taken = detached(model, max(least, 1), attributes)
        tensors = list(bare_tensors(bare, attributes))
        if not tensors:
            pass  # all are small
        elif one_file:
            _write_together(target.with_name(f"{target.name}.data"), tensors, taken)
        else:
            _write_apart(target.parent, tensors, taken)
        with replacing(target) as file:
            file.write(bare.SerializeToString())
    except OSError as error:
        raise errors.Fail(f"Saving the model to {target} failed: {error.strerror or error}") from error


def point_to(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Say where the contents of a tensor lie."""
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def _write_together(path: Path, tensors: Sequence[TensorProto], sources: Sequence[TensorProto]) -> None:
    with replacing(path) as file:
        for tensor, source in zip(tensors, sources, strict=True):
            offset = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
            file.seek(offset)
            point_to(tensor, path.name, offset, file.write(source.raw_data))


def _write_apart(folder: Path, tensors: Sequence[TensorProto], sources: Sequence[TensorProto]) -> None:
    taken: set[str] = set()
    for index, (tensor, source) in enumerate(zip(tensors, sources, strict=True)):
        name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in source.name)
        if not name.strip(".") or name in taken:
            name = f"weight_{index}_{name}"
        taken.add(name)
        contents = source.raw_data
        with replacing(folder / name) as file:
            file.write(contents)
        point_to(tensor, name, 0, len(contents))


def _copy_field(target: Any, name: str, value: Any) -> None:
    """Copy one field of a message into another message of its kind."""
    if isinstance(value, str | bytes | int | float):
        setattr(target, name, value)
    elif isinstance(value, Message):
        getattr(target, name).CopyFrom(value)
    else:
        getattr(target, name).extend(value)


def _copy_graph(graph: GraphProto, target: GraphProto, least: int, taken: list[TensorProto]) -> None:
    for descriptor, value in graph.ListFields():
        if descriptor.name != "initializer":
            _copy_field(target, descriptor.name, value)
    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL or len(tensor.raw_data) < least:
            target.initializer.append(tensor)
            continue
        bare = target.initializer.add(name=tensor.name, data_type=tensor.data_type, doc_string=tensor.doc_string)
        bare.dims.extend(tensor.dims)
        bare.data_location = TensorProto.EXTERNAL
        taken.append(tensor)


def _is_bare(tensor: TensorProto) -> bool:
    return bool(tensor.data_location == TensorProto.EXTERNAL and not tensor.external_data)


def _strip_attributes(node: NodeProto, least: int) -> Iterator[TensorProto]:
    """Take the contents of large tensors out of a node's attributes: copies of those tensors."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR and len(attribute.t.raw_data) >= least:
            whole = TensorProto()
            whole.CopyFrom(attribute.t)
            attribute.t.ClearField("raw_data")
            attribute.t.data_location = TensorProto.EXTERNAL
            yield whole
