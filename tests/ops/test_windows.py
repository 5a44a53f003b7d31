"""Windows: the taps that they count and that they can do without, beside a count tap by tap."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from sardonyx.ops.windows import WindowAttributes, Windows

# Kernel, stride, dilation, pads at both ends, size: along one axis.
AXES = [
    axis
    for axis in itertools.product((1, 2, 3, 7), (1, 2, 5), (1, 2, 3), ((0, 0), (1, 0), (3, 2), (9, 9)), (1, 4, 6))
    if (axis[0] - 1) * axis[2] + 1 <= sum(axis[3]) + axis[4]
]


def windows_of(axis: tuple[int, int, int, tuple[int, int], int], ceil_mode: int = 0) -> Windows:
    kernel, stride, dilation, pads, size = axis
    attributes = WindowAttributes.of((kernel,), (stride,), (dilation,), pads, "NOTSET", ceil_mode)
    return attributes.windows((size,), weighs=False)


def reads(windows: Windows, low: int, high: int) -> list[list[int]]:
    """The places in [low, high) that each window of one axis reads, tap by tap."""
    (stride,), (dilation,), (begin,), (count,), (kernel,) = (
        *(windows.strides, windows.dilations, windows.begin, windows.output, windows.kernel),
    )
    places = [[at * stride - begin + tap * dilation for tap in range(kernel)] for at in range(count)]
    return [[place for place in window if low <= place < high] for window in places]


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("axis", AXES, ids=str)
def test_counts_and_trimmed_windows(axis: tuple[int, int, int, tuple[int, int], int], ceil_mode: int) -> None:
    windows = windows_of(axis, ceil_mode)
    size, (before, after) = axis[4], axis[3]
    for include_padding, low, high in ((False, 0, size), (True, -before, size + after)):
        (counts,) = windows.counts(include_padding)
        expected = [len(window) for window in reads(windows, low, high)]
        np.testing.assert_array_equal(np.broadcast_to(counts, len(expected)), expected)
    trimmed = windows.trimmed()
    assert trimmed.output == windows.output
    assert 1 <= trimmed.kernel[0] <= windows.kernel[0]
    assert trimmed.begin[0] >= 0
    assert reads(trimmed, 0, size) == reads(windows, 0, size)


def test_a_kernel_that_is_mostly_padding_has_few_taps() -> None:
    windows = windows_of((40_000_001, 1, 1, (40_000_000, 0), 3))
    assert windows.output == (3,)
    assert windows.trimmed().kernel == (3,)
    assert windows.trimmed().begin == (2,)
    np.testing.assert_array_equal(windows.counts(False)[0], [1, 2, 3])
    np.testing.assert_array_equal(windows.counts(True)[0], [40_000_001])


def test_counts_over_two_axes_are_a_product() -> None:
    windows = WindowAttributes.of((3, 2), None, None, (1, 1, 1, 0), "NOTSET").windows((4, 4))
    counts = functools.reduce(np.multiply.outer, windows.counts(False))
    np.testing.assert_array_equal(counts, np.outer([2, 3, 3, 2], [1, 2, 2, 2]))


@pytest.mark.parametrize("weighs", [True, False])
def test_padding_is_bounded(weighs: bool) -> None:
    attributes = WindowAttributes.of((2,), (10**9,), None, (10**9, 1), "NOTSET")
    with pytest.raises(ValueError, match="are more than 16777216 places along a dimension"):
        attributes.windows((3,), weighs=weighs)
