"""One runtime value with its ONNX type: what the C level of onnxruntime calls OrtValue."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.api.values import element_types
from sardonyx.api.values.device import CoreDevice, require_cpu
from sardonyx.api.values.element_types import ElementType
from sardonyx.api.values.sparse_tensor import CoreSparseTensor

Array = np.ndarray[Any, Any]

NOT_A_TENSOR = "Only OrtValues that are Tensors are currently supported"


class CoreValue:
    """A tensor (NumPy array, strings as objects), sequence (list), map (dict), sparse tensor or nothing (None).

    `raw` is the value as the executor sees it. `kind` is the type's text (``tensor(float)``, ``seq(tensor(int64))``);
    it is found from the value where the caller does not state it. A tensor shares the memory of the array that it
    was made from.
    """

    __slots__ = ("_kind", "_owner", "_packed", "raw")

    def __init__(self, raw: Any, kind: str | None = None, owner: object = None) -> None:
        """`owner` is kept alive as long as the value: it holds the memory that `raw` points to."""
        self.raw = raw
        self._kind = kind
        self._owner = owner
        self._packed: Array | None = None

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle 'OrtValue' object: pickle its numpy() instead")

    @staticmethod
    def ortvalue_from_numpy(array: Array, device: CoreDevice) -> CoreValue:
        """A tensor on the memory of `array`; a copy where the array is not contiguous or in foreign byte order."""
        require_cpu(device)
        return CoreValue(tensor_array(array))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(array: Array, onnx_type: int) -> CoreValue:
        """A tensor of another element type over the bytes of `array`, whose elements must be as large."""
        try:
            kind = element_types.by_number(onnx_type)
        except RuntimeError as error:
            raise RuntimeError(f"Not a valid ONNX Tensor data type: {onnx_type}") from error
        size = max(kind.dtype.itemsize, 1)
        if kind.number == element_types.STRING or array.dtype.kind in "OUST" or array.dtype.itemsize != size:
            raise RuntimeError(
                f"Items size in the incoming array: {array.dtype.itemsize} specified by onnxtype: {size} "
                f"({kind.name}); both must be equal"
            )
        array = np.ascontiguousarray(array).reshape(array.shape)
        if kind.bits < 8 and array.dtype != kind.dtype:
            return CoreValue(element_types.unpack(array, kind, array.shape))
        return CoreValue(array.view(kind.dtype))

    @staticmethod
    def ortvalue_from_shape_and_type(shape: Sequence[int], kind: Any, device: CoreDevice) -> CoreValue:
        """A tensor of zeros (empty texts for strings) with an element type that NumPy knows."""
        require_cpu(device)
        return CoreValue(_allocate(shape, element_types.requested(np.float64 if kind is None else kind)))

    @staticmethod
    def ortvalue_from_shape_and_onnx_type(shape: Sequence[int], number: int, device: CoreDevice) -> CoreValue:
        """A tensor of zeros (empty texts for strings) with the element type of an ONNX number."""
        require_cpu(device)
        return CoreValue(_allocate(shape, element_types.by_number(number)))

    @staticmethod
    def ort_value_from_sparse_tensor(tensor: CoreSparseTensor) -> CoreValue:
        return CoreValue(tensor)

    @staticmethod
    def from_dlpack(data: object, is_bool_tensor: bool = False) -> CoreValue:
        """A tensor over the memory of a DLPack capsule or of an object that gives one; no copy."""
        from sardonyx.api.values import dlpack

        array = dlpack.to_numpy(data)
        return CoreValue(array.view(np.bool_) if is_bool_tensor else array)

    def array(self) -> Array:
        """The array of a tensor; RuntimeError for anything else."""
        if not isinstance(self.raw, np.ndarray):
            raise RuntimeError(f"{NOT_A_TENSOR}; this one is {self.data_type() or 'empty'}")
        return self.raw

    def data_type(self) -> str:
        if self._kind is None:
            self._kind = kind_of(self.raw)
        return self._kind

    def element_type(self) -> int:
        """The ONNX number of the elements of a tensor, sparse tensor or sequence of tensors."""
        text = self.data_type()
        if not text or text.startswith(("map(", "seq(map(")):
            raise RuntimeError(f"{NOT_A_TENSOR}; this one is {text or 'empty'}")
        name = text.rstrip(")").rpartition("(")[2]
        return element_types.by_name(name).number

    def shape(self) -> list[int]:
        return self.raw.dense_shape() if isinstance(self.raw, CoreSparseTensor) else list(self.array().shape)

    def has_value(self) -> bool:
        return self.raw is not None

    def is_tensor(self) -> bool:
        return isinstance(self.raw, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self.raw, list) and self.data_type().startswith("seq(tensor")

    def is_sparse_tensor(self) -> bool:
        return isinstance(self.raw, CoreSparseTensor)

    def as_sparse_tensor(self) -> CoreSparseTensor:
        if not isinstance(self.raw, CoreSparseTensor):
            raise RuntimeError(f"The OrtValue is not a sparse tensor but {self.data_type() or 'empty'}")
        return self.raw

    def device_name(self) -> str:
        return "cpu"

    def data_ptr(self) -> int:
        """The address of a tensor's elements; of a packed copy where elements are smaller than a byte."""
        array = self.array()
        if array.dtype.hasobject:
            raise RuntimeError("Only OrtValues of non-string tensors have a data pointer")
        kind = element_types.by_dtype(array.dtype)
        if kind.bits < 8:
            self._packed = element_types.pack(array, kind)
            return int(self._packed.ctypes.data)
        return int(array.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        array = self.array()
        return element_types.packed_size(element_types.by_dtype(array.dtype), array.size)

    def numpy(self) -> Array:
        """A view of a tensor's memory; float8 elements appear as bytes, as onnxruntime gives them."""
        array = self.array()
        return array.view(np.uint8) if element_types.is_float8(array.dtype) else array.view()

    def update_inplace(self, data: Array | CoreValue) -> None:
        """Copy elements into this tensor's memory, in row order: as many of the same type, in whatever shape."""
        target = self.array()
        if isinstance(data, CoreValue):
            source, complaint = data.array(), "The source and destination OrtValues must have the same size"
        else:
            source, complaint = data, "The input size of numpy arrays does not match the size of the OrtValue."
        if source.size != target.size:
            raise RuntimeError(f"{complaint} Got {source.size} elements for {target.size}.")
        given, expected = element_types.by_dtype(source.dtype), element_types.by_dtype(target.dtype)
        if given != expected:
            raise RuntimeError(
                "The source and destination OrtValues must have the same data type: got "
                f"tensor({given.name}) for tensor({expected.name})"
            )
        if not target.flags.writeable:
            raise RuntimeError("The OrtValue stands on a read-only array and cannot be updated in place")
        target.reshape(-1)[...] = _texts(source).reshape(-1)

    def to_dlpack(self) -> object:
        """A capsule over this tensor's memory; bools as bytes, see `OrtValueVector.bool_tensor_indices`."""
        from sardonyx.api.values import dlpack

        array = self.array()
        return dlpack.from_numpy(array.view(np.uint8) if array.dtype == np.bool_ else array)

    def __dlpack__(self, stream: object = None, **kwargs: Any) -> object:
        from sardonyx.api.values import dlpack

        return dlpack.from_numpy(self.array(), **kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def copy_tensors(src: Sequence[CoreValue], dst: Sequence[CoreValue], stream: object = None) -> None:
    """Copy each tensor of `src` into the memory of its counterpart in `dst`, of the same type and size."""
    if not src or len(src) != len(dst):
        raise RuntimeError(f"Invalid arguments provided to CopyTensors: {len(src)} sources for {len(dst)} targets.")
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)


def tensor_array(value: Any) -> Array:
    """An array as tensors are stored: native byte order, contiguous, strings as objects; RuntimeError otherwise."""
    if not isinstance(value, np.ndarray):
        raise RuntimeError(
            "Creation of OrtValues is currently only supported from non-string numpy arrays or arrays of texts, "
            f"not from {type(value)}"
        )
    if value.dtype.kind in "MmS":
        raise RuntimeError(
            "Creation of OrtValues is currently only supported from non-string numpy arrays or arrays of texts, "
            f"not from an array of {value.dtype}"
        )
    if element_types.by_dtype(value.dtype).number == element_types.STRING:
        return _texts(value)
    native = value.astype(value.dtype.newbyteorder("="), copy=False)
    array = native if type(native) is np.ndarray else np.asarray(native)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def pointer_array(address: int, kind: ElementType, shape: Sequence[int]) -> Array:
    """An array over foreign memory, which the caller keeps alive."""
    dims = tuple(int(dim) for dim in shape)
    if kind.number == element_types.STRING:
        raise RuntimeError("Only binding of non-string Tensors is currently supported")
    if kind.bits < 8:
        raise RuntimeError(f"Memory of packed {kind.name} elements cannot be bound; bind an OrtValue or an array")
    if any(dim < 0 for dim in dims):
        raise RuntimeError(f"Tensor shape.Size() must be >= 0; got the shape {list(dims)}")
    count = math.prod(dims)
    if count == 0:
        return np.empty(dims, kind.dtype)
    if int(address) == 0:
        raise RuntimeError(f"Memory at address 0 cannot be bound as a tensor of shape {list(dims)}")
    memory = (ctypes.c_char * (count * kind.dtype.itemsize)).from_address(int(address))
    array: Array = np.frombuffer(memoryview(memory).cast("B"), np.uint8).view(kind.dtype).reshape(dims)
    return array


def kind_of(raw: Any) -> str:
    """The text of the type of a runtime value; empty for None and for an empty list or dict."""
    if isinstance(raw, np.ndarray):
        return f"tensor({element_types.by_dtype(raw.dtype).name})"
    if isinstance(raw, CoreSparseTensor):
        return raw.data_type()
    if isinstance(raw, list) and raw:
        return f"seq({kind_of(raw[0])})"
    if isinstance(raw, dict) and raw:
        key, value = next(iter(raw.items()))
        name = "string" if isinstance(key, str) else "int64"
        return f"map({name},{_scalar_kind(value)})"
    return ""


def _scalar_kind(value: Any) -> str:
    """The type of one value of a map: a NumPy or Python scalar, or a tensor."""
    if isinstance(value, (np.ndarray, list, dict)):
        return kind_of(value)
    if isinstance(value, np.generic):
        return f"tensor({element_types.by_dtype(value.dtype).name})"
    return f"tensor({'string' if isinstance(value, str) else 'int64' if isinstance(value, int) else 'float'})"


def _allocate(shape: Sequence[int], kind: ElementType) -> Array:
    dims = tuple(_dimension(dim) for dim in shape)
    if any(dim < 0 for dim in dims):
        raise RuntimeError(f"Tensor shape.Size() must be >= 0; got the shape {list(dims)}")
    if kind.number == element_types.STRING:
        return np.full(dims, "", object)
    if math.prod(dims) * kind.dtype.itemsize > sys.maxsize:
        raise RuntimeError(f"Integer overflow: a tensor of shape {list(dims)} has more bytes than there are addresses")
    return np.zeros(dims, kind.dtype)


def _dimension(dim: Any) -> int:
    try:
        return int(dim.__index__())
    except AttributeError as error:
        raise TypeError(f"a shape consists of whole numbers, not of {dim!r}") from error


def _texts(array: Array) -> Array:
    """Texts as an object array of str; other arrays as they are."""
    if array.dtype.kind not in "OUT":
        return array
    texts = np.empty(array.shape, object)
    texts.reshape(-1)[:] = [str(item) for item in array.reshape(-1)]
    return texts
