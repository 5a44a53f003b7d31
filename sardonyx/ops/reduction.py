"""Reductions over axes: sums, products, extrema, norms, ArgMax and ArgMin, cumulative sums and products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.kernel import expr as k
from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.expr import Expr, Input
from sardonyx.kernel.program import Arrangement, Host, Kernel, Template
from sardonyx.ops.framework.facts import Dim, Dims, Fact, tensor, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Cost, Operator, Value, elements, operator
from sardonyx.ops.row_kernels import (
    Contents,
    Shapes,
    given,
    index_of_extreme,
    is_computable,
    log_sum_exp,
    not_computable,
    rows_template,
    shortened,
)


def normalized_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front; ValueError for one out of range or given twice."""
    result = tuple(axis + rank if axis < 0 else axis for axis in axes)
    if any(not 0 <= axis < rank for axis in result):
        raise ValueError(f"axes {tuple(axes)} are out of range for a tensor of rank {rank}")
    if len(set(result)) != len(result):
        raise ValueError(f"axes {tuple(axes)} name a dimension twice")
    return result


def reduced_shape(shape: Sequence[Dim], axes: Sequence[int], keepdims: bool) -> tuple[Dim, ...]:
    """The shape without the reduced dimensions, or with ones in their place."""
    if keepdims:
        return tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


class Reduction(Operator):
    """A reduction whose axes are an attribute (before opset 13 or 18) or the second input.

    Without axes everything is reduced, or nothing where `noop_with_empty_axes` is set: then each element is a set of
    its own, as with NumPy's ``axis=()``.
    """

    axes: tuple[int, ...] | None = None
    keepdims: int = 1
    noop_with_empty_axes: int = 0

    def reduce(self, x: Array, axes: tuple[int, ...]) -> Array:
        """The reduction of `x`, with the reduced dimensions kept as ones."""
        raise NotImplementedError

    def of_row(self, x: Expr) -> Expr:
        """The same of the elements of a row."""
        raise NotImplementedError

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        x = inputs[0]
        if x is None or not is_computable(x):
            return Host(self.run, not_computable([x]))
        known = (1,) if len(inputs) > 1 and inputs[1] is not None else ()
        result = self.of_row(Input(x, 0).cast(working_dtype(x))).cast(x)
        return rows_template([x], [result], self.arranged, self.run, known)

    def arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        axes = contents[1] if len(contents) > 1 else None
        resolved = self._resolved(None if axes is None else [int(axis) for axis in axes.ravel()], len(shape))
        result = shortened(shape, resolved)
        if not self.keepdims:
            result = tuple(size for axis, size in enumerate(shape) if axis not in resolved)
        return Arrangement((shape,), resolved, (result,))

    def _resolved(self, given: Sequence[int] | None, rank: int) -> tuple[int, ...]:
        axes = tuple(self.axes or ()) if given is None else tuple(given)
        if axes:
            return normalized_axes(axes, rank)
        return () if self.noop_with_empty_axes else tuple(range(rank))

    def run(self, x: Array, axes: Array | None = None) -> Sequence[Value]:
        resolved = self._resolved(None if axes is None else [int(axis) for axis in axes.ravel()], x.ndim)
        with np.errstate(all="ignore"):
            kept = self.reduce(x.astype(working_dtype(x.dtype), copy=False), resolved)
        shape = reduced_shape(x.shape, resolved, bool(self.keepdims))
        result = np.asarray(kept).reshape(shape).astype(x.dtype, copy=False)  # type: ignore[arg-type]
        return (result.copy() if np.may_share_memory(result, x) else result,)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, axes = inputs[0], inputs[1] if len(inputs) > 1 else None
        assert x is not None
        given = None if axes is None else axes.integers()
        if x.shape is None:
            return [Fact(x.type, None)]
        if axes is not None and given is None and not (axes.shape is not None and axes.shape == (0,)):
            return [Fact(x.type, self._dims_left(len(x.shape), axes.shape))]
        resolved = self._resolved(given, len(x.shape))
        return [Fact(x.type, reduced_shape(x.shape, resolved, bool(self.keepdims)))]

    def _dims_left(self, rank: int, axes: Dims | None) -> Dims | None:
        """The dimensions of the result, of which there are as many as are known, where only the axes' number is."""
        if not self.keepdims:
            # No dimension is named twice.
            count = axes[0] if axes is not None and len(axes) == 1 else None
            if not isinstance(count, int) or count > rank:
                return None
            rank -= count
        return tuple(unknown_dim() for _ in range(rank))

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        x = inputs[0]
        return Cost(None if x is None else elements(x), super().cost(inputs, outputs).bytes)


