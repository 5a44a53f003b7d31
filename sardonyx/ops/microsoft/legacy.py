"""Old copies of operators that ONNX took over later, as onnxruntime keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import Dim, Fact, tensor, unknown_dim
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.rules import DOMAIN, Array, SameAsFirst, dim, like, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


def scalar(array: Array | None, name: str) -> Any:
    """The value of an input of one element; None where it is absent."""
    if array is None:
        return None
    if array.size != 1:
        raise ValueError(f"input '{name}' must have one element, got shape {array.shape}")
    return array.reshape(())[()]


@operator("Trilu", domain=DOMAIN)
class Trilu(SameAsFirst):
    """The upper or lower triangle of each matrix from diagonal k, zeros elsewhere."""

    inputs: ClassVar[str] = "X, k?"
    outputs: ClassVar[str] = "Y"
    upper: int = 1
    host_reason: ClassVar[str] = "a triangle of a matrix"

    def run(self, *inputs: Any) -> Sequence[Array]:
        x = inputs[0]
        if x.ndim < 2:
            raise ValueError(f"input 'X' is expected to have at least 2 dimensions, got {x.ndim}")
        k = scalar(inputs[1] if len(inputs) > 1 else None, "k")
        rows, columns = np.indices(x.shape[-2:], sparse=True)
        offset = columns - rows
        kept = offset >= int(k or 0) if self.upper else offset <= int(k or 0)
        return (np.where(kept, x, x.dtype.type(0)),)


@operator("Unique", domain=DOMAIN)
class Unique(Operator):
    """The distinct elements of a vector in the order of their first places, each element's number, and counts."""

    inputs: ClassVar[str] = "x"
    outputs: ClassVar[str] = "y, idx, counts"
    host_reason: ClassVar[str] = "the size of the output depends on the data"

    def run(self, *inputs: Any) -> Sequence[Array]:
        (x,) = inputs
        if x.ndim != 1:
            raise ValueError(f"input 'x' is expected to have 1 dimension, got {x.ndim}")
        _, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
        order = np.argsort(first)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return x[first[order]], place[inverse].astype(np.int64), counts[order].astype(np.int64)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, count = inputs[0], unknown_dim()
        return [like(x, (count,)), tensor(ir.DataType.INT64, (dim(x, 0),)), tensor(ir.DataType.INT64, (count,))]


