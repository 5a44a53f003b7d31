"""Floats as integers.

ONNX leaves open what becomes of numbers that the integer type does not hold. Here every rendering gives what the
conversions of x86 processors give in C, on which onnxruntime's answers there rest: a number is cut towards zero to 32
bits (64 for the types of 64), the lowest number standing for all that do not fit and for NaN, and narrower types keep
the low bits. Unsigned types of 32 and 64 bits move numbers from their middle on down by it, and the result back up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def to_integers(x: Array, dtype: np.dtype[Any]) -> Array:
    """Floats (any, also those of ml_dtypes) as integers of 2 to 64 bits."""
    wide = x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)
    bits = 64 if dtype.itemsize == 8 else 32
    whole = np.dtype(f"int{bits}")
    half = wide.dtype.type(2.0 ** (bits - 1))
    high = wide >= half if dtype.kind == "u" and dtype.itemsize * 8 == bits else np.False_
    wide = np.where(high, wide - half, wide)
    result = np.where(np.abs(wide) < half, wide, -half).astype(whole)
    return np.where(high, result ^ np.iinfo(whole).min, result).astype(dtype)
