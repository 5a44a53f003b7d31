"""Families of narrow dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Dtypes = frozenset[np.dtype[Any]]

# Integers of 2 and 4 bits, each in a byte of its own.
TINY_INTEGERS: Dtypes = frozenset(map(np.dtype, (ml_dtypes.int2, ml_dtypes.uint2, ml_dtypes.int4, ml_dtypes.uint4)))

# 8-bit floats with a sign, an exponent and a mantissa: a conversion to them may saturate.
SATURATING_FLOAT8: Dtypes = frozenset(
    map(
        np.dtype,
        (
            ml_dtypes.float8_e4m3fn,
            ml_dtypes.float8_e4m3fnuz,
            ml_dtypes.float8_e5m2,
            ml_dtypes.float8_e5m2fnuz,
        ),
    )
)

# All 8-bit floats: also the one that is a power of two.
FLOAT8: Dtypes = SATURATING_FLOAT8 | {np.dtype(ml_dtypes.float8_e8m0fnu)}

# Every float narrower than float32; arithmetic on them is done in float32.
NARROW_FLOATS: Dtypes = FLOAT8 | frozenset(
    map(
        np.dtype,
        (
            np.float16,
            ml_dtypes.bfloat16,
            ml_dtypes.float6_e2m3fn,
            ml_dtypes.float6_e3m2fn,
            ml_dtypes.float4_e2m1fn,
        ),
    )
)