@operator("Range", domain=DOMAIN)
class Range(Operator):
    """start, start + delta, … below limit (above it for a negative delta)."""

    inputs: ClassVar[str] = "start, limit, delta?"
    outputs: ClassVar[str] = "Y"
    host_reason: ClassVar[str] = "the size of the output depends on the data"

    def run(self, *inputs: Any) -> Sequence[Array]:
        start, limit = scalar(inputs[0], "start"), scalar(inputs[1], "limit")
        delta = scalar(inputs[2] if len(inputs) > 2 else None, "delta")
        step = start.dtype.type(1) if delta is None else delta
        if step == 0:
            raise ValueError("input 'delta' must not be 0")
        count = max(int(np.ceil((float(limit) - float(start)) / float(step))), 0)
        values: Array
        if start.dtype.kind == "f":
            values = float(start) + np.arange(count) * float(step)
        else:
            values = int(start) + np.arange(count, dtype=np.int64) * int(step)
        return (values.astype(start.dtype),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        numbers = [fact.integers() if fact is not None else [1] for fact in (*inputs, None)[:3]]
        whole = inputs[0] is not None and inputs[0].dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
        if whole and all(numbers):
            start, limit, step = (values[0] for values in numbers if values)
            if step:
                return [like(inputs[0], (max(-(-(limit - start) // step), 0),))]
        return [like(inputs[0], (unknown_dim(),))]


@operator("Pad", domain=DOMAIN)
class Pad(Operator):
    """Padding by constants, reflection or edges, as many elements at each side as `pads` says; negative ones crop."""

    inputs: ClassVar[str] = "data, pads, value?"
    outputs: ClassVar[str] = "output"
    mode: str = "constant"
    host_reason: ClassVar[str] = "the size of the output depends on the data"

    def run(self, *inputs: Any) -> Sequence[Array]:
        data, pads = inputs[0], inputs[1].reshape(-1)
        if pads.size != 2 * data.ndim:
            raise ValueError(f"input 'pads' must have {2 * data.ndim} elements, got shape {inputs[1].shape}")
        if self.mode not in ("constant", "reflect", "edge"):
            raise ValueError(f"attribute 'mode' must be constant, reflect or edge, not '{self.mode}'")
        value = scalar(inputs[2] if len(inputs) > 2 else None, "value")
        around = [(int(pads[axis]), int(pads[axis + data.ndim])) for axis in range(data.ndim)]
        for (before, after), size in zip(around, data.shape, strict=True):
            if before + after + size < 0:
                raise ValueError(f"input 'pads' {pads.tolist()} crops more than the shape {data.shape} holds")
        inner = tuple(
            slice(max(-before, 0), size - max(-after, 0))
            for (before, after), size in zip(around, data.shape, strict=True)
        )
        widths = [(max(before, 0), max(after, 0)) for before, after in around]
        if self.mode == "constant":
            return (np.pad(data[inner], widths, constant_values=data.dtype.type(0) if value is None else value),)
        return (np.pad(data[inner], widths, mode="reflect" if self.mode == "reflect" else "edge"),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data, pads = inputs[0], inputs[1]
        if data is None or data.shape is None:
            return [like(data, None)]
        numbers = pads.integers() if pads is not None else None
        rank = len(data.shape)
        if numbers is None or len(numbers) != 2 * rank:
            return [like(data, [unknown_dim()] * rank)]
        sums = [before + after for before, after in zip(numbers[:rank], numbers[rank:], strict=True)]
        return [like(data, [size + extra if extra else size for size, extra in zip(data.shape, sums, strict=True)])]


@operator("GatherND", domain=DOMAIN)
class GatherND(Operator):
    """data[indices[..., 0], indices[..., 1], …] for each row of the last axis of the indices."""

    inputs: ClassVar[str] = "data, indices"
    outputs: ClassVar[str] = "output"
    host_reason: ClassVar[str] = "a gather"

    def run(self, *inputs: Any) -> Sequence[Array]:
        data, indices = inputs
        if indices.ndim == 0 or indices.shape[-1] > data.ndim:
            raise ValueError(f"rows of 'indices' of shape {indices.shape} do not index data of shape {data.shape}")
        places = tuple(indices[..., axis] for axis in range(indices.shape[-1]))
        for axis, place in enumerate(places):
            if place.size and (place.min() < -data.shape[axis] or place.max() >= data.shape[axis]):
                raise ValueError(f"input 'indices' leaves axis {axis} of 'data', which has {data.shape[axis]} elements")
        return (np.asarray(data[places]) if places else np.broadcast_to(data, indices.shape[:-1] + data.shape).copy(),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data, indices = inputs
        depth = dim(indices, -1)
        if data is None or indices is None or data.shape is None or indices.shape is None or not isinstance(depth, int):
            return [like(data, None)]
        return [like(data, (*indices.shape[:-1], *data.shape[depth:]))]


@operator("ExpandDims", domain=DOMAIN)
class ExpandDims(Operator):
    """An axis of size 1 at `axis`, counted from the end where it is negative."""

    inputs: ClassVar[str] = "X, axis"
    outputs: ClassVar[str] = "Y"
    host_reason: ClassVar[str] = "the shape of the output depends on the data"

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, axis = inputs[0], int(scalar(inputs[1], "axis"))
        if not -x.ndim - 1 <= axis <= x.ndim:
            raise ValueError(f"input 'axis' must be between {-x.ndim - 1} and {x.ndim}, not {axis}")
        return (np.expand_dims(x, axis),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, where = inputs
        if x is None or x.shape is None:
            return [like(x, None)]
        numbers = where.integers() if where is not None else None
        rank = len(x.shape) + 1
        if not numbers:
            return [like(x, [unknown_dim()] * rank)]
        if not -rank <= numbers[0] < rank:
            raise ValueError(f"input 'axis' must be between {-rank} and {rank - 1}, not {numbers[0]}")
        shape: list[Dim] = list(x.shape)
        shape.insert(numbers[0] % rank, 1)
        return [like(x, shape)]


@operator("Inverse", domain=DOMAIN)
class Inverse(SameAsFirst):
    """The inverse of each matrix."""

    inputs: ClassVar[str] = "X"
    outputs: ClassVar[str] = "Y"
    host_reason: ClassVar[str] = "a matrix inversion"

    def run(self, *inputs: Any) -> Sequence[Array]:
        (x,) = inputs
        if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
            raise ValueError(f"input 'X' must hold square matrices, got shape {x.shape}")
        return (np.linalg.inv(wide(x)).astype(x.dtype),)


@operator("IsAllFinite", domain=DOMAIN)
class IsAllFinite(Operator):
    """Whether no input holds a NaN or an infinity; only one of the two counts where an attribute says so."""

    inputs: ClassVar[str] = "input*"
    outputs: ClassVar[str] = "output"
    isinf_only: int = 0
    isnan_only: int = 0
    host_reason: ClassVar[str] = "a reduction over several tensors"

    def run(self, *inputs: Any) -> Sequence[Array]:
        if self.isinf_only and self.isnan_only:
            raise ValueError("attributes 'isinf_only' and 'isnan_only' exclude each other")
        found = np.isinf if self.isinf_only else np.isnan if self.isnan_only else _not_finite
        return (np.asarray(not any(bool(found(wide(x)).any()) for x in inputs)),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [tensor(ir.DataType.BOOL, ())]


def _not_finite(x: Array) -> Array:
    return np.asarray(~np.isfinite(x))


@operator("SampleOp", domain=DOMAIN)
class SampleOp(SameAsFirst):
    """Its input."""

    inputs: ClassVar[str] = "X"
    outputs: ClassVar[str] = "Y"
    host_reason: ClassVar[str] = "a copy"

    def run(self, *inputs: Any) -> Sequence[Array]:
        return (inputs[0].copy(),)
