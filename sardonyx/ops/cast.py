"""Conversions between element types: Cast, CastLike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel import expr as k
from sardonyx.kernel.dtypes import NARROW_FLOATS, SATURATING_FLOAT8, TINY_INTEGERS
from sardonyx.kernel.expr import Expr
from sardonyx.kernel.integers import to_integers
from sardonyx.kernel.program import Host, Kernel, View
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Elementwise, Value, operator

EXPONENT_ONLY = np.dtype(ml_dtypes.float8_e8m0fnu)
_STRING = np.dtype(object)
_LEAST, _LARGEST = np.float32(2.0**-127), np.float32(2.0**127)
_EXPONENT_BIAS, _NAN_CODE = 127, 255
# From which mantissa in [0.5, 1) on a power is rounded up.
_ROUND_UP_FROM = {"up": float(np.nextafter(np.float32(0.5), np.float32(1))), "nearest": 0.75, "down": 1.0}


def convert(x: Expr, dtype: np.dtype[Any], saturate: bool) -> Expr:
    """`x` in another numeric dtype; 8-bit floats hold their largest value where `saturate` asks for it.

    Floats are rounded to integers of 2 and 4 bits, halves away from zero, and cut to wider ones, as onnxruntime has it.
    """
    if dtype in SATURATING_FLOAT8 and saturate and x.dtype.kind not in "biu" and x.dtype != dtype:
        largest = float(ml_dtypes.finfo(dtype).max)
        x = k.minimum(k.maximum(x, -largest), largest)
    if dtype in TINY_INTEGERS and _is_float(x.dtype):
        whole = k.trunc(x)
        x = k.where(k.absolute(x - whole) >= 0.5, whole + k.sign(x), whole)
    return x.cast(dtype)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype in NARROW_FLOATS


class Conversion(Elementwise):
    """What Cast and CastLike share."""

    saturate: int = 1
    round_mode: str = "up"

    def target(self, inputs: Sequence[np.dtype[Any] | None]) -> np.dtype[Any]:
        """The dtype to convert to, from the dtypes of the inputs."""
        raise NotImplementedError

    def scalar(self, x: Expr) -> Expr:
        return convert(x, self.target([x.dtype]), bool(self.saturate))

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        source, target = inputs[0], self.target(inputs)
        if _STRING in (source, target):
            return Host(self.run, "strings are Python objects")
        if source == target:
            return View(_itself)
        if target == EXPONENT_ONLY:
            return Host(self.run, "float8e8m0 has rounding modes of its own")
        return self.pointwise(inputs)

    def run(self, x: Array, like: Array | None = None) -> Sequence[Value]:
        target = self.target([x.dtype, None if like is None else like.dtype])
        if target == _STRING:
            return (to_strings(x),)
        if x.dtype == _STRING and target == EXPONENT_ONLY:
            x = from_strings(x, np.dtype(np.float32), bool(self.saturate))
        if x.dtype == _STRING:
            return (from_strings(x, target, bool(self.saturate)),)
        if target == EXPONENT_ONLY and x.dtype != target:
            return (to_exponents(x, bool(self.saturate), self.round_mode),)
        with np.errstate(all="ignore"):
            return (converted(x, target, bool(self.saturate)),)


@operator("Cast")
class Cast(Conversion):
    """X in the element type `to`."""

    to: int

    def target(self, inputs: Sequence[np.dtype[Any] | None]) -> np.dtype[Any]:
        return numpy_dtype(ir.DataType(self.to))

    def result_type(self, inputs: Sequence[Fact]) -> Any:
        return ir.TensorType(ir.DataType(self.to))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        (found,) = super().infer(inputs, inference)
        source = inputs[0]
        if source is not None and self.to in (ir.DataType.INT64, ir.DataType.INT32):
            return [Fact(found.type, found.shape, source.elements)]
        return [found]


@operator("CastLike")
class CastLike(Conversion):
    """X in the element type of the second input, whose contents do not matter."""

    def target(self, inputs: Sequence[np.dtype[Any] | None]) -> np.dtype[Any]:
        like = inputs[1]
        assert like is not None
        return like

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return Host(self.run, "the second input gives a type and no elements")

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        source, like = inputs
        assert source is not None
        assert like is not None
        return [Fact(like.type, source.shape)]


def _itself(x: Array) -> Array:
    return x


def converted(x: Array, target: np.dtype[Any], saturate: bool) -> Array:
    """What `convert` means for the elements of an array."""
    if target in SATURATING_FLOAT8 and saturate and x.dtype.kind not in "biu" and x.dtype != target:
        largest = float(ml_dtypes.finfo(target).max)
        wide = x if x.dtype == np.float64 else x.astype(np.float32)
        return np.clip(wide, -largest, largest).astype(target)
    if target in TINY_INTEGERS and _is_float(x.dtype):
        wide = x if x.dtype == np.float64 else x.astype(np.float32)
        whole = np.trunc(wide)
        return to_integers(np.where(np.abs(wide - whole) >= 0.5, whole + np.sign(wide), whole), target)
    if target.kind in "iu" and _is_float(x.dtype):
        return to_integers(x, target)
    # Not every pair of narrow dtypes has a conversion of its own.
    return (x.astype(np.int8) if x.dtype in TINY_INTEGERS else x).astype(target)


def to_exponents(x: Array, saturate: bool, round_mode: str) -> Array:
    """Powers of two (float8e8m0) by float32: away from zero (`up`), towards it (`down`), or `nearest`, ties up.

    What lies beyond the ends of the type, infinity included, is the end with `saturate`, and NaN without. So are zeros
    and negative numbers, which lie below the smallest power, 2^-127.
    """
    if round_mode not in _ROUND_UP_FROM:
        raise ValueError(f"attribute 'round_mode' must be up, down or nearest, not '{round_mode}'")
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)
    low, high = single < _LEAST, single > _LARGEST
    mantissa, exponent = np.frexp(np.where(low, _LEAST, np.where(high, _LARGEST, single)))  # a mantissa below 1
    code = exponent - 1 + (mantissa >= _ROUND_UP_FROM[round_mode]) + _EXPONENT_BIAS
    is_nan = np.isnan(single) if saturate else np.isnan(single) | low | high
    return np.where(is_nan, _NAN_CODE, code).astype(np.uint8).view(EXPONENT_ONLY)


def to_strings(x: Array) -> Array:
    """Decimal text as onnxruntime writes it: 8 significant digits, of float64 too; 3, 1e+10, INF, NaN."""
    if x.dtype == _STRING:
        return x.copy()
    result = np.empty(x.shape, object)
    if x.dtype.kind in "iub":
        result.reshape(-1)[:] = [str(int(item)) for item in x.reshape(-1)]
        return result
    words = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}
    texts = [format(float(item), ".8g") for item in x.reshape(-1)]
    result.reshape(-1)[:] = [words.get(text, text) for text in texts]
    return result


def from_strings(x: Array, target: np.dtype[Any], saturate: bool) -> Array:
    """Numbers from decimal text, "NaN", "INF" and their like; ValueError for other text."""
    flat = [str(item) for item in x.reshape(-1)]
    if target.kind in "iu" and target != np.dtype(ml_dtypes.int4) and target != np.dtype(ml_dtypes.uint4):
        integers = [int(item) if item.strip().lstrip("+-").isdigit() else int(float(item)) for item in flat]
        return np.array(integers, object).astype(target).reshape(x.shape)
    numbers = np.array([float(item) for item in flat], np.float64).reshape(x.shape)
    return converted(numbers, target, saturate)
