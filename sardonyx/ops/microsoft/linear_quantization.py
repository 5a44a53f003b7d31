"""The arithmetic that the quantised operators share: to real numbers, back again, and exact integer products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from sardonyx.ops.framework.facts import Dim, Dims, Fact, broadcast, same, unknown_dim

Array = np.ndarray[Any, Any]


def padded(inputs: Sequence[Any], count: int) -> list[Any]:
    """The inputs of a node with None for those that are left out at the end."""
    return [*inputs, *[None] * (count - len(inputs))]


def bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The least and the greatest value of an integer type, those of 2 and 4 bits included."""
    kind = ml_dtypes.iinfo(dtype)
    return int(kind.min), int(kind.max)


def along(parameter: Array, rank: int, axis: int | None) -> Array:
    """A scale or zero point in a shape that broadcasts against a tensor of `rank`, its entries along `axis`."""
    flat = parameter.reshape(-1)
    if flat.size == 1 or axis is None:
        return flat.reshape(()) if flat.size == 1 else flat
    return flat.reshape([-1 if index == axis % rank else 1 for index in range(rank)])


def one(parameter: Array | None, name: str) -> Array:
    """The single value of a per-tensor parameter, as a scalar; 0 where it is not given."""
    if parameter is None:
        return np.zeros((), np.int32)
    if parameter.size != 1:
        raise ValueError(f"input '{name}' must be a scalar or have one element, got shape {parameter.shape}")
    return parameter.reshape(())


def integers(x: Array, zero_point: Array | None) -> Array:
    """x - zero_point as int32; the zero point broadcasts against x."""
    values = x.astype(np.int32)
    return values if zero_point is None else values - zero_point.astype(np.int32)


def dequantize(x: Array, scale: Array, zero_point: Array | None) -> Array:
    """(x - zero_point) * scale in float32; scale and zero point broadcast against x."""
    return integers(x, zero_point).astype(np.float32) * scale.astype(np.float32)


def quantize(real: Array, scale: Array, zero_point: Array) -> Array:
    """round(real / scale) + zero_point, ties to even, saturated to the type; NaN becomes the least value."""
    rounded = np.asarray(np.rint(real / scale.astype(real.dtype)))
    return saturate(rounded + zero_point.astype(np.int32).astype(real.dtype), zero_point.dtype)


def mean_of_integers(x: Array, zero_point: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The mean of x - zero_point in float32, from a sum that is exact."""
    count = int(np.prod([x.shape[axis] for axis in axes]))
    sums = x.sum(axis=axes, keepdims=keepdims, dtype=np.int64) - count * int(zero_point)
    return np.asarray(sums.astype(np.float32) / np.float32(count))


def quantize_mean(mean: Array, scale: Array, y_scale: Array, zero_point: Array) -> Array:
    """The mean in float32 of integers of one scale in the integers of another one.

    A mean half way between two steps is so exactly where both scales are the same.
    """
    rounded = np.asarray(np.rint(mean * (scale.astype(np.float32) / y_scale.astype(np.float32))))
    return saturate(rounded + zero_point.astype(np.int32).astype(np.float32), zero_point.dtype)


def saturate(values: Array, dtype: np.dtype[Any]) -> Array:
    """Real numbers rounded to the nearest whole ones, ties to even, and clipped to an integer type."""
    low, high = bounds(dtype)
    rounded = np.rint(values)
    return np.asarray(np.clip(np.where(np.isnan(rounded), low, rounded), low, high)).astype(np.int32).astype(dtype)


def integer_product(a: Array, b: Array, limit: int = 255) -> Array:
    """The matrix product of integers of magnitude up to `limit` as int32, wrapping as a 32-bit accumulator does.

    Floating-point products are exact while every sum stays below the integers that the type holds: 2^24 for float32,
    which takes some 256 products of 8-bit numbers at a time, and 2^53 for float64.
    """
    part = 2**24 // limit**2
    if part < 64:
        wide: Array = np.matmul(a.astype(np.float64), b.astype(np.float64))
        return wide.astype(np.int64).astype(np.int32)
    left, right = a.astype(np.float32), b.astype(np.float32)
    inner = a.shape[-1]
    if right.ndim == 1:
        right = right[:, None]
    total: Array = np.matmul(left[..., :part], right[..., :part, :]).astype(np.int32)
    for start in range(part, inner, part):
        total += np.matmul(left[..., start : start + part], right[..., start : start + part, :]).astype(np.int32)
    return total[..., 0] if b.ndim == 1 else total


def product_shape(a: Dims | None, b: Dims | None) -> Dims | None:
    """The shape of a matrix product as `numpy.matmul` defines it; ValueError where the inner sizes differ."""
    if a is None or b is None:
        return None
    if not a or not b:
        raise ValueError("a matrix product needs inputs of at least one dimension")
    inner, other = a[-1], b[0] if len(b) == 1 else b[-2]
    if isinstance(inner, int) and isinstance(other, int) and inner != other:
        raise ValueError(f"inner dimensions {inner} and {other} of the matrix product differ")
    rows: Dims = a[-2:-1]
    columns: Dims = b[-1:] if len(b) > 1 else ()
    return (*broadcast([a[:-2], b[:-2]]), *rows, *columns)


def product_flops(a: Fact | None, output: Fact | None) -> float | None:
    """Two operations for each multiply-add of a product whose left operand is `a`."""
    if a is None or output is None or a.shape is None or output.shape is None:
        return None
    total = 2.0
    for dim in (*output.shape, a.shape[-1] if a.shape else 1):
        if not isinstance(dim, int):
            return None
        total *= dim
    return total


def broadcast_fact(kind: Any, facts: Sequence[Fact | None]) -> Fact:
    """The fact of an elementwise result of this type."""
    shapes = [None if fact is None else fact.shape for fact in facts]
    known = [shape for shape in shapes if shape is not None]
    return Fact(kind, broadcast(known) if len(known) == len(shapes) else None)


def merged(dims: Sequence[Dim]) -> Dim:
    """One dimension from several that are equal: a number if there is one, else their common name."""
    for dim in dims:
        if isinstance(dim, int):
            return dim
    return dims[0] if dims and all(same(dims[0], dim) for dim in dims) else unknown_dim()
