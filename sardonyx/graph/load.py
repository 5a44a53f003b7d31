"""From a file, bytes or a ModelProto to a model whose weights stay where they are.

`load_model` reads top to bottom: map the file, leave the weights in place, parse the rest, check its form, hand it to
onnx-ir, give the initializers their bytes, bring the graph into the one form that everything above expects (one
operator version per node, no functions, sorted, no unused initializers).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError

from sardonyx import errors
from sardonyx.graph.constants import graphs_of, nodes_of
from sardonyx.graph.external_data import Buffer, ExternalData, external_entries, leave_out_prepacked
from sardonyx.graph.functions import inline_functions
from sardonyx.graph.initializers import TensorReader, data_type, dimensions
from sardonyx.graph.long_attributes import put_back, set_aside
from sardonyx.graph.other_files import kind_of, models_in, similar_names
from sardonyx.graph.sparse_constants import DOMAIN, declared_sparse, dense, sparse_node
from sardonyx.graph.structure_check import check_structure
from sardonyx.graph.value_types import restore_maps
from sardonyx.graph.versions import check_versions, stamp_versions
from sardonyx.graph.wire_format import split
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.files.opening import IrregularError, open_file
from sardonyx.runtime.memory import address_space
from sardonyx.runtime.memory.mapped_pages import FileMap, file_map, map_open_file, named_path, read_open_file

Source: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto

# Smaller files are read, not mapped: sessions go on whatever is written to them.
_MAPPED_BYTES = 16 << 20

_INITIALIZERS_ARE_CONSTANT = 3  # up to this IR version an initializer is listed among the inputs and yet constant


@dataclass(frozen=True)
class LoadedModel:
    """A model as it was written, before any rewrite, but for calls of its own `functions`, which are expanded.

    `warnings` are lines for the session's log, `files` the absolute paths of what it was read from, and of links that
    led there, `maps` those files that are mapped.
    """

    model: ir.Model
    path: str | None  # None for a model given as bytes or as a ModelProto
    size: int = 0  # bytes of the serialised model, without external data
    warnings: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    functions: tuple[ir.Function, ...] = ()
    maps: tuple[FileMap, ...] = ()

    @property
    def is_bytes(self) -> bool:
        return self.path is None


def load_model(
    source: Source,
    *,
    external_folder: str | os.PathLike[str] | None = None,
    external_buffers: Mapping[str, Buffer] | None = None,
    allow_unreleased_opsets: bool | None = None,
    model_path: str | os.PathLike[str] | None = None,
    hard_links: bool = False,
    other_folders: Sequence[str] = (),
) -> LoadedModel:
    """Load a model without copying its weights.

    External data lie in the folder of the model file; for bytes and ModelProto in `external_folder`, or else in the
    working directory. `external_buffers` are contents of such files by their names, used in their place. `model_path`
    is the file that a ModelProto was read from. With `hard_links` external data may have other names as well,
    with `other_folders` they may be in these, too.

    Raises `errors.NoSuchFile`, `errors.InvalidProtobuf`, and for a model that is wrong in itself `errors.Fail`,
    `errors.InvalidArgument` or `errors.InvalidGraph`.
    """
    data, path = _bytes_of(source)
    origin = path if path is not None or model_path is None else os.fspath(model_path)
    folder = (os.fspath(external_folder or "") if origin is None else os.path.dirname(origin)) or "."
    external = ExternalData(folder, external_buffers, path is None, origin, hard_links, other_folders)
    warnings: list[str] = []
    try:
        model, functions = _model_of(data, external, allow_unreleased_opsets, warnings, path is not None)
    except errors.OnnxRuntimeError as error:
        if path is None:
            raise
        raise type(error)(f"Load model from {path} failed:{error.message}") from error
    own = () if path is None else dict.fromkeys((os.path.realpath(path), named_path(path)))
    maps = tuple(one for view in (data, *external.mapped) if (one := file_map(view)) is not None)
    return LoadedModel(model, path, len(data), tuple(warnings), (*own, *external.paths), functions, maps)


def external_locations(path: str | os.PathLike[str]) -> list[str]:
    """The files with weights that the model of a file names, each once, by their paths relative to its folder.

    Only the structure of the model is read, and no such file. `errors.NoSuchFile`, `errors.InvalidProtobuf`.
    """
    data, _ = _bytes_of(path)
    try:
        proto = onnx.ModelProto.FromString(split(data)[0])
    except (DecodeError, errors.InvalidProtobuf) as error:
        name = os.fspath(path)
        raise errors.InvalidProtobuf(
            f"Load model from {name} failed:Protobuf parsing failed.{kind_of(data)}"
        ) from error
    found: dict[str, None] = {}
    for tensor in _tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            found[external_entries(tensor)["location"]] = None
    return list(found)


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model but those of sparse ones, which are never in files of their own."""
    nodes = [node for function in proto.functions for node in function.node]
    for graph in _graphs(proto):
        yield from graph.initializer
        nodes += graph.node
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors


