"""Products and convolutions of bytes in 64 bits, and what they are once quantised: an oracle that no machine changes.

onnxruntime adds u8 x s8 in pairs of 16 bits where the processor has no VNNI, and lets them saturate there. It is an
oracle for such sums only while two products fit in 16 bits: where the signed bytes have 7 bits (`narrow`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Array = np.ndarray[Any, Any]


def narrow(generator: np.random.Generator, dtype: Any, *shape: int) -> Array:
    """Random bytes, signed ones of 7 bits: onnxruntime's sums of their products are exact on every machine."""
    low, high = (-64, 64) if np.dtype(dtype).kind == "i" else (0, 256)
    return generator.integers(low, high, shape).astype(dtype)


def product(a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    """The product of two matrices, or batches of them, of integers around their zero points."""
    return np.asarray(np.matmul(_around(a, a_zero), _around(b, b_zero)))


def convolution(
    x: Array,
    w: Array,
    x_zero: Array | None = None,
    *,
    group: int = 1,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    kernel_shape: Sequence[int] | None = None,
) -> Array:
    """The convolution of (N, C, sizes…) with filters (M, C / group, taps…) without a zero point."""
    assert kernel_shape is None or tuple(kernel_shape) == w.shape[2:]
    dims = w.ndim - 2
    strides, dilations, pads = strides or [1] * dims, dilations or [1] * dims, pads or [0] * (2 * dims)
    reach = [(taps - 1) * apart + 1 for taps, apart in zip(w.shape[2:], dilations, strict=True)]
    sides = list(zip(pads[:dims], pads[dims:], strict=True))
    if auto_pad == "SAME_UPPER":
        places = zip(x.shape[2:], strides, reach, strict=True)
        more = [max(0, (-(-size // step) - 1) * step + extent - size) for size, step, extent in places]
        sides = [(both // 2, both - both // 2) for both in more]
    padded = np.pad(_around(x, x_zero), [(0, 0), (0, 0), *sides])
    windows = sliding_window_view(padded, reach, axis=tuple(range(2, 2 + dims)))
    steps = (slice(None), slice(None), *(slice(None, None, n) for n in (*strides, *dilations)))
    inner = [1, *range(2 + dims, 2 + 2 * dims)]
    parts = [
        np.tensordot(image, filters.astype(np.int64), (inner, list(range(1, 2 + dims))))
        for image, filters in zip(np.split(windows[steps], group, axis=1), np.split(w, group), strict=True)
    ]
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)


def assert_quantised(found: Array, real: Array, zero: Array) -> None:
    """Assert that integers are the nearest ones to `real` (in steps, around `zero`), saturated to their type.

    Where `real` lies half way between two, up to the rounding of float32, either is right.
    """
    limits = np.iinfo(zero.dtype)
    assert found.dtype == zero.dtype
    assert found.shape == real.shape
    wanted = np.clip(real + zero.astype(np.float64), limits.min, limits.max)
    assert np.abs(found.astype(np.float64) - wanted).max(initial=0) <= 0.5 + 1e-3
    assert np.unique(found).size > 1 or found.size < 2, "nothing is left to compare"


def _around(integers: Array, zero: Array | None) -> Array:
    return integers.astype(np.int64) - (0 if zero is None else zero.astype(np.int64))
