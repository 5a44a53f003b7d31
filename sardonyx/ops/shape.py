"""Shapes as values, and other shapes for the same elements: Shape, Size, Reshape, Squeeze, Expand, Flatten…"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.kernel.program import Host, Kernel, View
from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import MAXIMUM_ELEMENTS, UNKNOWN, Dim, Dims, Fact, broadcast, tensor, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator

# As many as NumPy's arrays may have.
_MOST_DIMENSIONS = 64


class Viewing(Operator):
    """An operator whose first output is its first input's memory under another description."""

    # Whether the view holds the elements in row-major order under another shape.
    is_reshape: ClassVar[bool] = False

    def view(self, *inputs: Any) -> Array:
        """The view of the first input."""
        raise NotImplementedError

    def run(self, *inputs: Value) -> Sequence[Value]:
        return (self.view(*inputs),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return View(self.view, self.is_reshape)


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front; ValueError where the tensor has no such axis."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is out of range for a tensor of {rank} dimensions")
    return axis % rank


def axes_of(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front; ValueError where one is out of range or comes twice."""
    plain = tuple([axis_of(int(axis), rank) for axis in axes])
    if len(plain) > 1 and len(set(plain)) != len(plain):
        raise ValueError(f"axes {list(axes)} name one axis twice")
    return plain


def unknown_shape(rank: int) -> Dims:
    """Dimensions of which nothing is known; ValueError for more than arrays have."""
    if rank > _MOST_DIMENSIONS:
        raise ValueError(f"a result of {rank} dimensions: there may be {_MOST_DIMENSIONS} at most")
    return tuple(unknown_dim() for _ in range(rank))


@operator("Shape")
class Shape(Operator):
    """The dimensions from `start` up to `end` as a vector; both are clamped to the rank."""

    host_reason = "it reads no elements"
    start: int = 0
    end: int | None = None

    def bounds(self, rank: int) -> slice:
        start, end, _ = slice(self.start, self.end).indices(rank)
        return slice(start, max(start, end))

    def run(self, data: Array) -> Sequence[Value]:
        return (np.array(data.shape[self.bounds(data.ndim)], np.int64),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        shape = (inputs[0] or UNKNOWN).shape
        if shape is None:
            return [tensor(ir.DataType.INT64, [unknown_dim()])]
        chosen = shape[self.bounds(len(shape))]
        return [tensor(ir.DataType.INT64, [len(chosen)], chosen)]


@operator("Size")
class Size(Operator):
    """The number of elements, as a scalar."""

    host_reason = "it reads no elements"

    def run(self, data: Array) -> Sequence[Value]:
        return (np.array(data.size, np.int64),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        shape = (inputs[0] or UNKNOWN).shape
        return [tensor(ir.DataType.INT64, [], None if shape is None else [dims.product(shape)])]


class Reshaping(Viewing):
    """What all forms of Reshape share: 0 copies a dimension, -1 is what is left over."""

    is_reshape = True

    def wanted(self, shape: tuple[int, ...], target: Sequence[int], allowzero: bool) -> tuple[int, ...]:
        """The output's shape; ValueError where the elements do not fit it."""
        result = list(target)
        for index, dim in enumerate(result):
            if dim == 0 and not allowzero:
                if index >= len(shape):
                    raise ValueError(f"dimension {index} of the shape {list(target)} is 0, but the input has no such")
                result[index] = shape[index]
        size = math.prod(shape)
        holes = [index for index, dim in enumerate(result) if dim == -1]
        rest = math.prod(dim for dim in result if dim != -1)
        if len(holes) > 1 or any(dim < -1 for dim in result):
            raise ValueError(f"a shape has at most one -1 and no other negative dimensions: {list(target)}")
        if holes and rest and size % rest == 0:
            result[holes[0]] = size // rest
        elif holes and not (rest == 0 and size == 0):
            raise self._mismatch(shape, target)
        elif holes:
            result[holes[0]] = _left_of_nothing(shape, target)
        elif rest != size:
            raise self._mismatch(shape, target)
        return tuple(result)

    def _mismatch(self, shape: Sequence[int], target: Sequence[int]) -> ValueError:
        have, want = ",".join(map(str, shape)), ",".join(map(str, target))
        return ValueError(
            f"The input tensor cannot be reshaped to the requested shape. Input shape:{{{have}}}, "
            f"requested shape:{{{want}}}"
        )

    def inferred(self, data: Fact, target: Sequence[Dim], allowzero: bool) -> Fact:
        """The fact for a target whose dimensions may be symbols."""
        if data.shape is not None and all(isinstance(dim, int) for dim in (*data.shape, *target)):
            numbers = [dim for dim in data.shape if isinstance(dim, int)]
            shape: Dims = self.wanted(tuple(numbers), [dim for dim in target if isinstance(dim, int)], allowzero)
            return Fact(data.type, shape, _kept(data, shape))
        result: list[Dim] = list(target)
        for index, dim in enumerate(target):
            if dim == 0 and not allowzero:
                inside = data.shape is not None and index < len(data.shape)
                result[index] = data.shape[index] if inside and data.shape is not None else unknown_dim()
        if -1 in result:
            hole = result.index(-1)
            rest = [dim for index, dim in enumerate(result) if index != hole]
            left = None if data.shape is None else dims.divide_out(data.shape, rest)
            result[hole] = unknown_dim() if left is None else left
        elif data.shape is not None:
            result = _completed(data.shape, result)
        return Fact(data.type, tuple(result), _kept(data, tuple(result)))


def _left_of_nothing(shape: Sequence[int], target: Sequence[int]) -> int:
    """What -1 stands for where there are no elements: dimensions apart from those at zeros still divide; else 0."""
    zeros = [index for index, dim in enumerate(target) if dim == 0]
    others = math.prod(dim for index, dim in enumerate(shape) if index not in zeros)
    given = math.prod(dim for dim in target if dim > 0)
    return others // given if zeros and others % given == 0 else 0


def _completed(shape: Dims, result: list[Dim]) -> list[Dim]:
    """A target with its one unknown dimension worked out from the number of elements."""
    unknown = [index for index, dim in enumerate(result) if not isinstance(dim, int) and dim.value is None]
    if len(unknown) == 1:
        rest = [dim for index, dim in enumerate(result) if index != unknown[0]]
        left = None if 0 in rest else dims.divide_out(shape, rest)
        if left is not None:
            result[unknown[0]] = left
    return result


def _kept(data: Fact, shape: Dims) -> tuple[Dim, ...] | None:
    """Contents survive as long as they stay a scalar or a vector."""
    return data.elements if len(shape) <= 1 else None


@operator("Reshape")
class OldReshape(Reshaping):
    """Reshape before opset 5, with the shape as an attribute."""

    shape: tuple[int, ...] = ()

    def view(self, data: Array) -> Array:
        return data.reshape(self.wanted(data.shape, self.shape, False))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [self.inferred(inputs[0] or UNKNOWN, self.shape, False)]


@operator("Reshape", since=5)
class Reshape(Reshaping):
    """The elements in row order under the shape that the second input holds."""

    allowzero: int = 0

    def view(self, data: Array, shape: Array) -> Array:
        return data.reshape(self.wanted(data.shape, [int(dim) for dim in shape.ravel()], bool(self.allowzero)))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data, target = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
        if target.elements is not None:
            return [self.inferred(data, target.elements, bool(self.allowzero))]
        rank = target.shape[0] if target.shape else None
        return [Fact(data.type, unknown_shape(rank) if isinstance(rank, int) else None)]


@operator("Flatten")
class Flatten(Viewing):
    """A matrix: the axes before `axis` as rows, the others as columns."""

    is_reshape = True
    axis: int = 1

    def _split(self, rank: int) -> int:
        if not -rank <= self.axis <= rank:
            raise ValueError(f"axis {self.axis} is out of range for a tensor of {rank} dimensions")
        return self.axis + rank if self.axis < 0 else self.axis

    def view(self, data: Array) -> Array:
        split = self._split(data.ndim)
        return data.reshape(math.prod(data.shape[:split]), math.prod(data.shape[split:]))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data = inputs[0] or UNKNOWN
        if data.shape is None:
            return [Fact(data.type, unknown_shape(2))]
        split = self._split(len(data.shape))
        return [Fact(data.type, (dims.product(data.shape[:split]), dims.product(data.shape[split:])))]


@operator("Identity")
class Identity(Viewing):
    """The input itself: a tensor, a sequence or an optional."""

    def view(self, data: Any) -> Any:
        return data

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return View(self.view) if inputs[0] is not None else Host(self.run, "not a tensor")

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [inputs[0] or UNKNOWN]


class Squeezing(Viewing):
    """What both forms of Squeeze share."""

    is_reshape = True

    def squeezed(self, data: Array, axes: Sequence[int] | None) -> Array:
        if axes is None:
            return data.reshape([dim for dim in data.shape if dim != 1])
        dropped = axes_of(axes, data.ndim)
        wrong = next((axis for axis in dropped if data.shape[axis] != 1), None)
        if wrong is not None:
            raise ValueError(f"Dimension of input {wrong} must be 1 instead of {data.shape[wrong]}")
        return data.reshape([dim for axis, dim in enumerate(data.shape) if axis not in dropped])

    def inferred(self, data: Fact, axes: Sequence[int] | None) -> Fact:
        if data.shape is None:
            return Fact(data.type, None)
        if axes is None:
            if not all(isinstance(dim, int) for dim in data.shape):
                return Fact(data.type, None)
            return Fact(data.type, tuple(dim for dim in data.shape if dim != 1), data.elements)
        dropped = axes_of(axes, len(data.shape))
        for axis in dropped:
            dim = data.shape[axis]
            if isinstance(dim, int) and dim != 1:
                raise ValueError(f"Dimension of input {axis} must be 1 instead of {dim}")
        return Fact(data.type, tuple(d for axis, d in enumerate(data.shape) if axis not in dropped), data.elements)


@operator("Squeeze")
class OldSqueeze(Squeezing):
    """Squeeze before opset 13, with axes as an attribute."""

    axes: tuple[int, ...] | None = None

    def view(self, data: Array) -> Array:
        return self.squeezed(data, self.axes)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [self.inferred(inputs[0] or UNKNOWN, self.axes)]


@operator("Squeeze", since=13)
class Squeeze(Squeezing):
    """Without the axes of size 1 that the second input names, or all of them."""

    def view(self, data: Array, axes: Array | None = None) -> Array:
        return self.squeezed(data, None if axes is None else [int(axis) for axis in axes.ravel()])

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data = inputs[0] or UNKNOWN
        if len(inputs) < 2 or inputs[1] is None:
            return [self.inferred(data, None)]
        axes = inputs[1].integers()
        if axes is not None:
            return [self.inferred(data, axes)]
        count = inputs[1].shape[0] if inputs[1].shape else None
        rank = data.rank - count if data.rank is not None and isinstance(count, int) else None
        return [Fact(data.type, None if rank is None or rank < 0 else unknown_shape(rank))]


class Unsqueezing(Viewing):
    """What both forms of Unsqueeze share."""

    is_reshape = True

    def unsqueezed(self, shape: Sequence[Dim], axes: Sequence[int]) -> Dims:
        rank = len(shape) + len(axes)
        added = axes_of(axes, rank)
        rest = iter(shape)
        return tuple(1 if axis in added else next(rest) for axis in range(rank))

    def inferred(self, data: Fact, axes: Sequence[int]) -> Fact:
        if data.shape is None:
            return Fact(data.type, None)
        shape = self.unsqueezed(data.shape, axes)
        return Fact(data.type, shape, _kept(data, shape))


@operator("Unsqueeze")
class OldUnsqueeze(Unsqueezing):
    """Unsqueeze before opset 13, with axes as an attribute."""

    axes: tuple[int, ...]

    def view(self, data: Array) -> Array:
        return data.reshape(self.unsqueezed(data.shape, self.axes))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [self.inferred(inputs[0] or UNKNOWN, self.axes)]


@operator("Unsqueeze", since=13)
class Unsqueeze(Unsqueezing):
    """With axes of size 1 where the second input says."""

    def view(self, data: Array, axes: Array) -> Array:
        return data.reshape(self.unsqueezed(data.shape, [int(axis) for axis in axes.ravel()]))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data, given = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
        axes = given.integers()
        if axes is not None:
            return [self.inferred(data, axes)]
        count = 1 if given.shape == () else given.shape[0] if given.shape else None
        rank = data.rank + count if data.rank is not None and isinstance(count, int) else None
        return [Fact(data.type, None if rank is None else unknown_shape(rank))]


@operator("Expand", since=8)
class Expand(Viewing):
    """Broadcast against the shape that the second input holds; dimensions of 1 there keep the input's."""

    def view(self, data: Array, shape: Array) -> Array:
        wanted = np.broadcast_shapes(data.shape, tuple(int(dim) for dim in shape.ravel()))
        return np.broadcast_to(data, wanted)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data, target = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
        if data.shape is None or target.elements is None:
            count = target.shape[0] if target.shape else None
            rank = max(data.rank, count) if data.rank is not None and isinstance(count, int) else None
            return [Fact(data.type, None if rank is None else unknown_shape(rank))]
        shape = broadcast([data.shape, target.elements])
        contents = None
        if data.elements is not None and len(shape) == 1 and len(data.elements) in (1, shape[0]):
            count = shape[0]
            if isinstance(count, int) and count <= MAXIMUM_ELEMENTS:
                contents = data.elements if len(data.elements) == count else data.elements * count
        return [Fact(data.type, shape, contents)]
