"""From a TensorProto to a tensor over the bytes where they lie, checked so that no later reader can be misled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx import errors
from sardonyx.graph.external_data import ExternalData
from sardonyx.graph.wire_format import Payloads

Type = ir.DataType

_MOST_DIMS = 64  # of a NumPy array
_TYPES = {int(kind): kind for kind in Type}

# Which field of a TensorProto holds the values of a type, where they are not in raw_data; the rest use int32_data.
_FIELDS = {
    Type.FLOAT: "float_data",
    Type.COMPLEX64: "float_data",
    Type.DOUBLE: "double_data",
    Type.COMPLEX128: "double_data",
    Type.INT64: "int64_data",
    Type.UINT64: "uint64_data",
    Type.UINT32: "uint64_data",
}
_FIELD_TYPES = {"float_data": np.float32, "double_data": np.float64, "int64_data": np.int64, "uint64_data": np.uint64}


class TensorReader:
    """Makes the tensors of one model; `payloads` and `external` know where the large ones lie."""

    def __init__(self, payloads: Payloads, external: ExternalData) -> None:
        self.payloads = payloads
        self.external = external

    def tensor(self, proto: onnx.TensorProto) -> ir.TensorProtocol:
        """The tensor of a proto; a typed error where its data do not fit its type and shape."""
        dtype = data_type(proto)
        shape = dimensions(proto.dims, proto.name)
        if dtype == Type.STRING:
            return _strings(proto, shape)
        raw = self._bytes(proto, (math.prod(shape) * dtype.bitwidth + 7) // 8)
        if raw is not None:
            return over_bytes(raw, dtype, shape, proto.name)
        return _six_bits(proto, dtype, shape) if dtype.bitwidth == 6 else _typed(proto, dtype, shape)

    def _bytes(self, proto: onnx.TensorProto, size: int) -> memoryview | None:
        """The `size` bytes of a tensor; None where its values are in a typed field."""
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            return self.external.view(proto, size)
        if not proto.HasField("raw_data"):
            return None
        raw = self.payloads.find(proto.raw_data)
        if len(raw) != size:
            raise errors.Fail(
                f"Initializer '{proto.name}': raw_data size ({len(raw)} bytes) does not match expected size from "
                f"shape and data type ({size} bytes)"
            )
        return raw


def data_type(proto: onnx.TensorProto) -> ir.DataType:
    """The element type of a tensor; `errors.Fail` where it is none."""
    dtype = _TYPES.get(proto.data_type)
    if dtype is None:
        raise errors.Fail(f"This is an invalid model. Tensor '{proto.name}' does not have valid data type.")
    if dtype == Type.UNDEFINED:
        raise errors.Fail(f"This is an invalid model. Tensor does not have type information. (Tensor '{proto.name}')")
    return dtype


def dimensions(dims: Sequence[int], name: str) -> tuple[int, ...]:
    """The shape of a tensor; `errors.Fail` for dimensions that no tensor can have."""
    shape = tuple(dims)
    if len(shape) > _MOST_DIMS:
        raise errors.Fail(f"Tensor '{name}' has {len(shape)} dimensions; at most {_MOST_DIMS} are supported.")
    if any(dim < 0 for dim in shape):
        raise errors.Fail(f"Out of bounds dimensions in TypeProto_Tensor: tensor '{name}' has the shape {shape}")
    if math.prod(dim for dim in shape if dim) >= 2**62:
        raise errors.Fail(f"Integer overflow: tensor '{name}' of shape {shape} is larger than any memory")
    return shape


def over_bytes(raw: memoryview, dtype: ir.DataType, shape: tuple[int, ...], name: str) -> ir.TensorProtocol:
    """A tensor that reads little-endian bytes in place, whatever their alignment."""
    if dtype.bitwidth < 8:
        return ir.PackedTensor(np.frombuffer(raw, np.uint8), dtype, shape=shape, name=name)
    if dtype == Type.BOOL:
        array = np.frombuffer(raw, np.uint8)
        truth = array.view(np.bool_) if not (array > 1).any() else array != 0
        return ir.Tensor(truth.reshape(shape), dtype, name=name)
    return ir.Tensor(np.frombuffer(raw, dtype.numpy()).reshape(shape), dtype, name=name)


def _check_count(proto: onnx.TensorProto, found: int, expected: int) -> None:
    if found != expected:
        raise errors.Fail(
            f"Initializer '{proto.name}': data field count ({found}) does not match expected count from "
            f"shape ({expected})"
        )


def _strings(proto: onnx.TensorProto, shape: tuple[int, ...]) -> ir.TensorProtocol:
    if proto.HasField("raw_data"):
        raise errors.InvalidArgument(f"Deserialize tensor {proto.name} failed.string tensor can not have raw data")
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        raise errors.Fail(f"Tensor '{proto.name}': strings cannot be stored as external data")
    _check_count(proto, len(proto.string_data), math.prod(shape))
    return ir.StringTensor(list(proto.string_data), shape=ir.Shape(shape), name=proto.name)


def _typed(proto: onnx.TensorProto, dtype: ir.DataType, shape: tuple[int, ...]) -> ir.TensorProtocol:
    """A tensor whose values are in the field of its type."""
    field = _FIELDS.get(dtype, "int32_data")
    values = getattr(proto, field)
    count = math.prod(shape)
    width = dtype.bitwidth
    if dtype in (Type.COMPLEX64, Type.COMPLEX128):
        _check_count(proto, len(values), 2 * count)
    elif width < 8:  # each number holds one byte of packed elements
        _check_count(proto, len(values), (count * width + 7) // 8)
    else:
        _check_count(proto, len(values), count)
    if field != "int32_data":
        array = np.fromiter(values, _FIELD_TYPES[field], len(values))
        if dtype == Type.UINT32:
            array = array.astype(np.uint32)
        return ir.Tensor(array.view(dtype.numpy()).reshape(shape), dtype, name=proto.name)
    numbers = np.fromiter(values, np.int32, len(values))
    if width < 8:
        return over_bytes(numbers.astype(np.uint8).data, dtype, shape, proto.name)
    if dtype == Type.BOOL:
        return ir.Tensor((numbers != 0).reshape(shape), dtype, name=proto.name)
    # float16 and the smaller floats store their bit pattern; integers their value, which keeps its low bits.
    stored: Any = {8: np.uint8, 16: np.uint16, 32: np.int32}[width]
    return ir.Tensor(numbers.astype(stored).view(dtype.numpy()).reshape(shape), dtype, name=proto.name)


def _six_bits(proto: onnx.TensorProto, dtype: ir.DataType, shape: tuple[int, ...]) -> ir.TensorProtocol:
    """A tensor of 6-bit floats, which int32_data holds one per number."""
    count = math.prod(shape)
    _check_count(proto, len(proto.int32_data), count)
    numbers = np.fromiter(proto.int32_data, np.int32, count)
    if ((numbers < 0) | (numbers > 63)).any():
        raise errors.Fail(f"Initializer '{proto.name}': a value does not fit 6 bits")
    return ir.Tensor(numbers.astype(np.uint8).view(dtype.numpy()).reshape(shape), dtype, name=proto.name)
