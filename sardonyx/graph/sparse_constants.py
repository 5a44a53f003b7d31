"""Constants that a model holds as sparse tensors: dense once it is loaded, but for those that it declares as sparse.

onnx-ir has no sparse attributes. A constant that stays sparse is made by a node of this project's own, whose attributes
are tensors; in a model that is saved it is a Constant again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx import errors
from sardonyx.graph.initializers import TensorReader, dimensions
from sardonyx.runtime.memory import memory
from sardonyx.runtime.sparse_value import SparseValue

Array = np.ndarray[Any, Any]

DOMAIN, OP_TYPE = "ai.sardonyx", "SparseConstant"


def declared_sparse(graph: onnx.GraphProto) -> frozenset[str]:
    """The names of values that a graph declares as sparse tensors and does not take as inputs."""
    infos = (info for group in (graph.output, graph.value_info) for info in group)
    found = {info.name for info in infos if info.type.HasField("sparse_tensor_type")}
    return frozenset(found.difference(info.name for info in graph.input))


def dense(proto: onnx.SparseTensorProto, reader: TensorReader) -> onnx.TensorProto:
    """A sparse tensor as a dense TensorProto whose payload `reader` knows."""
    name, dtype, found = _read(proto, reader)
    count = math.prod(found.shape)
    memory.require(count * found.values.itemsize, f"the sparse initializer '{name}'")
    flat = np.zeros(count, found.values.dtype)
    flat[found.places] = found.values
    return _tensor(name, dtype, flat, found.shape, reader)


def sparse_node(name: str, output: str, proto: onnx.SparseTensorProto, reader: TensorReader) -> onnx.NodeProto:
    """The node called `name` that makes a sparse tensor as it is."""
    title, dtype, found = _read(proto, reader)
    node = onnx.NodeProto(name=name, op_type=OP_TYPE, domain=DOMAIN, output=[output])
    node.attribute.add(name="values", type=onnx.AttributeProto.TENSOR).t.CopyFrom(
        _tensor(title, dtype, found.values, found.values.shape, reader)
    )
    node.attribute.add(name="places", type=onnx.AttributeProto.TENSOR).t.CopyFrom(
        _tensor(title, ir.DataType.INT64, found.places, found.places.shape, reader)
    )
    node.attribute.add(name="shape", type=onnx.AttributeProto.INTS, ints=found.shape)
    return node


def write_constants(nodes: Iterable[onnx.NodeProto]) -> None:
    """Make Constants of those nodes of a message that make sparse tensors."""
    for node in nodes:
        if (node.domain, node.op_type) != (DOMAIN, OP_TYPE):
            continue
        held = {attribute.name: attribute for attribute in node.attribute}
        sparse = onnx.SparseTensorProto(values=held["values"].t, indices=held["places"].t, dims=held["shape"].ints)
        node.domain, node.op_type = "", "Constant"
        del node.attribute[:]
        node.attribute.add(name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR).sparse_tensor.CopyFrom(sparse)


def _read(proto: onnx.SparseTensorProto, reader: TensorReader) -> tuple[str, ir.DataType, SparseValue]:
    """The name, the type and the contents of a sparse tensor; `errors.Fail` where they contradict each other.

    Indices are positions in the flattened tensor (shape [nnz]) or coordinates (shape [nnz, rank]). The last one of
    several values for one place counts.
    """
    name = proto.values.name
    values = reader.tensor(proto.values)
    if values.dtype == ir.DataType.STRING or values.dtype.bitwidth < 8:
        raise errors.Fail(f"Sparse initializer '{name}': values of type {values.dtype.name} are not supported")
    shape = dimensions(proto.dims, name)
    indices = reader.tensor(proto.indices).numpy()
    if indices.dtype != np.int64:
        raise errors.Fail(f"Sparse initializer '{name}': indices must be int64, not {indices.dtype}")
    array = values.numpy()
    if array.ndim != 1 or indices.ndim not in (1, 2) or len(indices) != len(array):
        raise errors.Fail(
            f"Sparse initializer '{name}': values of shape {array.shape} and indices of shape {indices.shape} "
            "do not fit together"
        )
    if indices.ndim == 2:
        if indices.shape[1] != len(shape) or (indices < 0).any() or (indices >= np.array(shape)).any():
            raise errors.Fail(f"Sparse initializer '{name}': an index is outside of the shape {shape}")
        indices = indices @ np.array([math.prod(shape[axis + 1 :]) for axis in range(len(shape))], np.int64)
    elif ((indices < 0) | (indices >= math.prod(shape))).any():
        raise errors.Fail(f"Sparse initializer '{name}': an index is outside of the shape {shape}")
    places, last = np.unique(indices[::-1], return_index=True)
    return name, values.dtype, SparseValue(shape, array[::-1][last], places)


def _tensor(
    name: str, dtype: ir.DataType, array: Array, shape: tuple[int, ...], reader: TensorReader
) -> onnx.TensorProto:
    raw = np.ascontiguousarray(array).view(np.uint8).data
    result = onnx.TensorProto(name=name, data_type=dtype, dims=shape)
    result.raw_data = reader.payloads.add(raw) if raw.nbytes else b""
    return result
