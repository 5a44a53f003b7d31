"""The numbers of linear quantization: ranges of types, scales and zero points, and arrays from float to narrow types.

``real = (stored - zero_point) * scale``. Scales are reckoned in float64 and kept in the type of the data; arrays are
quantised as QuantizeLinear does it, in float32 with halves to even, a piece at a time that fits into a cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.runtime.threads.processors import available_processors

Array = np.ndarray[Any, Any]
_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")
Type = ir.DataType

_RANGES = {
    Type.UINT8: (0, 255),
    Type.INT8: (-128, 127),
    Type.UINT16: (0, 65535),
    Type.INT16: (-32768, 32767),
    Type.UINT4: (0, 15),
    Type.INT4: (-8, 7),
    Type.UINT2: (0, 3),
    Type.INT2: (-2, 1),
}
# Both ends alike, so that zero is in the middle.
_SYMMETRIC = {Type.INT8: (-127, 127), Type.INT16: (-32767, 32767)}
# One bit less: sums of two products fit into 16 bits, which some machines add them in.
_REDUCED = {
    Type.UINT8: (0, 127),
    Type.INT8: (-64, 64),
    Type.UINT16: (0, 32767),
    Type.INT16: (-16384, 16384),
    Type.UINT4: (0, 7),
    Type.INT4: (-4, 3),
}
INTEGERS = frozenset(_RANGES)
FLOAT8 = frozenset({Type.FLOAT8E4M3FN})
SIGNED = frozenset({Type.INT2, Type.INT4, Type.INT8, Type.INT16, Type.FLOAT8E4M3FN})
FLOATS = frozenset({Type.FLOAT, Type.FLOAT16})  # what the quantizers read

_FLOAT8_LARGEST = 448.0
_PIECE = 1 << 16  # numbers that are quantised at once
_ALONE = 1 << 18  # fewer numbers than these are not worth a thread


@dataclass(frozen=True)
class Parameters:
    """How an array is stored: `scale` and `zero_point` are of rank 0, of rank 1 along `axis`, or, in blocks of
    `block_size` along `axis`, of the array's rank. `scale` has the type of the data, `zero_point` that of the storage.
    """

    dtype: ir.DataType
    scale: Array
    zero_point: Array
    axis: int | None = None
    block_size: int = 0


def type_range(dtype: ir.DataType, *, reduced: bool = False, symmetric: bool = False) -> tuple[int, int]:
    """The least and the largest number that is stored in a type; `InvalidQuantization` where it is no integer type."""
    found = _REDUCED.get(dtype) if reduced else _SYMMETRIC.get(dtype) if symmetric else None
    found = found or (None if reduced else _RANGES.get(dtype))
    if found is None:
        raise InvalidQuantization(
            f"Numbers cannot be quantised to {dtype.name}{' with a reduced range' if reduced else ''}; the types are "
            f"{', '.join(sorted(one.name for one in (_REDUCED if reduced else _RANGES)))}"
        )
    return found


def scale_and_zero_point(
    low: Array,
    high: Array,
    dtype: ir.DataType,
    *,
    symmetric: bool = False,
    reduced: bool = False,
    minimum_range: float | None = None,
    ort_compatible: bool = False,
) -> tuple[Array, Array]:
    """The scales and zero points of ranges: arrays of one shape and float type, of which `scale` keeps the type.

    `minimum_range` is the least difference of `high` and `low`. A scale that the type cannot hold as a normal number is
    1: its data are zero, or as good as. One of float16, whose small numbers are not, is the next larger subnormal
    number, unless `ort_compatible`: then it is 1 as well, and the data are lost.
    """
    least, largest = type_range(dtype, reduced=reduced, symmetric=symmetric)
    return of_range(low, high, least, largest, narrow_dtype(dtype), symmetric, minimum_range, ort_compatible)


def of_range(
    low: Array,
    high: Array,
    least: int,
    largest: int,
    stored: np.dtype[Any],
    symmetric: bool = False,
    minimum_range: float | None = None,
    ort_compatible: bool = False,
) -> tuple[Array, Array]:
    """As `scale_and_zero_point`, for the stored numbers from `least` to `largest` of the type `stored`."""
    kind = np.asarray(high).dtype
    low, high = np.minimum(np.asarray(low), kind.type(0)), np.maximum(np.asarray(high), kind.type(0))
    if minimum_range is not None:
        high = np.maximum(high, low + kind.type(minimum_range))
    if symmetric:
        high = np.maximum(np.abs(low), np.abs(high))
        low = -high
    wide_low = low.astype(np.float64)
    scale = (high.astype(np.float64) - wide_low) / (largest - least)
    tiny = np.finfo(kind).tiny if kind.kind == "f" else ml_dtypes.finfo(kind).tiny
    if symmetric:
        zero_point = np.full(scale.shape, np.round((least + largest) / 2))
    else:
        zero_point = np.round(least - wide_low / np.where(scale > 0, scale, 1))
    lost = scale < tiny
    if not ort_compatible and kind == np.float16:
        step = float(np.finfo(kind).smallest_subnormal)
        small = lost & (scale > 0)
        scale = np.where(small, np.ceil(scale / step) * step, scale)
        if not symmetric:
            zero_point = np.where(small, np.round(least - wide_low / np.where(scale > 0, scale, 1)), zero_point)
        lost &= ~small
    scale = np.where(lost, 1.0, scale)
    zero_point = np.where(lost, 0.0, zero_point)
    return scale.astype(kind), zero_point.astype(stored)


def restricted(
    low: float, high: float, least: int, largest: int, kind: np.dtype[Any], minimum_range: float | None = None
) -> tuple[Array, Array]:
    """The scale and the zero point of a range whose zero point is the least stored number, where no number is negative,
    or else the middle one: kernels have quick ways for those."""
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    if minimum_range is not None and minimum_range > 0:
        high = max(high, low + minimum_range)
    zero_point = least if low >= 0 else (least + largest + 1) // 2
    scale = high / (largest - zero_point)
    if low < 0:
        scale = max(scale, -low / (zero_point - least))
    if scale == 0:
        scale = 1.0 / (largest - least)
    if minimum_range is not None:
        scale = max(scale, minimum_range / (largest - least))
    return np.asarray(scale, kind), np.asarray(zero_point)


def float8_parameters(deviation: Array, dtype: ir.DataType) -> tuple[Array, Array]:
    """The scale of an 8-bit float type, by the standard deviation of the data, and its zero point, which is 0."""
    if dtype not in FLOAT8:
        raise InvalidQuantization(f"Numbers cannot be quantised to {dtype.name}; the 8-bit float type is FLOAT8E4M3FN")
    deviation = np.asarray(deviation)
    return np.asarray(deviation / _float8_deviation(), deviation.dtype), np.zeros((), ml_dtypes.float8_e4m3fn)


@cache
def _float8_deviation() -> Any:
    numbers = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return np.std(numbers[np.isfinite(numbers)])


def narrow_dtype(dtype: ir.DataType) -> np.dtype[Any]:
    """The NumPy dtype of a narrow type; those of fewer than 8 bits have a byte for each number."""
    return np.dtype(dtype.numpy())


def extremes(
    array: Array, axis: int | None = None, block_size: int = 0, workers: ThreadPoolExecutor | None = None
) -> tuple[Array, Array]:
    """The least and the largest number of an array: of all, of each place along `axis`, or of each of its blocks.

    An array, or a block of it, without numbers has 0 and 0; a NaN is the least and the largest of those that it is
    among.
    """
    if axis is None:
        if array.size == 0:
            return np.zeros((), array.dtype), np.zeros((), array.dtype)
        flat = _flat(array)
        pieces = [flat[start : start + _PIECE] for start in range(0, flat.size, _PIECE)]
        found = _shared(lambda some: [(piece.min(), piece.max()) for piece in some], pieces, array.size, workers)
        lows, highs = zip(*(ends for some in found for ends in some), strict=True)
        return np.asarray(np.min(lows)), np.asarray(np.max(highs))
    if block_size:
        size = array.shape[axis]
        starts = np.arange(0, size, block_size)
        low, high = (ufunc.reduceat(array, starts, axis) for ufunc in (np.minimum, np.maximum))
        return low, high
    others = tuple(index for index in range(array.ndim) if index != axis)
    if array.size == 0:
        return np.zeros(array.shape[axis], array.dtype), np.zeros(array.shape[axis], array.dtype)
    return array.min(others), array.max(others)


def parameters_of(
    array: Array,
    dtype: ir.DataType,
    *,
    symmetric: bool,
    reduced: bool = False,
    axis: int | None = None,
    block_size: int = 0,
    minimum_range: float | None = None,
    low: Any = None,
    high: Any = None,
    kind: np.dtype[Any] | None = None,
    ort_compatible: bool = False,
    workers: ThreadPoolExecutor | None = None,
) -> Parameters:
    """The parameters that store the numbers of an array; `low` and `high` stand for its extremes where given. `kind` is
    the type of the scales, without it that of the array.

    `InvalidQuantization` for numbers that are not finite.
    """
    kind = array.dtype if kind is None else kind
    if axis is not None:
        axis = axis % array.ndim
    if dtype in FLOAT8:
        deviations = np.std(array, tuple(index for index in range(array.ndim) if index != axis)) if array.size else 0
        scale, zero_point = float8_parameters(np.asarray(deviations, kind), dtype)
        scale = np.where(scale > 0, scale, 1).astype(kind)
        return Parameters(dtype, scale, np.broadcast_to(zero_point, scale.shape), axis)
    if low is None or high is None:
        own = extremes(array, axis, block_size, workers)
        low, high = own[0] if low is None else low, own[1] if high is None else high
    low, high = np.broadcast_arrays(np.asarray(low, kind), np.asarray(high, kind))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise InvalidQuantization("it has numbers that are not finite (NaN or infinite)")
    scale, zero_point = scale_and_zero_point(
        low,
        high,
        dtype,
        symmetric=symmetric,
        reduced=reduced,
        minimum_range=minimum_range,
        ort_compatible=ort_compatible,
    )
    if block_size:
        scale, zero_point = _of_blocks(low, high, dtype, scale, zero_point, symmetric, reduced, ort_compatible)
    return Parameters(dtype, scale, zero_point, axis, block_size)


def _of_blocks(
    low: Array,
    high: Array,
    dtype: ir.DataType,
    scale: Array,
    zero_point: Array,
    symmetric: bool,
    reduced: bool,
    ort_compatible: bool,
) -> tuple[Array, Array]:
    """The scales and zero points of blocks: a zero point goes with the scale as it is stored, and with
    `ort_compatible` the scale is reckoned in the type of the data."""
    least, largest = type_range(dtype, reduced=reduced, symmetric=symmetric)
    kind = scale.dtype
    low, high = np.minimum(low, kind.type(0)), np.maximum(high, kind.type(0))
    lost = scale == 1  # where the range is nothing
    if ort_compatible:
        if symmetric:
            high = np.maximum(np.abs(low), np.abs(high))
            low = -high
        scale = ((high - low).astype(np.float64) / (largest - least)).astype(kind)
        lost = scale < np.finfo(kind).tiny
        scale = np.where(lost, kind.type(1), scale)
    if not symmetric:
        rounded = np.round(least - low.astype(np.float64) / scale.astype(np.float64))
        zero_point = np.where(lost & (low == high), 0, np.clip(rounded, least, largest)).astype(narrow_dtype(dtype))
    return scale, zero_point


def quantize(
    array: Array,
    parameters: Parameters,
    low: Any = None,
    high: Any = None,
    workers: ThreadPoolExecutor | None = None,
) -> Array:
    """An array of floats, none of which is a NaN, as it is stored, of the same shape; 4 bits have a byte each.

    `low` and `high` bound the stored numbers further than their type does.
    """
    stored = np.empty(array.shape, narrow_dtype(parameters.dtype))
    if parameters.dtype in FLOAT8:
        least, largest = -_FLOAT8_LARGEST, _FLOAT8_LARGEST
    else:
        least, largest = map(float, type_range(parameters.dtype))
    least = least if low is None else max(least, float(low))
    largest = largest if high is None else min(largest, float(high))
    pieces = list(_pieces(array, stored, parameters))
    _shared(lambda some: _quantize_pieces(some, least, largest), pieces, array.size, workers)
    return stored


def _quantize_pieces(pieces: Sequence[tuple[Array, Array, Array, Array]], least: float, largest: float) -> None:
    buffer = np.empty(max((source.size for source, *_ in pieces), default=0), np.float32)
    for source, target, scale, zero_point in pieces:
        work = np.divide(source, scale, out=buffer[: source.size].reshape(source.shape), dtype=np.float32)
        if target.dtype != ml_dtypes.float8_e4m3fn:
            np.rint(work, out=work)
            if zero_point.any():
                work += zero_point
        np.clip(work, np.float32(least), np.float32(largest), out=work)
        if target.dtype.itemsize == 1 and target.dtype.kind not in "iu":
            wide = work if target.dtype == ml_dtypes.float8_e4m3fn else work.astype(np.int8)
            target[...] = wide.astype(target.dtype)
        else:
            np.copyto(target, work, casting="unsafe")


def _pieces(array: Array, stored: Array, parameters: Parameters) -> Iterator[tuple[Array, Array, Array, Array]]:
    """Parts of an array that fit into a cache, where each goes, and their scales and zero points."""
    scale = np.asarray(parameters.scale).astype(np.float32)
    zero_point = np.asarray(parameters.zero_point).astype(np.float32)
    if scale.ndim == 0 or parameters.axis is None:
        scale, zero_point = scale.reshape(()), zero_point.reshape(())
        flat, target = _flat(array), stored.reshape(-1)
        for start in range(0, flat.size, _PIECE):
            yield flat[start : start + _PIECE], target[start : start + _PIECE], scale, zero_point
        return
    axis, size = parameters.axis, array.shape[parameters.axis]
    if parameters.block_size:
        places = np.arange(size) // parameters.block_size
        scale, zero_point = scale.take(places, axis), zero_point.take(places, axis)
    else:
        shape = [1] * array.ndim
        shape[axis] = size
        scale, zero_point = (np.broadcast_to(one.reshape(shape), array.shape) for one in (scale, zero_point))
    if array.size == 0:
        return
    # Rows are the leading dimensions that are cut into pieces.
    rank = next((rank for rank in range(array.ndim) if math.prod(array.shape[rank:]) <= _PIECE), array.ndim)
    rank = max(1, rank)
    outer = array.shape[: rank - 1]
    rows = max(1, _PIECE // max(1, math.prod(array.shape[rank:])))
    for index in np.ndindex(*outer):
        for start in range(0, array.shape[rank - 1], rows):
            part = (*index, slice(start, start + rows))
            yield array[part], stored[part], scale[part], zero_point[part]


def dequantize(stored: Array, parameters: Parameters) -> Array:
    """The floats that a stored array stands for, in the type of the scale; reckoned in float32 or wider."""
    scale, zero_point = np.asarray(parameters.scale), np.asarray(parameters.zero_point)
    kind = scale.dtype
    if parameters.axis is not None and scale.ndim:
        size = stored.shape[parameters.axis]
        if parameters.block_size:
            places = np.arange(size) // parameters.block_size
            scale, zero_point = scale.take(places, parameters.axis), zero_point.take(places, parameters.axis)
        else:
            shape = [1] * stored.ndim
            shape[parameters.axis] = size
            scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    wide = np.float64 if kind == np.float64 else np.float32
    found: Array = ((stored.astype(wide) - zero_point.astype(wide)) * scale.astype(wide)).astype(kind)
    return found


def packed(stored: Array) -> bytes:
    """Numbers of 4 bits, two in a byte, the first one below."""
    numbers = np.frombuffer(np.ascontiguousarray(stored).tobytes(), np.uint8) & 15
    if numbers.size % 2:
        numbers = np.append(numbers, np.uint8(0))
    return (numbers[::2] | (numbers[1::2] << 4)).tobytes()


def _flat(array: Array) -> Array:
    """All numbers of an array in a row, not copied where they lie like that."""
    flat: Array = array.reshape(-1)
    return flat


def new_workers() -> ThreadPoolExecutor:
    """Threads for one who quantises many arrays; they end when nothing refers to them any more."""
    return ThreadPoolExecutor(_threads(), "quantize")


def _threads() -> int:
    return min(len(available_processors()), 8)


def _shared(
    work: Callable[[Sequence[_Piece]], _Result],
    pieces: Sequence[_Piece],
    size: int,
    workers: ThreadPoolExecutor | None,
) -> list[_Result]:
    """What is made of pieces of `size` numbers in all, by several threads where those are many: a result of each."""
    threads = min(_threads(), len(pieces)) if size > _ALONE else 1
    if threads <= 1:
        return [work(pieces)]
    shares = [pieces[start::threads] for start in range(threads)]
    if workers is not None:
        return list(workers.map(work, shares))
    with new_workers() as own:
        return list(own.map(work, shares))
