"""Values as callers hold them: tensors, sequences, maps, sparse tensors, made without a copy where memory allows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.api.enums import OrtDeviceVendorId
from sardonyx.api.values import core_value
from sardonyx.api.values.core_value import CoreValue
from sardonyx.api.values.device import CoreDevice, OrtDevice
from sardonyx.api.values.sparse_tensor import SparseTensor

if TYPE_CHECKING:
    from sardonyx.api.values.memory_info import OrtMemoryInfo

Array = np.ndarray[Any, Any]
Vendor = int | OrtDeviceVendorId


class OrtValue:
    """A value with its ONNX type, to feed to a session, to bind, or to exchange with other libraries.

    A tensor made from an array shares its memory; `numpy()` is a view of it. Beyond onnxruntime, tensors of texts and
    of ml_dtypes elements (bfloat16, float8, int4…) can be made from arrays too, and come back as such.
    """

    def __init__(self, ortvalue: CoreValue, numpy_obj: Array | None = None, session: object = None) -> None:
        if not isinstance(ortvalue, CoreValue):
            raise ValueError("`Provided ortvalue` needs to be of type OrtValue of the C level")
        self._ortvalue = ortvalue
        self._numpy_obj = numpy_obj

    def _get_c_value(self) -> CoreValue:
        return self._ortvalue

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Array, /, device_type: str = "cpu", device_id: int = 0, vendor_id: Vendor = -1
    ) -> OrtValue:
        """A tensor on the memory of an array, which it keeps alive.

        A copy is made only of arrays that are not contiguous, of foreign byte order, or of texts. RuntimeError for
        what is no array, for element types that ONNX lacks and for devices without memory of their own.
        """
        device = OrtDevice.make(device_type, device_id, vendor_id)._get_c_device()
        return cls(CoreValue.ortvalue_from_numpy(numpy_obj, device), numpy_obj)

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, /, onnx_element_type: int) -> OrtValue:
        """A tensor whose element type is an ONNX number, over the bytes of an array with elements as large.

        Bytes that hold two or more elements (int4, int2) are unpacked, so that case is a copy.
        """
        if not isinstance(data, np.ndarray):
            raise TypeError(f"expected a numpy.ndarray, not {type(data)}")
        return cls(CoreValue.ortvalue_from_numpy_with_onnx_type(data, onnx_element_type), data)

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: Vendor = -1,
        memory_info: OrtMemoryInfo | None = None,
    ) -> OrtValue:
        """A tensor of zeros; `element_type` is a NumPy type, dtype or name, or an ONNX number (bfloat16 is 16)."""
        if memory_info is not None:
            if (device_type, device_id, int(vendor_id)) != ("cpu", 0, -1):
                warnings.warn(
                    "device_type, device_id, and vendor_id are ignored when memory_info is provided.", stacklevel=2
                )
            device: CoreDevice = memory_info.core_device()
        else:
            device = OrtDevice.make(device_type, device_id, vendor_id)._get_c_device()
        if isinstance(element_type, int) and not isinstance(element_type, bool):
            return cls(CoreValue.ortvalue_from_shape_and_onnx_type(shape, element_type, device))
        return cls(CoreValue.ortvalue_from_shape_and_type(shape, element_type, device))

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: SparseTensor) -> OrtValue:
        """A value that is a sparse tensor."""
        return cls(CoreValue.ort_value_from_sparse_tensor(sparse_tensor._get_c_tensor()))

    def as_sparse_tensor(self) -> SparseTensor:
        """The sparse tensor that the value is; RuntimeError for other values."""
        return SparseTensor(self._ortvalue.as_sparse_tensor())

    def data_ptr(self) -> int:
        """The address of a tensor's elements; of a packed copy where elements are smaller than a byte."""
        return self._ortvalue.data_ptr()

    def device_name(self) -> str:
        """Where the value is: ``cpu``."""
        return self._ortvalue.device_name()

    def shape(self) -> list[int]:
        """The sizes of a tensor, dense or sparse; RuntimeError for other values."""
        return self._ortvalue.shape()

    def data_type(self) -> str:
        """The type as text: ``tensor(float)``, ``seq(tensor(int64))``…"""
        return self._ortvalue.data_type()

    def element_type(self) -> int:
        """The ONNX number of a tensor's elements."""
        return self._ortvalue.element_type()

    def tensor_size_in_bytes(self) -> int:
        """The size of a tensor's elements, packed where they are smaller than a byte."""
        return self._ortvalue.tensor_size_in_bytes()

    def has_value(self) -> bool:
        """Whether it holds anything."""
        return self._ortvalue.has_value()

    def is_tensor(self) -> bool:
        """Whether it is a dense tensor."""
        return self._ortvalue.is_tensor()

    def is_sparse_tensor(self) -> bool:
        """Whether it is a sparse tensor."""
        return self._ortvalue.is_sparse_tensor()

    def is_tensor_sequence(self) -> bool:
        """Whether it is a sequence of tensors."""
        return self._ortvalue.is_tensor_sequence()

    def numpy(self) -> Array:
        """A view of a tensor's memory; RuntimeError for other values. Float8 elements appear as bytes."""
        return self._ortvalue.numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, *, stream: object = None, **kwargs: Any) -> object:
        """A capsule over this tensor's memory, bools as bools; `kwargs` are those of the array API."""
        return self._ortvalue.__dlpack__(stream, **kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._ortvalue.__dlpack_device__()

    @classmethod
    def from_dlpack(cls, data: object, /) -> OrtValue:
        """A tensor over the memory of an object with ``__dlpack__`` or of a capsule; no copy."""
        return cls(CoreValue.from_dlpack(data))

    @property
    def _is_webgpu_buffer(self) -> bool:
        return False

    def update_inplace(self, data: Array | OrtValue) -> None:
        """Copy elements of an array or a value into this tensor's memory: as many, of the same type, any shape.

        RuntimeError where number or type differ (onnxruntime reinterprets the bytes of another type).
        """
        if isinstance(data, OrtValue):
            self._ortvalue.update_inplace(data._ortvalue)
        elif isinstance(data, np.ndarray):
            self._ortvalue.update_inplace(data)
        else:
            raise TypeError("data must be a numpy.ndarray or an OrtValue.")


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: object = None) -> None:
    """Copy each tensor of `src` into the memory of its counterpart in `dst`, of the same type and size."""
    core_value.copy_tensors([value._ortvalue for value in src], [value._ortvalue for value in dst], stream)