def _bytes_of(source: Source) -> tuple[memoryview, str | None]:
    if isinstance(source, onnx.ModelProto):
        try:
            return memoryview(source.SerializeToString()), None
        except (EncodeError, ValueError) as error:
            raise errors.InvalidArgument(
                f"The ModelProto cannot be serialised ({error}); save weights beyond 2 GB as external data"
            ) from error
    if isinstance(source, bytes):
        return memoryview(source), None
    path = os.fspath(source)
    try:
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size < _MAPPED_BYTES:
                return read_open_file(file), path
            return map_open_file(file.fileno(), path), path
    except IrregularError:
        is_folder = os.path.isdir(path)
        said = f"It is a folder.{models_in(path)}" if is_folder else "It is not a file."
        raise errors.InvalidProtobuf(f"Load model from {path} failed:Protobuf parsing failed. {said}") from None
    except (FileNotFoundError, ValueError):  # a name with a null byte is a ValueError
        raise errors.NoSuchFile(f"Load model from {path} failed. File doesn't exist.{similar_names(path)}") from None
    except OSError as error:
        raise errors.Fail(
            f"Load model from {path} failed:system error number {error.errno}: {error.strerror}"
        ) from None


def _model_of(
    data: memoryview,
    external: ExternalData,
    allow_unreleased: bool | None,
    warnings: list[str],
    is_file: bool,
) -> tuple[ir.Model, tuple[ir.Function, ...]]:
    try:
        small, payloads = split(data)
        proto = onnx.ModelProto.FromString(small)
    except (DecodeError, errors.InvalidProtobuf) as error:
        text = "Protobuf parsing failed." if is_file else "Failed to load model because protobuf parsing failed."
        raise errors.InvalidProtobuf(f"{text}{kind_of(data)}") from error
    if not proto.HasField("graph"):
        raise errors.InvalidArgument(f"No graph was found in the protobuf.{kind_of(data)}")
    check_versions(proto, allow_unreleased, warnings)
    structure = check_structure(proto)
    reader = TensorReader(payloads, external)
    graphs = list(_graphs(proto))
    sparse = [declared_sparse(graph) for graph in graphs]
    for graph, kept in zip(graphs, sparse, strict=True):
        _prepare_tensors(graph, reader, warnings, kept)
    if any(sparse) and all(entry.domain != DOMAIN for entry in proto.opset_import):
        proto.opset_import.add(domain=DOMAIN, version=1)
    for function in proto.functions:
        _densify_constants(function.node, reader)
    long_attributes = set_aside(proto.graph)
    try:
        model = ir.serde.deserialize_model(proto)
    except Exception as error:  # the checks above leave nothing that onnx-ir refuses, as far as is known
        failed = address_space.explained(error, "Loading the model")
        raise failed or errors.Fail(f"This is an invalid model. {_innermost(error)}") from error
    put_back(long_attributes, model.graph)
    restore_maps(model)
    _read_tensors(model, reader)
    if structure.unsorted:
        _sort(model)
    stamp_versions(model)
    functions = inline_functions(model)
    inner = tuple(graphs_of(model.graph))
    for each in inner:
        _name_inputs(each)
    _settle_initializers(model, inner, warnings)
    return model, functions


