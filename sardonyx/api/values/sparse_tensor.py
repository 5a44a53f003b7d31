"""Sparse tensors in coordinate, compressed row and block form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from sardonyx.api.enums import OrtSparseFormat
from sardonyx.api.values import element_types
from sardonyx.api.values.device import CoreDevice, OrtDevice, require_cpu

Array = np.ndarray[Any, Any]


class SparseCooView:
    """The indices of a tensor in coordinate form: int64, one per value in row order, or [values, 2]."""

    def __init__(self, indices: Array) -> None:
        self._indices = indices

    def indices(self) -> Array:
        return _read_only(self._indices)


class SparseCsrView:
    """The indices of a matrix in compressed row form: columns per value, and where each row begins."""

    def __init__(self, inner: Array, outer: Array) -> None:
        self._inner = inner
        self._outer = outer

    def inner(self) -> Array:
        return _read_only(self._inner)

    def outer(self) -> Array:
        return _read_only(self._outer)


class SparseBlockSparseView:
    """The indices of a tensor in block form."""

    def __init__(self, indices: Array) -> None:
        self._indices = indices

    def indices(self) -> Array:
        return _read_only(self._indices)


_Form = TypeVar("_Form", SparseCooView, SparseCsrView, SparseBlockSparseView)
_View = SparseCooView | SparseCsrView | SparseBlockSparseView

_FORMATS = {
    SparseCooView: OrtSparseFormat.ORT_SPARSE_COO,
    SparseCsrView: OrtSparseFormat.ORT_SPARSE_CSRC,
    SparseBlockSparseView: OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE,
}


class CoreSparseTensor:
    """Values, where they lie, and the shape of the dense tensor (the class that the C level calls SparseTensor)."""

    def __init__(self, shape: Sequence[int], values: Array, view: _View) -> None:
        self._shape = [int(dim) for dim in shape]
        self._values = values
        self._view = view

    @staticmethod
    def sparse_coo_from_numpy(
        shape: Sequence[int], values: Array, indices: Array, device: CoreDevice
    ) -> CoreSparseTensor:
        """Coordinates: `indices` one per value in the flattened tensor, or [values, 2] of a matrix."""
        require_cpu(device)
        flat = np.asarray(indices, np.int64)
        if flat.shape not in ((values.size,), (values.size, 2)) and flat.size not in (values.size, 2 * values.size):
            raise RuntimeError(f"{values.size} values need {values.size} or {2 * values.size} indices, not {flat.size}")
        return CoreSparseTensor(shape, _values(values), SparseCooView(flat))

    @staticmethod
    def sparse_csr_from_numpy(
        shape: Sequence[int], values: Array, inner: Array, outer: Array, device: CoreDevice
    ) -> CoreSparseTensor:
        """Compressed rows of a matrix: a column per value, and rows + 1 offsets (none for an empty tensor)."""
        require_cpu(device)
        if len(shape) != 2:
            raise RuntimeError(f"a tensor in compressed row form has two dimensions, not {len(shape)}")
        columns, offsets = np.asarray(inner, np.int64), np.asarray(outer, np.int64)
        if columns.size != values.size or (values.size and offsets.size != int(shape[0]) + 1):
            raise RuntimeError(
                f"{values.size} values in {shape[0]} rows need {values.size} inner and {int(shape[0]) + 1} outer "
                f"indices, not {columns.size} and {offsets.size}"
            )
        return CoreSparseTensor(shape, _values(values), SparseCsrView(columns, offsets))

    @staticmethod
    def blocksparse_from_numpy(
        shape: Sequence[int], values: Array, indices: Array, device: CoreDevice
    ) -> CoreSparseTensor:
        """Blocks of values with the int32 coordinates of each block."""
        require_cpu(device)
        return CoreSparseTensor(shape, _values(values), SparseBlockSparseView(np.asarray(indices, np.int32)))

    def values(self) -> Array:
        """The values, read-only."""
        return _read_only(self._values)

    def dense_shape(self) -> list[int]:
        return list(self._shape)

    def coordinates(self) -> tuple[Array, Array, Array]:
        """The row and the column of each value of a matrix, and the values; ValueError for other tensors."""
        if len(self._shape) != 2:
            raise ValueError(f"a sparse matrix has two dimensions, not {len(self._shape)}")
        view = self._view
        if isinstance(view, SparseCsrView):
            offsets = view.outer()
            return np.repeat(np.arange(max(offsets.size - 1, 0)), np.diff(offsets)), view.inner(), self._values
        if isinstance(view, SparseBlockSparseView):
            raise ValueError("a sparse matrix must be in coordinate or compressed row form, not in blocks")
        places = view.indices()
        if places.size == self._values.size:
            rows, columns = np.divmod(places.reshape(-1), max(self._shape[1], 1))
            return rows, columns, self._values
        rows, columns = places.reshape(-1, 2).T
        return rows, columns, self._values

    def data_type(self) -> str:
        return f"sparse_tensor({element_types.by_dtype(self._values.dtype).name})"

    def device_name(self) -> str:
        return "cpu"

    @property
    def format(self) -> OrtSparseFormat:
        return _FORMATS[type(self._view)]

    def get_coo_data(self) -> SparseCooView:
        return self._as(SparseCooView)

    def get_csrc_data(self) -> SparseCsrView:
        return self._as(SparseCsrView)

    def get_blocksparse_data(self) -> SparseBlockSparseView:
        return self._as(SparseBlockSparseView)

    def to_cuda(self, device: CoreDevice) -> CoreSparseTensor:
        raise RuntimeError("Cuda is not available in this build")

    def to_dense(self) -> Array:
        """The tensor with its zeros (empty texts among texts)."""
        text = self._values.dtype.hasobject
        dense: Array = np.full(self._shape, "", object) if text else np.zeros(self._shape, self._values.dtype)
        if isinstance(self._view, SparseBlockSparseView):
            raise RuntimeError("a tensor in block form has no defined dense form")
        if isinstance(self._view, SparseCooView) and self._view.indices().size == self._values.size:
            dense.reshape(-1)[self._view.indices().reshape(-1)] = self._values.reshape(-1)
        else:
            rows, columns, values = self.coordinates()
            dense[rows, columns] = values.reshape(-1)
        return dense

    def _as(self, form: type[_Form]) -> _Form:
        if not isinstance(self._view, form):
            wanted = {SparseCooView: "COO", SparseCsrView: "CSR(C)", SparseBlockSparseView: "BlockSparse"}[form]
            raise RuntimeError(f"This sparse tensor does not contain {wanted} format but {self.format.name}")
        return self._view


class SparseTensor:
    """A sparse tensor as callers make and read it."""

    def __init__(self, sparse_tensor: CoreSparseTensor) -> None:
        if not isinstance(sparse_tensor, CoreSparseTensor):
            raise ValueError("SparseTensor is made by sparse_coo_from_numpy or sparse_csr_from_numpy")
        self._tensor = sparse_tensor

    def _get_c_tensor(self) -> CoreSparseTensor:
        return self._tensor

    @classmethod
    def sparse_coo_from_numpy(
        cls, dense_shape: Sequence[int], values: Array, coo_indices: Array, ort_device: OrtDevice
    ) -> SparseTensor:
        """A tensor in coordinate form over the memory of `values` and `coo_indices` (int64)."""
        device = ort_device._get_c_device()
        return cls(CoreSparseTensor.sparse_coo_from_numpy(dense_shape, values, coo_indices, device))

    @classmethod
    def sparse_csr_from_numpy(
        cls,
        dense_shape: Sequence[int],
        values: Array,
        inner_indices: Array,
        outer_indices: Array,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """A matrix in compressed row form over the memory of the given arrays."""
        device = ort_device._get_c_device()
        made = CoreSparseTensor.sparse_csr_from_numpy(dense_shape, values, inner_indices, outer_indices, device)
        return cls(made)

    def values(self) -> Array:
        """The values that are not zero, read-only."""
        return self._tensor.values()

    def as_coo_view(self) -> SparseCooView:
        """The int64 indices in coordinate form; RuntimeError for a tensor in another form."""
        return self._tensor.get_coo_data()

    def as_csrc_view(self) -> SparseCsrView:
        """The int64 indices in compressed row form; RuntimeError for a tensor in another form."""
        return self._tensor.get_csrc_data()

    def as_blocksparse_view(self) -> SparseBlockSparseView:
        """The int32 indices in block form; RuntimeError for a tensor in another form."""
        return self._tensor.get_blocksparse_data()

    def to_cuda(self, ort_device: OrtDevice) -> SparseTensor:
        """Always a RuntimeError: tensors stay on the host."""
        return SparseTensor(self._tensor.to_cuda(ort_device._get_c_device()))

    def format(self) -> OrtSparseFormat:
        """Which of the forms it is in."""
        return self._tensor.format

    def dense_shape(self) -> list[int]:
        """The shape of the tensor with its zeros."""
        return self._tensor.dense_shape()

    def data_type(self) -> str:
        """The type as text: ``sparse_tensor(float)``…"""
        return self._tensor.data_type()

    def device_name(self) -> str:
        """Where the tensor is: ``cpu``."""
        return self._tensor.device_name()


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _values(values: Array) -> Array:
    element_types.by_dtype(values.dtype)
    return values.astype(object) if values.dtype.kind in "UT" else np.ascontiguousarray(values)
