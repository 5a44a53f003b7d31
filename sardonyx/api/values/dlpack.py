"""Tensors to and from other libraries through DLPack, without a copy.

NumPy makes and consumes the capsules, so it also owns the rules of their life. For element types that NumPy cannot
name in DLPack (bfloat16, float8) it sees integers of the same size, and the type code in the capsule is exchanged.
The layout is that of ``dlpack.h``.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

UNSIGNED = 1
# (type code, bits) of the element types that NumPy does not export, by their dtype.
_CODES: dict[np.dtype[Any], tuple[int, int]] = {
    np.dtype(ml_dtypes.bfloat16): (4, 16),
    np.dtype(ml_dtypes.float8_e4m3fn): (10, 8),
    np.dtype(ml_dtypes.float8_e4m3fnuz): (11, 8),
    np.dtype(ml_dtypes.float8_e5m2): (12, 8),
    np.dtype(ml_dtypes.float8_e5m2fnuz): (13, 8),
    np.dtype(ml_dtypes.float8_e8m0fnu): (14, 8),
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    """``DLTensor``; in an unversioned capsule it comes first."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_READ_ONLY = 1

_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid.restype = ctypes.c_int
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_get_pointer.restype = ctypes.c_void_p


class _Capsule:
    """Gives a capsule to `numpy.from_dlpack`."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def to_numpy(data: object) -> Array:
    """An array over the memory of a capsule or of an object with ``__dlpack__``.

    RuntimeError for memory that is not the host's or not contiguous; TypeError for other objects.
    """
    capsule = data.__dlpack__() if hasattr(data, "__dlpack__") else data
    tensor, read_only = _tensor_of(capsule)
    if tensor.device_type != 1:
        raise RuntimeError(f"the DLPack tensor is on a device of kind {tensor.device_type}; move it to the host first")
    if not _contiguous(tensor):
        raise RuntimeError("ORT only supports contiguous tensor for now. Copy the tensor to contiguous memory first.")
    dtype = _DTYPES.get((tensor.dtype.code, tensor.dtype.bits))
    if dtype is not None:
        tensor.dtype.code = UNSIGNED
    holder: Any = _Capsule(capsule)
    array = np.from_dlpack(holder)
    if not array.flags.writeable and not read_only:
        array = _writable(array)
    return array if dtype is None else array.view(dtype)


def from_numpy(array: Array, **kwargs: Any) -> object:
    """A capsule over the memory of `array`; `kwargs` are those of the array API's ``__dlpack__``."""
    if array.dtype.hasobject:
        raise RuntimeError("tensors of texts have no DLPack form")
    code = _CODES.get(array.dtype)
    if code is None:
        return array.__dlpack__(**kwargs)
    capsule = array.view(np.dtype(f"u{array.dtype.itemsize}")).__dlpack__(**kwargs)
    _tensor_of(capsule)[0].dtype.code = code[0]
    return capsule


def is_dlpack_uint8_tensor(capsule: object) -> bool:
    """Whether a capsule holds bytes, as bool tensors do after `OrtValueVector.to_dlpacks`."""
    kind = _tensor_of(capsule)[0].dtype
    return (kind.code, kind.bits) == (UNSIGNED, 8)


def _tensor_of(capsule: object) -> tuple[_Tensor, bool]:
    """The tensor that a capsule describes, and whether it says that its memory is read-only."""
    if type(capsule).__name__ == "PyCapsule":
        if _is_valid(capsule, b"dltensor"):
            return _Tensor.from_address(_get_pointer(capsule, b"dltensor")), False
        if _is_valid(capsule, b"dltensor_versioned"):
            managed = _Versioned.from_address(_get_pointer(capsule, b"dltensor_versioned"))
            return managed.tensor, bool(managed.flags & _READ_ONLY)
    raise TypeError("from_dlpack expected a valid DLPack capsule named 'dltensor' that nobody has used yet")


def _contiguous(tensor: _Tensor) -> bool:
    """Whether elements lie in row order without gaps."""
    if not tensor.strides:
        return True
    expected = 1
    shape = tensor.shape[: tensor.ndim]
    if 0 in shape:
        return True
    for axis in reversed(range(tensor.ndim)):
        if shape[axis] != 1 and tensor.strides[axis] != expected:
            return False
        expected *= shape[axis]
    return True


class _Writable:
    """The memory of an array that its owner lets others write, which NumPy marks read-only for lack of a flag."""

    def __init__(self, array: Array) -> None:
        self._owner = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def _writable(array: Array) -> Array:
    return np.asarray(_Writable(array))
