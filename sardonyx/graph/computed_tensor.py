"""Constants that are computed from other constants whenever somebody reads them, and held by nobody."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import tensor_array
from sardonyx.runtime.memory.constant_memory import passing_empty
from sardonyx.runtime.memory.mapped_pages import release_pages

Array = np.ndarray[Any, Any]

# Elements that are scaled at a time: their float64 products stay in the second cache.
_BUFFERED = 1 << 15


class ComputedTensor(ir.LazyTensor):
    """A tensor of this type and shape whose contents `compute` gives.

    They exist only while somebody holds what `numpy` gave: weights stay where they are in the mapped file, and one
    that is packed into another layout is not in memory a second time. `compute` does not hold the tensor: a circle
    would keep its parts until the garbage collector comes.
    """

    __slots__ = ()

    def __init__(self, compute: Callable[[], Array], dtype: ir.DataType, shape: Sequence[int], name: str) -> None:
        super().__init__(lambda: ir.Tensor(compute(), dtype=dtype, name=name), dtype, ir.Shape(shape), name=name)


class JoinedTensor(ComputedTensor):
    """Tensors that are equal in all dimensions but the last, one behind the other along the last."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[ir.TensorProtocol], name: str) -> None:
        shapes = [part.shape.numpy() for part in parts]
        head, dtype = shapes[0][:-1], parts[0].dtype
        if any(shape[:-1] != head for shape in shapes) or any(part.dtype != dtype for part in parts):
            raise ValueError(f"the parts of {name} differ in type or in a dimension other than the last")
        self.parts = tuple(parts)
        shape = (*head, sum(shape[-1] for shape in shapes))
        super().__init__(partial(_joined, self.parts, shape), dtype, shape, name)


class ScaledTensor(ComputedTensor):
    """Filters [filters, ...], each times its number of `factor`, a float64 vector: rounded once."""

    __slots__ = ("factor", "source")

    def __init__(self, source: ir.TensorProtocol, factor: Array, name: str) -> None:
        super().__init__(partial(_scaled, source, factor), source.dtype, source.shape.numpy(), name)
        self.source = source
        self.factor = factor


def _joined(parts: Sequence[ir.TensorProtocol], shape: tuple[int, ...]) -> Array:
    arrays = [np.asarray(part.numpy()) for part in parts]
    whole = passing_empty(shape, arrays[0].dtype)
    np.concatenate(arrays, axis=-1, out=whole)
    for array in arrays:
        release_pages(array)
    return whole


def _scaled(source: ir.TensorProtocol, factor: Array) -> Array:
    filters = tensor_array(source)
    result = scaled_filters(filters, factor, passing_empty(filters.shape, filters.dtype))
    release_pages(filters)
    return result


def scaled_filters(weight: Array, factor: Array, result: Array) -> Array:
    """Filters [filters, ...] times a float64 factor for each, in `result`: multiplied in float64, rounded once.

    As many filters at a time as a small buffer takes: float64 copies of all of them would be fresh memory of the
    system, which costs more than the products.
    """
    size = math.prod(weight.shape[1:])
    filters, scaled = weight.reshape(len(weight), size), result.reshape(len(weight), size)
    wide = np.empty((max(1, _BUFFERED // max(1, size)), size))
    for first in range(0, len(filters), len(wide)):
        part = filters[first : first + len(wide)]
        product = wide[: len(part)]
        np.multiply(part, factor[first : first + len(part), None], out=product)
        scaled[first : first + len(part)] = product
    return result
