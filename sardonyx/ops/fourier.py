"""Fourier transforms: DFT, STFT."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from sardonyx.kernel.program import Kernel, Template
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Dim, Fact, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator
from sardonyx.ops.shape import axis_of
from sardonyx.runtime.memory import memory

# Lengths beyond this are a mistake: no memory holds the signal.
_LONGEST = 2**40


def single_number(value: Array, name: str) -> int:
    """The one element of an input; ValueError where there are more or none."""
    if value.size != 1:
        raise ValueError(f"input '{name}' must have one element, not shape {tuple(value.shape)}")
    return int(value.reshape(()))


def signal_axis(shape: Sequence[int], given: Array | None, default: int) -> int:
    """The axis of a signal [..., 1 or 2] that is transformed; ValueError for the last one, or for such a shape."""
    if len(shape) < 2 or shape[-1] not in (1, 2):
        raise ValueError(f"the last of two or more dimensions must be 1 (real) or 2 (complex), the shape is {shape}")
    axis = axis_of(default if given is None else single_number(given, "axis"), len(shape))
    if axis == len(shape) - 1:
        raise ValueError(f"axis {axis} holds real and imaginary parts: it cannot be transformed")
    return axis


def transform_length(size: int, given: Array | None, *, half: bool) -> int:
    """Elements of a transform over an axis of `size`, which may hold half of a spectrum; ValueError below 1."""
    default = 2 * (size - 1) if half else size
    length = default if given is None else single_number(given, "dft_length")
    if not 1 <= length <= _LONGEST:
        raise ValueError(f"the length of a transform must be positive, it is {length}")
    return length


@dataclass(frozen=True)
class Frames:
    """The frames of a signal: their length, the step from one to the next, and how many there are."""

    length: int
    step: int
    count: int

    @staticmethod
    def of(signal: Sequence[int], step: Array | None, window: Sequence[int] | None, length: Array | None) -> Frames:
        """From the shapes of signal and window; ValueError where they contradict each other or nothing fits."""
        if len(signal) not in (2, 3) or (len(signal) == 3 and signal[-1] not in (1, 2)):
            raise ValueError(
                f"the signal must be of shape [batch, length, 1 or 2] or [batch, length], not {tuple(signal)}"
            )
        if window is not None and len(window) != 1:
            raise ValueError(f"the window must be a vector, not of shape {tuple(window)}")
        assert step is not None
        hop = single_number(step, "frame_step")
        if length is not None:
            size = single_number(length, "frame_length")
        else:
            size = signal[1] if window is None else window[0]
        if hop < 1 or size < 1:
            raise ValueError(f"frame_step and frame_length must be positive, they are {hop} and {size}")
        if window is not None and window[0] != size:
            raise ValueError(f"the window has {window[0]} elements, but a frame has {size}")
        if size > signal[1]:
            raise ValueError(f"a frame of {size} elements is longer than the signal, which has {signal[1]}")
        return Frames(size, hop, 1 + (signal[1] - size) // hop)


def _as_complex(x: Array) -> Array:
    """(..., 1) or (..., 2) as numbers of float64 or complex128."""
    wide = x.astype(np.float64)
    return np.asarray(wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1])


def _in_parts(z: Array, dtype: np.dtype[Any]) -> Array:
    return np.stack([z.real, z.imag], axis=-1).astype(dtype)


class Transforming(Operator):
    """What both versions of DFT share."""

    inverse: int = 0
    onesided: int = 0
    default_axis: ClassVar[int] = -2

    def first_axis(self) -> int:
        """The axis where no input gives it."""
        return self.default_axis

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parameters = {
            "axis": self.first_axis(),
            "inverse": bool(self.inverse),
            "onesided": bool(self.onesided),
        }
        return Template("dft", parameters, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, length, place = (*inputs, None, None)[:3]
        assert x is not None
        if x.shape is None:
            return [Fact(x.type, None)]
        if len(x.shape) < 2:
            raise ValueError("a signal has two or more dimensions, the last of which is 1 (real) or 2 (complex)")
        parts = 1 if self.inverse and self.onesided else 2
        axis = [self.first_axis()] if place is None else place.integers()
        if not axis:
            return [Fact(x.type, (*(unknown_dim() for _ in x.shape[:-1]), parts))]
        shape: list[Dim] = [*x.shape[:-1], parts]
        known = [dim if isinstance(dim, int) else 1 for dim in x.shape]
        at = signal_axis(known, np.array(axis), self.first_axis())
        shape[at] = self._result_length(x.shape[at], length)
        return [Fact(x.type, tuple(shape))]

    def _result_length(self, size: Dim, length: Fact | None) -> Dim:
        """Elements of the result along the axis, of which the signal has `size`."""
        numbers = None if length is None else length.integers()
        if length is None and not isinstance(size, int):
            return unknown_dim() if self.onesided else size
        if length is not None and not numbers:
            return unknown_dim()
        half = bool(self.inverse and self.onesided)
        given = None if numbers is None else np.array(numbers)
        count = transform_length(size if isinstance(size, int) else 1, given, half=half)
        return count // 2 + 1 if self.onesided and not self.inverse else count

    def run(self, x: Array, dft_length: Array | None = None, axis: Array | None = None) -> Sequence[Value]:
        place = signal_axis(x.shape, axis, self.first_axis())
        half = bool(self.inverse and self.onesided)
        length = transform_length(x.shape[place], dft_length, half=half)
        signal = _as_complex(x)
        if half:
            return (np.fft.irfft(signal, length, place)[..., None].astype(x.dtype),)
        transform = np.fft.ifft if self.inverse else np.fft.fft
        result = transform(signal, length, place)
        if self.onesided:
            result = result[(slice(None),) * place + (slice(0, length // 2 + 1),)]
        return (_in_parts(result, x.dtype),)


@operator("DFT", since=17)
class Dft17(Transforming):
    """The discrete Fourier transform along the axis that an attribute names."""

    axis: int = 1

    def first_axis(self) -> int:
        return self.axis


@operator("DFT", since=20)
class Dft20(Transforming):
    """The discrete Fourier transform along the axis that an input names."""


@operator("STFT", since=17)
class Stft(Operator):
    """Transforms of the frames of a signal, times a window.

    ONNX wants a third dimension of 1 for real signals; exporters leave it out, and onnxruntime takes that.
    """

    onesided: int = 1

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return Template("stft", {"onesided": bool(self.onesided)}, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        signal, step, window, length = (*inputs, None, None)[:4]
        assert signal is not None
        assert step is not None
        if signal.shape is None or len(signal.shape) not in (2, 3):
            return [Fact(signal.type, (*(unknown_dim() for _ in range(3)), 2))]
        batch, size = signal.shape[:2]
        frame: Dim | None = size
        if length is not None:
            frame = next(iter(length.integers() or []), None)
        elif window is not None:
            frame = next(iter(window.shape or []), None)
        steps = step.integers()
        count: Dim = unknown_dim()
        bins: Dim = unknown_dim()
        if isinstance(frame, int):
            bins = frame // 2 + 1 if self.onesided else frame
            if isinstance(size, int) and steps:
                count = Frames.of((1, size, 1), np.array(steps), None, np.array(frame)).count
        return [Fact(signal.type, (batch, count, bins, 2))]

    def run(
        self, signal: Array, frame_step: Array, window: Array | None = None, frame_length: Array | None = None
    ) -> Sequence[Value]:
        frames = Frames.of(signal.shape, frame_step, None if window is None else window.shape, frame_length)
        numbers = frames.count * frames.length * (1 + 4 * signal.shape[0])
        memory.require(numbers * np.dtype(np.complex128).itemsize, "the frames of an STFT")
        places = np.arange(frames.count)[:, None] * frames.step + np.arange(frames.length)
        values = _as_complex(signal.reshape(*signal.shape[:2], math.prod(signal.shape[2:])))[:, places]
        if window is not None:
            values = values * window.astype(np.float64)
        result = np.fft.fft(values, axis=-1)
        kept = frames.length // 2 + 1 if self.onesided else frames.length
        return (_in_parts(result[..., :kept], signal.dtype),)
