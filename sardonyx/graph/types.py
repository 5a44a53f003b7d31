"""Types of values: between onnx-ir, NumPy and the strings that onnxruntime shows (``tensor(float)``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

_ELEMENT_NAMES = {
    ir.DataType.FLOAT: "float",
    ir.DataType.DOUBLE: "double",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
    ir.DataType.INT8: "int8",
    ir.DataType.INT16: "int16",
    ir.DataType.INT32: "int32",
    ir.DataType.INT64: "int64",
    ir.DataType.UINT8: "uint8",
    ir.DataType.UINT16: "uint16",
    ir.DataType.UINT32: "uint32",
    ir.DataType.UINT64: "uint64",
    ir.DataType.BOOL: "bool",
    ir.DataType.STRING: "string",
    ir.DataType.COMPLEX64: "complex64",
    ir.DataType.COMPLEX128: "complex128",
}


def element_name(dtype: ir.DataType) -> str:
    """The name of an element type as onnxruntime prints it: ``float``, ``int64``, ``float8e4m3fn``…"""
    return _ELEMENT_NAMES.get(dtype, dtype.name.lower())


class MapType:
    """The type of a map from keys to values of one type, which onnx-ir has no class for."""

    def __init__(self, key: ir.DataType, value: ir.TypeProtocol) -> None:
        self.key = key
        self.value = value
        self.denotation: str | None = None

    @property
    def dtype(self) -> ir.DataType:
        return self.value.dtype

    @property
    def elem_type(self) -> Any:
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MapType) and self.key == other.key and self.value == other.value

    def __hash__(self) -> int:
        return hash((self.key, self.value))


_TENSORS = {dtype: f"tensor({element_name(dtype)})" for dtype in ir.DataType}


def type_name(kind: Any) -> str:
    """The string that onnxruntime shows for a type: ``tensor(float)``, ``seq(map(string,tensor(float)))``…"""
    if type(kind) is ir.TensorType:  # nearly all: to ask for a class of onnx-ir that it is not takes microseconds
        return _TENSORS[kind.dtype]
    if isinstance(kind, ir.SequenceType):
        return f"seq({type_name(kind.elem_type)})"
    if isinstance(kind, ir.OptionalType):
        return f"optional({type_name(kind.elem_type)})"
    if isinstance(kind, MapType):
        return f"map({element_name(kind.key)},{type_name(kind.value)})"
    if isinstance(kind, ir.SparseTensorType):
        return f"sparse_tensor({element_name(kind.dtype)})"
    return f"tensor({element_name(kind.dtype)})"


def numpy_dtype(dtype: ir.DataType) -> np.dtype[Any]:
    """The NumPy dtype that holds values of `dtype` in memory; strings are objects."""
    return np.dtype(object) if dtype == ir.DataType.STRING else np.dtype(dtype.numpy())


def element_type(dtype: np.dtype[Any]) -> ir.DataType:
    """The ONNX element type of a NumPy dtype; objects and NumPy's own strings are strings."""
    if dtype.kind in "OUST":
        return ir.DataType.STRING
    return ir.DataType.from_numpy(dtype)
