"""Sliding windows over spatial dimensions: padding, output sizes, and reading one tap of every window at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import Dim, known, unknown_dim
from sardonyx.ops.framework.operator import Array
from sardonyx.runtime.memory import memory

# Of a padded dimension: what is beyond it is a mistake, and takes long to count.
_MOST_PLACES = 2**31 - 1

# Of padding along a dimension that is shorter than that: memory is moved for it, whatever the results are.
_MOST_PADDING = 1 << 24

# What it takes to count the taps of the windows along an axis.
_BYTES_PER_COUNT = 64


@dataclass(frozen=True)
class Windows:
    """The windows of one run: everything is known, and `output` counts the windows along each dimension.

    No padding is negative. `end` is the one that the attributes state; windows of `ceil_mode` may reach beyond it.
    """

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    output: tuple[int, ...]

    def taps(self) -> Iterator[tuple[int, ...]]:
        """Every position inside a window, in row order."""
        return itertools.product(*map(range, self.kernel))

    def read(self, padded: Array, tap: Sequence[int]) -> Array:
        """The element at `tap` of every window, as a view of a tensor that `pad` made."""
        places = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s) if n > 0 else slice(0, 0)
            for t, d, s, n in zip(tap, self.dilations, self.strides, self.output, strict=True)
        )
        index: tuple[Any, ...] = (..., *places)
        return np.asarray(padded[index])

    def read_behind(self) -> tuple[int, ...]:
        """Places behind the input that the last windows reach into."""
        reach = [
            (n - 1) * s + (k - 1) * d + 1
            for n, s, k, d in zip(self.output, self.strides, self.kernel, self.dilations, strict=True)
        ]
        return tuple(max(0, r - n - b) for r, n, b in zip(reach, self.size, self.begin, strict=True))

    def pad(self, x: Array, fill: Any) -> Array:
        """`x` with the padding that windows read; `x` itself if there is none."""
        behind = self.read_behind()
        if not any(self.begin) and not any(behind):
            return x
        inner: tuple[Any, ...] = tuple(slice(b, b + n) for b, n in zip(self.begin, self.size, strict=True))
        shape = x.shape[: x.ndim - len(self.size)] + tuple(
            b + n + e for b, n, e in zip(self.begin, self.size, behind, strict=True)
        )
        memory.require(math.prod(shape) * x.itemsize, "an input with its padding")
        padded = np.full(shape, fill, x.dtype)
        padded[(..., *inner)] = x
        return padded

    def counts(self, include_padding: bool) -> list[Array]:
        """How many taps of each window lie in the input, or in the input and its stated padding.

        For each axis by the place on it, or one number where all places have the same: a window has their product.
        """
        memory.require_tables(_BYTES_PER_COUNT * sum(self.output), "the sizes of windows")
        found = []
        for axis, (begin, size, taps) in enumerate(zip(self.begin, self.size, self.kernel, strict=True)):
            low, high = (-begin, size + self.end[axis]) if include_padding else (0, size)
            starts = np.arange(self.output[axis]) * self.strides[axis] - begin
            # The first tap that is not below, and the first one that is above.
            first, last = (np.clip(-((starts - bound) // self.dilations[axis]), 0, taps) for bound in (low, high))
            counts = last - first
            found.append(counts[:1] if counts.size and (counts == counts[0]).all() else counts)
        return found

    def trimmed(self) -> Windows:
        """The same windows without the taps that lie in the padding wherever a window is; one is left.

        A kernel far larger than the input, with padding to match, then costs no more than what it reads.
        """
        begins, kernels = [], []
        for begin, size, taps, stride, spread, count in zip(
            self.begin, self.size, self.kernel, self.strides, self.dilations, self.output, strict=True
        ):
            first = min(max(0, begin - max(count - 1, 0) * stride) // spread, max(taps - 1, 0))
            last = min(taps, max(first + 1, -(-(begin + size) // spread)))
            begins.append(begin - first * spread)
            kernels.append(max(0, last - first))
        return replace(self, begin=tuple(begins), kernel=tuple(kernels))


def or_default(values: Sequence[int] | None, count: int, default: int) -> tuple[int, ...]:
    """An attribute with one number for each of `count` dimensions."""
    if not values:
        return (default,) * count
    if len(values) != count:
        raise ValueError(f"an attribute has {len(values)} numbers for {count} spatial dimensions: {tuple(values)}")
    return tuple(values)


@dataclass(frozen=True)
class WindowAttributes:
    """The attributes that convolutions and pools share, completed for a number of spatial dimensions."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto_pad: str
    ceil_mode: bool = False

    @classmethod
    def of(
        cls,
        kernel: Sequence[int],
        strides: Sequence[int] | None,
        dilations: Sequence[int] | None,
        pads: Sequence[int] | None,
        auto_pad: str,
        ceil_mode: int = 0,
    ) -> WindowAttributes:
        """Defaults filled in; ValueError for counts that do not fit, what is too small, or an unknown `auto_pad`."""
        count = len(kernel)
        if auto_pad not in ("NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER"):
            raise ValueError(f"auto_pad must be NOTSET, VALID, SAME_UPPER or SAME_LOWER, not '{auto_pad}'")
        steps = or_default(strides, count, 1)
        spread = or_default(dilations, count, 1)
        if min(kernel, default=0) < 0:
            raise ValueError(f"the kernel {tuple(kernel)} must not have negative sizes")
        if min((*steps, *spread), default=1) < 1:
            raise ValueError(f"strides {steps} and dilations {spread} must be at least 1")
        around = tuple(pads) if pads else (0,) * (2 * count)
        if len(around) != 2 * count:
            raise ValueError(f"pads has {len(around)} numbers, expected {2 * count} for {count} spatial dimensions")
        if min(around, default=0) < 0:
            raise ValueError(f"pads {around} must not be negative")
        return cls(tuple(kernel), steps, spread, around, auto_pad or "NOTSET", bool(ceil_mode))

    def windows(self, size: Sequence[int], *, weighs: bool = True) -> Windows:
        """The windows over an input of these spatial sizes; ValueError where the kernel does not fit.

        Where a tap `weighs`, it has a weight of its own and is never left out: then all of the padding counts.
        """
        count = len(self.kernel)
        if len(size) != count:
            raise ValueError(f"the input has {len(size)} spatial dimensions, the kernel {count}")
        begin, end, output = [], [], []
        for axis, length in enumerate(size):
            before, after = self._padding(axis, length)
            if max(before + length + after, self.kernel[axis]) > _MOST_PLACES:
                raise ValueError(
                    f"the kernel {self.kernel} or the input {tuple(size)} with pads {self.pads} has more than "
                    f"{_MOST_PLACES} places along a dimension"
                )
            windows = self._output(axis, length, before, after)
            assert isinstance(windows, int)
            if windows < 0 or (windows == 0 and length > 0):
                raise ValueError(
                    f"the kernel {self.kernel} with dilations {self.dilations} is larger than the padded input "
                    f"{tuple(size)} (pads {self.pads})"
                )
            begin.append(before)
            end.append(after)
            output.append(windows)
        found = Windows(tuple(size), self.kernel, self.strides, self.dilations, tuple(begin), tuple(end), tuple(output))
        self._check_padding(found if weighs else found.trimmed())
        return found

    def _check_padding(self, windows: Windows) -> None:
        """ValueError where windows read more padding than anybody has in earnest."""
        for size, before, after in zip(windows.size, windows.begin, windows.read_behind(), strict=True):
            if max(before, after) > max(_MOST_PADDING, size):
                raise ValueError(
                    f"the pads {self.pads} of an input {windows.size}, by the kernel {self.kernel}, are more than "
                    f"{max(_MOST_PADDING, size)} places along a dimension"
                )

    def infer(self, size: Sequence[Dim]) -> tuple[Dim, ...]:
        """The output's spatial sizes, symbols allowed."""
        if len(size) != len(self.kernel):
            raise ValueError(f"the input has {len(size)} spatial dimensions, the kernel {len(self.kernel)}")
        result: list[Dim] = []
        for axis, length in enumerate(size):
            if not known(length):
                result.append(unknown_dim())
            elif self.auto_pad.startswith("SAME"):
                result.append(dims.ceil_divide(length, self.strides[axis]))
            else:
                count = len(self.kernel)
                valid = self.auto_pad == "VALID"
                before, after = (0, 0) if valid else (self.pads[axis], self.pads[axis + count])
                if self.ceil_mode and not isinstance(length, int) and self.strides[axis] > 1:
                    result.append(unknown_dim())  # the rule that drops a last window has no simple form
                else:
                    result.append(self._output(axis, length, before, after))
        return tuple(result)

    def _extent(self, axis: int) -> int:
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def _padding(self, axis: int, length: int) -> tuple[int, int]:
        if self.auto_pad == "VALID":
            return 0, 0
        if self.auto_pad == "NOTSET":
            return self.pads[axis], self.pads[axis + len(self.kernel)]
        stride = self.strides[axis]
        total = max((-(-length // stride) - 1) * stride + self._extent(axis) - length, 0)
        small = total // 2
        return (small, total - small) if self.auto_pad == "SAME_UPPER" else (total - small, small)

    def _output(self, axis: int, length: Dim, before: int, after: int) -> Dim:
        stride = self.strides[axis]
        room = dims.add(length, before + after - self._extent(axis))
        if not self.ceil_mode or stride == 1:
            return dims.add(dims.floor_divide(room, stride), 1)
        assert isinstance(room, int)
        assert isinstance(length, int)
        windows = -(-room // stride) + 1
        # "sliding windows that would start in the right padded region are ignored"
        return windows - 1 if (windows - 1) * stride >= length + before else windows
