"""Random convolutions, and what they are in float64."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Binder, Buffer, Tensor
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.native.convolution.algorithm import Algorithm
from sardonyx.compiler.native.convolution.convolution import ConvolutionKernel
from sardonyx.kernel.expr import Input, maximum
from sardonyx.ops.windows import WindowAttributes
from tests.compiler.steps import Memory

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A convolution: shapes of ONNX's order, attributes, how the input lies, and what follows."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    group: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto_pad: str = "NOTSET"
    channels_last: bool = True
    has_bias: bool = False
    follows: str = ""  # "", "relu", "residual"

    def attributes(self) -> WindowAttributes:
        return WindowAttributes.of(self.w[2:], self.strides, self.dilations, self.pads, self.auto_pad)


# Taps, stride and dilation along lines, for which some kernels have code of their own: few, or tests would compile.
LINES = [(1, 2, 1), (2, 1, 3), (3, 1, 1), (3, 2, 2), (4, 1, 1), (5, 1, 2), (6, 2, 1), (7, 3, 1)]


def random_case(random: np.random.Generator, *, dims: int = 0, most_channels: int = 40) -> Case:
    """Any attributes, sizes that are tiny or prime among others; the kernel always fits the padded input."""
    dims = dims or int(random.choice([1, 2, 2, 2, 3]))
    kernel = tuple(int(n) for n in random.integers(1, 8 if dims < 3 else 4, dims))
    strides = tuple(int(n) for n in random.integers(1, 4, dims))
    dilations = tuple(int(n) for n in random.choice([1, 1, 2, 3], dims))
    line = LINES[int(random.integers(len(LINES)))]
    kernel, strides, dilations = (
        (*own[:-1], of_line) for own, of_line in zip((kernel, strides, dilations), line, strict=True)
    )
    auto_pad = str(random.choice(["NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    extent = [(taps - 1) * apart + 1 for taps, apart in zip(kernel, dilations, strict=True)]
    pads = tuple(int(random.integers(0, reach + 1)) for reach in (*extent, *extent))
    if auto_pad != "NOTSET":
        pads = (0,) * (2 * dims)
    sizes = []
    for axis, reach in enumerate(extent):
        padding = pads[axis] + pads[axis + dims] if auto_pad == "NOTSET" else 0
        least = 1 if auto_pad.startswith("SAME") else max(1, reach - padding)
        sizes.append(least + int(random.choice([0, 1, 2, 4, 6, 10, 12])))
    group = int(random.choice([1, 1, 1, 2, 3, 4]))
    each = int(random.choice([1, 3, 3, 13, 16, 17, 24, most_channels]))
    filters = int(random.choice([1, 2, 3, 7, 16, 19, 33]))
    follows = str(random.choice(["relu", "residual"]))
    return Case(
        x=(int(random.choice([1, 1, 2, 3])), group * each, *sizes),
        w=(group * filters, each, *kernel),
        group=group,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        channels_last=bool(random.integers(2)),
        has_bias=follows == "relu",
        follows=follows,
    )


def correlated(x: Array, w: Array, case: Case) -> Array:
    """The convolution, tap by tap."""
    windows = case.attributes().windows(x.shape[2:])
    count = len(windows.size)
    reach = [
        (places - 1) * stride + (taps - 1) * apart + 1
        for places, stride, taps, apart in zip(
            windows.output, windows.strides, windows.kernel, windows.dilations, strict=True
        )
    ]
    room = np.zeros(
        (*x.shape[:2], *(max(r, b + n) for r, b, n in zip(reach, windows.begin, windows.size, strict=True)))
    )
    room[(..., *(slice(b, b + n) for b, n in zip(windows.begin, windows.size, strict=True)))] = x
    batch, channels, group = x.shape[0], x.shape[1], case.group
    result = np.zeros((batch, group, w.shape[0] // group, math.prod(windows.output)))
    for taps in itertools.product(*map(range, windows.kernel)):
        at = tuple(
            slice(tap * apart, tap * apart + (places - 1) * stride + 1, stride)
            for tap, apart, places, stride in zip(taps, windows.dilations, windows.output, windows.strides, strict=True)
        )
        seen = room[(..., *at)].reshape(batch, group, channels // group, result.shape[-1])
        weights = w[(..., *taps)].reshape(group, w.shape[0] // group, channels // group)
        result += np.matmul(weights, seen)
    assert count == len(case.strides)
    return result.reshape(batch, w.shape[0], *windows.output)


def expected(x: Array, w: Array, bias: Array | None, residual: Array | None, case: Case) -> tuple[Array, Array]:
    """The result in float64, and the sum of magnitudes by which errors are measured."""
    wide = [None if array is None else array.astype(np.float64) for array in (x, w, bias, residual)]
    assert wide[0] is not None
    assert wide[1] is not None
    result = correlated(wide[0], wide[1], case)
    scale = correlated(np.abs(wide[0]), np.abs(wide[1]), case)
    ones = (1,) * (x.ndim - 2)
    if wide[2] is not None:
        result += wide[2].reshape(-1, *ones)
        scale += np.abs(wide[2]).reshape(-1, *ones)
    if wide[3] is not None:
        result += wide[3]
        scale += np.abs(wide[3])
    if case.follows:
        result = np.maximum(result, 0)
    return result, scale


def place(memory: Memory, array: Array, channels_last: bool) -> Tensor:
    """An input [batch, channels, ...] in memory of its own, channels last or in ONNX's order."""
    order = (0, *range(2, array.ndim), 1) if channels_last else tuple(range(array.ndim))
    lying = array.transpose(order)
    strides = [0] * array.ndim
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= array.shape[axis]
    tensor = Tensor(array.dtype, array.shape, tuple(strides), Buffer(lying.nbytes))
    memory.put(tensor, array)
    return tensor


def run(
    binder: Binder,
    algorithm: Algorithm | None,
    case: Case,
    x: Array,
    w: Array,
    bias: Array | None,
    residual: Array | None,
    *,
    one_by_one: bool = False,
    constant: bool = True,
) -> Array | None:
    """What an algorithm computes (None: the one that is chosen); None where it cannot."""
    memory = Memory()
    kernel = ConvolutionKernel({"group": case.group, "attributes": lambda sizes: case.attributes()})
    epilogue = None
    if case.follows:
        value = Input(x.dtype, 0) if residual is None else Input(x.dtype, 0) + Input(x.dtype, 1)
        operands = () if residual is None else (place(memory, residual, case.channels_last),)
        epilogue = Epilogue((maximum(value, 0.0),), operands)
    weights = binder.constant(w) if constant else place(memory, w, False)
    inputs = place(memory, x, case.channels_last), weights, None if bias is None else binder.constant(bias)
    if algorithm is None:
        (y,) = kernel.bind(binder, *inputs, epilogue=epilogue)
    else:
        call = kernel.call(binder, *inputs, epilogue)
        if algorithm.predict(binder, call) is None:
            return None
        (y,) = algorithm.bind(binder, call)
    assert y is not None
    faults = memory.run(binder, one_by_one=one_by_one)
    assert not faults
    return memory.read(y).copy()


def arrays_of(case: Case, random: np.random.Generator, dtype: Any = np.float32) -> tuple[Any, ...]:
    """x, w, bias and residual, the last two None where the case has none."""

    def some(shape: tuple[int, ...]) -> Array:
        return random.standard_normal(shape).astype(dtype)

    shape = (case.x[0], case.w[0], *case.attributes().windows(case.x[2:]).output)
    return (
        some(case.x),
        some(case.w),
        some(case.w[:1]) if case.has_bias else None,
        some(shape) if case.follows == "residual" else None,
    )
