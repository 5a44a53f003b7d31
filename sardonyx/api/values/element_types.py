"""Element types of tensors: their ONNX numbers, the names in ``tensor(...)`` and the NumPy dtypes that hold them."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

STRING = 8
BOOL = 9


class ElementType(NamedTuple):
    """One element type; `bits` is what an element takes where elements are packed."""

    number: int
    name: str
    dtype: np.dtype[Any]
    bits: int


def _element_types(kinds: Iterable[tuple[int, str, Any]], bits: int | None = None) -> list[ElementType]:
    found = [(number, name, np.dtype(kind)) for number, name, kind in kinds]
    return [ElementType(*one, bits or one[-1].itemsize * 8) for one in found]


class _Table:
    """Element types by what they are looked up by."""

    def __init__(self, kinds: Iterable[ElementType]) -> None:
        kinds = list(kinds)
        self.by_number = {kind.number: kind for kind in kinds}
        self.by_name = {kind.name: kind for kind in kinds}
        self.by_dtype = {kind.dtype: kind for kind in kinds}


_PLAIN = _Table(
    _element_types(
        [
            (1, "float", np.float32),
            (2, "uint8", np.uint8),
            (3, "int8", np.int8),
            (4, "uint16", np.uint16),
            (5, "int16", np.int16),
            (6, "int32", np.int32),
            (7, "int64", np.int64),
            (STRING, "string", object),
            (BOOL, "bool", np.bool_),
            (10, "float16", np.float16),
            (11, "double", np.float64),
            (12, "uint32", np.uint32),
            (13, "uint64", np.uint64),
            (14, "complex64", np.complex64),
            (15, "complex128", np.complex128),
        ]
    )
)


@functools.cache
def _narrow() -> _Table:
    """Those that NumPy has not by itself."""
    import ml_dtypes  # which takes longer than the rest of a small session, and few models need

    whole = [
        (16, "bfloat16", ml_dtypes.bfloat16),
        (17, "float8e4m3fn", ml_dtypes.float8_e4m3fn),
        (18, "float8e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
        (19, "float8e5m2", ml_dtypes.float8_e5m2),
        (20, "float8e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
        (24, "float8e8m0", ml_dtypes.float8_e8m0fnu),
    ]
    of_4_bits = [
        (21, "uint4", ml_dtypes.uint4),
        (22, "int4", ml_dtypes.int4),
        (23, "float4e2m1", ml_dtypes.float4_e2m1fn),
    ]
    of_2_bits = [(25, "uint2", ml_dtypes.uint2), (26, "int2", ml_dtypes.int2)]
    return _Table([*_element_types(whole), *_element_types(of_4_bits, 4), *_element_types(of_2_bits, 2)])


def by_number(number: int) -> ElementType:
    """The element type with a number of ``onnx.TensorProto.DataType``; RuntimeError for an unknown one."""
    found = _PLAIN.by_number.get(int(number)) or _narrow().by_number.get(int(number))
    if found is None:
        raise RuntimeError(f"tensor type {number} is not supported: use a number of onnx.TensorProto.DataType")
    return found


def by_name(name: str) -> ElementType:
    """The element type called `name` in ``tensor(name)``; RuntimeError for an unknown one."""
    found = _PLAIN.by_name.get(name) or _narrow().by_name.get(name)
    if found is None:
        known = sorted([*_PLAIN.by_name, *_narrow().by_name])
        raise RuntimeError(f"'{name}' is not the name of an element type; known are {', '.join(known)}")
    return found


@functools.lru_cache(maxsize=64)
def by_dtype(dtype: np.dtype[Any]) -> ElementType:
    """The element type that a NumPy dtype holds, whatever its byte order; RuntimeError where ONNX has none."""
    if dtype.kind in "OUT":
        return _PLAIN.by_number[STRING]
    native = dtype.newbyteorder("=") if dtype.byteorder == ">" else dtype
    found = _PLAIN.by_dtype.get(native) or _narrow().by_dtype.get(native)
    if found is None:
        raise RuntimeError(f"Numpy_type {dtype.num} can't be converted to MLDataType: ONNX has no type for {dtype}.")
    return found


def is_float8(dtype: np.dtype[Any]) -> bool:
    """Whether elements are floats of 8 bits, which callers see as bytes."""
    return dtype.itemsize == 1 and dtype.kind in "fV" and dtype.name.startswith("float8")


def requested(kind: Any) -> ElementType:
    """The element type that a caller names as a number, a NumPy dtype or type, or a text that NumPy knows."""
    if isinstance(kind, int) and not isinstance(kind, bool):
        return by_number(kind)
    try:
        dtype = np.dtype(kind)
    except TypeError as error:
        raise RuntimeError(f"Not a valid numpy type: {kind!r}") from error
    return by_dtype(dtype)


def packed_size(kind: ElementType, count: int) -> int:
    """Bytes that `count` elements take when elements smaller than a byte share one."""
    return (kind.bits * count + 7) // 8


def pack(array: np.ndarray[Any, Any], kind: ElementType) -> np.ndarray[Any, Any]:
    """The bytes of an array of elements smaller than a byte, the first element in the lowest bits."""
    per_byte = 8 // kind.bits
    flat = array.reshape(-1).view(np.uint8) & ((1 << kind.bits) - 1)
    padded = np.zeros(packed_size(kind, flat.size) * per_byte, np.uint8)
    padded[: flat.size] = flat
    columns = padded.reshape(-1, per_byte)
    packed = np.zeros(columns.shape[0], np.uint8)
    for index in range(per_byte):
        packed |= columns[:, index] << (kind.bits * index)
    return packed


def unpack(data: np.ndarray[Any, Any], kind: ElementType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The inverse of `pack`: an array of `shape` from the first bytes of `data`."""
    per_byte = 8 // kind.bits
    count = int(np.prod(shape, dtype=np.int64))
    source = data.reshape(-1).view(np.uint8)[: packed_size(kind, count)]
    columns = np.empty((source.size, per_byte), np.uint8)
    for index in range(per_byte):
        columns[:, index] = (source >> (kind.bits * index)) & ((1 << kind.bits) - 1)
    flat = columns.reshape(-1)[:count]
    return flat.view(kind.dtype).reshape(shape)