def _real(x: Expr) -> Expr:
    """Integers as float64, floats as they are."""
    return x.cast(np.float64) if x.dtype.kind in "iu" else x


def _sum(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(x.sum(axis=axes, keepdims=True, dtype=x.dtype))


@operator("ReduceSum")
class ReduceSum(Reduction):
    """The sum; 0 of nothing."""

    def of_row(self, x: Expr) -> Expr:
        return k.reduce("sum", x)

    def reduce(self, x: Array, axes: tuple[int, ...]) -> Array:
        return _sum(x, axes)


@operator("ReduceMean")
class ReduceMean(Reduction):
    """The mean; of integers, truncated."""

    def of_row(self, x: Expr) -> Expr:
        return k.mean(x.cast(np.float64) if x.dtype.kind in "iu" else x)

    def reduce(self, x: Array, axes: tuple[int, ...]) -> Array:
        if x.dtype.kind in "iu":
            return np.asarray(np.trunc(x.mean(axis=axes, keepdims=True)))
        return np.asarray(x.mean(axis=axes, keepdims=True))


@operator("ReduceProd")
class ReduceProd(Reduction):
    """The product; 1 of nothing."""

    def of_row(self, x: Expr) -> Expr:
        return k.reduce("product", x)

    def reduce(self, x: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(x.prod(axis=axes, keepdims=True, dtype=x.dtype))


def _limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "b":
        return False, True
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return -np.inf, np.inf


@operator("ReduceMax")
class ReduceMax(Reduction):
    """The largest element; of nothing, the lowest value of the dtype."""

    def of_row(self, x: Expr) -> Expr:
        return k.reduce("maximum", x)

    def reduce(self, x: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(x.max(axis=axes, keepdims=True, initial=_limits(x.dtype)[0]))


@operator("ReduceMin")
class ReduceMin(Reduction):
    """The smallest element; of nothing, the highest value of the dtype."""

    def of_row(self, x: Expr) -> Expr:
        return k.reduce("minimum", x)

    def reduce(self, x: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(x.min(axis=axes, keepdims=True, initial=_limits(x.dtype)[1]))


@operator("ReduceL1")
class ReduceL1(Reduction):
    """The sum of magnitudes."""

    def of_row(self, x: Expr) -> Expr:
        return k.reduce("sum", k.absolute(x))

    def reduce(self, x: Array, axes: tuple[int, ...]) -> Array:
        return _sum(np.abs(x), axes)


@operator("ReduceL2")
class ReduceL2(Reduction):
    """The square root of the sum of squares."""

    def of_row(self, x: Expr) -> Expr:
        wide = _real(x)
        return k.sqrt(k.reduce("sum", wide * wide))

    def reduce(self, x: Array, axes: tuple[int, ...]) -> Array:
        wide = x.astype(np.float64) if x.dtype.kind in "iu" else x
        return np.sqrt(_sum(wide * wide, axes))


@operator("ReduceSumSquare")
class ReduceSumSquare(Reduction):
    """The sum of squares."""

    def of_row(self, x: Expr) -> Expr:
        return k.reduce("sum", x * x)

    def reduce(self, x: Array, axes: tuple[int, ...]) -> Array:
        return _sum(x * x, axes)


@operator("ReduceLogSum")
class ReduceLogSum(Reduction):
    """The logarithm of the sum; minus infinity of nothing."""

    def of_row(self, x: Expr) -> Expr:
        return k.log(k.reduce("sum", _real(x)))

    def reduce(self, x: Array, axes: tuple[int, ...]) -> Array:
        return np.log(_sum(x.astype(np.float64) if x.dtype.kind in "iu" else x, axes))


@operator("ReduceLogSumExp")
class ReduceLogSumExp(Reduction):
    """The logarithm of the sum of exponentials, which do not overflow; minus infinity of nothing."""

    def of_row(self, x: Expr) -> Expr:
        return log_sum_exp(_real(x))

    def reduce(self, x: Array, axes: tuple[int, ...]) -> Array:
        wide = x.astype(np.float64) if x.dtype.kind in "iu" else x
        largest = wide.max(axis=axes, keepdims=True, initial=-np.inf)
        offset = np.where(np.isfinite(largest), largest, 0).astype(wide.dtype)
        return np.asarray(np.log(_sum(np.exp(wide - offset), axes)) + offset)


class ArgReduction(Operator):
    """The index of an extreme element along one axis: the first one, or the last with `select_last_index`."""

    axis: int = 0
    keepdims: int = 1
    select_last_index: int = 0

    largest: ClassVar[bool] = True

    def find(self, x: Array, axis: int) -> Array:
        raise NotImplementedError

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        (x,) = inputs
        if x is None or not is_computable(x):
            return Host(self.run, not_computable([x]))
        values = Input(x, 0).cast(working_dtype(x))
        index = index_of_extreme(values, largest=self.largest, last=bool(self.select_last_index))
        return rows_template(inputs, [index.cast(np.int64)], self._arranged, self.run)

    def _arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        axes = normalized_axes([self.axis], len(shape))
        if shape[axes[0]] == 0:
            raise ValueError(f"dimension {axes[0]} of the input {shape} is empty: it has no extreme element")
        result = shortened(shape, axes) if self.keepdims else (*shape[: axes[0]], *shape[axes[0] + 1 :])
        return Arrangement((shape,), axes, (result,))

    def run(self, x: Array) -> Sequence[Value]:
        (axis,) = normalized_axes([self.axis], x.ndim)
        if x.shape[axis] == 0:
            raise ValueError(f"dimension {axis} of the input {x.shape} is empty: it has no extreme element")
        wide = x.astype(working_dtype(x.dtype), copy=False)
        if self.select_last_index:
            index = x.shape[axis] - 1 - self.find(np.flip(wide, axis), axis)
        else:
            index = self.find(wide, axis)
        return (np.expand_dims(index, axis).astype(np.int64) if self.keepdims else np.asarray(index, np.int64),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        assert x is not None
        if x.shape is None:
            return [tensor(ir.DataType.INT64, None)]
        axes = normalized_axes([self.axis], len(x.shape))
        return [tensor(ir.DataType.INT64, reduced_shape(x.shape, axes, bool(self.keepdims)))]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        x = inputs[0]
        return Cost(None if x is None else elements(x), super().cost(inputs, outputs).bytes)


@operator("ArgMax")
class ArgMax(ArgReduction):
    """The index of the largest element."""

    def find(self, x: Array, axis: int) -> Array:
        return np.asarray(np.argmax(x, axis=axis))


@operator("ArgMin")
class ArgMin(ArgReduction):
    """The index of the smallest element."""

    largest = False

    def find(self, x: Array, axis: int) -> Array:
        return np.asarray(np.argmin(x, axis=axis))


class Cumulative(Operator):
    """A running total along an axis: without the element itself if `exclusive`, from the end if `reverse`."""

    exclusive: int = 0
    reverse: int = 0

    def cumulative(self, *, product: bool) -> Kernel:
        parameters = {"exclusive": self.exclusive, "reverse": self.reverse, "product": product}
        return Template("cumulative", parameters, self.run)

    def accumulate(self, function: Callable[..., Any], start: int, x: Array, axis: Array) -> Array:
        (where,) = normalized_axes([int(axis.reshape(()))], x.ndim)
        wide = x.astype(working_dtype(x.dtype), copy=False)
        if self.reverse:
            wide = np.flip(wide, where)
        total = function(wide, axis=where, dtype=wide.dtype)
        if self.exclusive:
            total = np.roll(total, 1, where)
            total[(slice(None),) * where + (slice(0, 1),)] = start
        if self.reverse:
            total = np.ascontiguousarray(np.flip(total, where))
        return np.asarray(total.astype(x.dtype, copy=False))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        assert inputs[0] is not None
        return [Fact(inputs[0].type, inputs[0].shape)]


@operator("CumSum")
class CumSum(Cumulative):
    """The running sum."""

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.cumulative(product=False)

    def run(self, x: Array, axis: Array) -> Sequence[Value]:
        return (self.accumulate(np.cumsum, 0, x, axis),)


@operator("CumProd")
class CumProd(Cumulative):
    """The running product."""

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.cumulative(product=True)

    def run(self, x: Array, axis: Array) -> Sequence[Value]:
        return (self.accumulate(np.cumprod, 1, x, axis),)