def _graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Every graph of a model, outer ones first; protobuf bounds how deep they nest."""
    waiting: list[onnx.GraphProto] = [proto.graph]
    nodes = [node for function in proto.functions for node in function.node]
    while waiting or nodes:
        for node in nodes:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    waiting.append(attribute.g)
                elif attribute.type == onnx.AttributeProto.GRAPHS:
                    waiting.extend(attribute.graphs)
        nodes = []
        if waiting:
            graph = waiting.pop()
            yield graph
            nodes = list(graph.node)


def _prepare_tensors(graph: onnx.GraphProto, reader: TensorReader, warnings: list[str], kept: Collection[str]) -> None:
    """Make the sparse tensors dense but for those called as in `kept`, leave out all but the last of initializers with
    one name, check declared types."""
    _densify_constants(graph.node, reader, kept)
    for node in graph.node:
        # Of several devices nothing is used here; an entry that names no configuration is one of none.
        if any(not one.configuration_id for one in node.device_configurations):
            del node.device_configurations[:]
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        if name in kept:
            graph.node.insert(0, sparse_node("", name, sparse, reader))
        else:
            graph.initializer.append(dense(sparse, reader))
    del graph.sparse_initializer[:]
    for tensor in graph.initializer:
        data_type(tensor)
        if tensor.external_data:
            reader.external.expect(tensor)
            leave_out_prepacked(tensor)
    last = {tensor.name: index for index, tensor in enumerate(graph.initializer)}
    if len(last) < len(graph.initializer):
        for index in reversed(range(len(graph.initializer))):
            name = graph.initializer[index].name
            if last[name] != index:
                del graph.initializer[index]
                warnings.append(
                    f"Duplicate initializer (dense, sparse or ConstantNode): '{name}' the model will use the latest "
                    "encountered initializer. Please, fix your model."
                )
    for infos in (graph.input, graph.value_info):
        for info in infos:
            if info.name in last and info.type.HasField("tensor_type"):
                _check_declared(info, next(tensor for tensor in graph.initializer if tensor.name == info.name))


def _check_declared(info: onnx.ValueInfoProto, tensor: onnx.TensorProto) -> None:
    declared, actual = info.type.tensor_type, data_type(tensor)
    if declared.elem_type != actual:
        raise errors.Fail(
            f"Type Error: Data in initializer '{info.name}' has element type {actual.name} but usage of initializer "
            f"in graph expects {ir.DataType(declared.elem_type).name}"
        )
    if declared.HasField("shape"):
        shape = dimensions(tensor.dims, tensor.name)
        dims = declared.shape.dim
        if len(dims) != len(shape) or any(
            dim.HasField("dim_value") and dim.dim_value != size for dim, size in zip(dims, shape, strict=False)
        ):
            shown = ",".join(str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param for dim in dims)
            raise errors.Fail(
                f"Type Error: Shape of initializer {info.name} does not match. {{{shown}}} != "
                f"{{{','.join(map(str, shape))}}}"
            )


def _densify_constants(
    nodes: Iterable[onnx.NodeProto], reader: TensorReader, kept: Collection[str] = frozenset()
) -> None:
    """Make sparse constants dense but for those whose outputs are called as in `kept`."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.SPARSE_TENSOR and not attribute.ref_attr_name:
                if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
                    raise errors.InvalidGraph(
                        f"Attribute '{attribute.name}' of node '{node.name}' ({node.op_type}) is a sparse tensor, "
                        "which only Constant takes"
                    )
                if kept and len(node.output) == 1 and node.output[0] in kept:
                    node.CopyFrom(sparse_node(node.name, node.output[0], attribute.sparse_tensor, reader))
                    break
                tensor = dense(attribute.sparse_tensor, reader)
                attribute.Clear()
                attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
                attribute.t.CopyFrom(tensor)
            elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.external_data:
                reader.external.expect(attribute.t)
            elif attribute.type == onnx.AttributeProto.SPARSE_TENSORS:
                raise errors.InvalidGraph(f"Attribute '{attribute.name}' of node '{node.name}': sparse tensors")


def _read_tensors(model: ir.Model, reader: TensorReader) -> None:
    """Exchange the tensors that onnx-ir made for tensors over the bytes where they lie, checked."""
    for root in (model.graph, *(function.graph for function in model.functions.values())):
        for graph in graphs_of(root):
            for value in graph.initializers.values():
                value.const_value = _read(value.const_value, reader)
                value.type = value.type or ir.TensorType(value.const_value.dtype)
                if value.shape is None or not value.is_graph_input():  # callers may give inputs of the declared shape
                    value.shape = ir.Shape(value.const_value.shape.numpy())
        for node in nodes_of(root):
            for name, attribute in node.attributes.items():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    node.attributes[name] = ir.AttrTensor(name, _read(attribute.value, reader))
                elif attribute.type == ir.AttributeType.TENSORS and not attribute.is_ref():
                    node.attributes[name] = ir.AttrTensors(name, [_read(item, reader) for item in attribute.value])


def _read(tensor: ir.TensorProtocol | None, reader: TensorReader) -> ir.TensorProtocol:
    assert tensor is not None
    return reader.tensor(_proto_of(tensor))


def _proto_of(tensor: ir.TensorProtocol) -> onnx.TensorProto:
    """The message that onnx-ir made a tensor from, or an equal one where it did not keep it."""
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        return tensor.raw
    proto = onnx.TensorProto(name=tensor.name or "", data_type=tensor.dtype, dims=tuple(tensor.shape))
    if isinstance(tensor, ir.ExternalTensor):
        proto.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", tensor.location), ("offset", tensor.offset), ("length", tensor.length)):
            if value is not None:
                proto.external_data.add(key=key, value=str(value))
    elif isinstance(tensor, ir.StringTensor):
        proto.string_data.extend(tensor.string_data())
    return proto


def _sort(model: ir.Model) -> None:
    try:
        model.graph.sort()
        for function in model.functions.values():
            function.sort()
    except ValueError:
        raise errors.Fail("This is an invalid model. Error: the graph is not acyclic.") from None


def _name_inputs(graph: ir.Graph) -> None:
    """Subgraphs may leave inputs that they do not read without a name; a plan needs one."""
    for index, value in enumerate(graph.inputs):
        if not value.name:
            value.name = f"unnamed_input_{index}_of_{graph.name}"


def _settle_initializers(model: ir.Model, graphs: Sequence[ir.Graph], warnings: list[str]) -> None:
    """Take constants off the inputs, drop what nobody reads, and note what a caller may override."""
    graph = model.graph
    for name, value in list(graph.initializers.items()):
        if value.is_graph_input():
            if model.ir_version <= _INITIALIZERS_ARE_CONSTANT:
                make_constant(value)
            else:
                warnings.append(
                    f"Initializer {name} appears in graph inputs and will not be treated as constant value/weight. "
                    "This may prevent some of the graph optimizations, like const folding. Move it out of graph inputs "
                    "if there is no need to override it, by either re-generating the model with latest "
                    "exporter/converter or with the tool onnxruntime/tools/python/remove_initializer_from_input.py."
                )
    for each in graphs:
        for name, value in list(each.initializers.items()):
            if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
                del each.initializers[name]
                warnings.append(
                    f"Removing initializer '{name}'. It is not used by any node and should be removed from the model."
                )


def make_constant(value: ir.Value) -> None:
    """Take an initializer off the inputs of its graph; its shape is that of its tensor then."""
    assert value.graph is not None
    assert value.const_value is not None
    value.graph.inputs.remove(value)
    value.shape = ir.Shape(value.const_value.shape.numpy())


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())[:500] or type(error).__name__
