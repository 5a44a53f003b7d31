"""DFT and STFT."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.fourier.transform import Rows, Transform, transform_rows
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.native.movement.copy import contiguous, copy
from sardonyx.ops.fourier import Frames, signal_axis, transform_length


def _number(tensor: Tensor | None) -> Array | None:
    return None if tensor is None else tensor.array


@template("dft")
class Dft(NativeKernel):
    """Transforms along one axis of a signal, whose last axis holds real and imaginary parts.

    Parameters: ``axis`` where no third input gives it, ``inverse``, ``onesided``.
    """

    known_inputs = (1, 2)

    def bind(
        self, binder: Binder, x: Tensor, given: Tensor | None = None, place: Tensor | None = None
    ) -> Sequence[Tensor]:
        axis = signal_axis(x.shape, _number(place), self.parameters["axis"])
        inverse, onesided = self.parameters["inverse"], self.parameters["onesided"]
        length = transform_length(x.shape[axis], _number(given), half=inverse and onesided)
        asked = Transform(length, inverse, onesided)
        order = [*(one for one in range(len(x.shape) - 1) if one != axis), axis, len(x.shape) - 1]
        last = x.reshaped([x.shape[one] for one in order], [x.strides[one] for one in order])
        rows = Rows.of(contiguous(binder, last))
        result = transform_rows(binder, rows, None, asked)
        shape = (*last.shape[:-2], asked.results, asked.result_parts)
        result = result.reshaped(shape)
        back = [order.index(one) for one in range(len(order))]
        return [result.reshaped([shape[one] for one in back], [result.strides[one] for one in back])]


@template("stft")
class Stft(NativeKernel):
    """Transforms of the frames of a signal [batch, length, parts] or [batch, length], times a window.

    Parameter: ``onesided``.
    """

    known_inputs = (1, 3)

    def bind(
        self,
        binder: Binder,
        signal: Tensor,
        step: Tensor,
        window: Tensor | None = None,
        length: Tensor | None = None,
    ) -> Sequence[Tensor]:
        frames = Frames.of(signal.shape, _number(step), None if window is None else window.shape, _number(length))
        asked = Transform(frames.length, onesided=self.parameters["onesided"])
        batch, size, parts = (*signal.shape, 1)[:3]
        signal = contiguous(binder, signal)
        rows = Rows(
            signal,
            batch * frames.count,
            frames.length,
            parts,
            max(1, frames.count),
            size * parts,
            frames.step * parts,
        )
        if window is not None:
            window = _for_each_part(binder, window, parts)
        result = transform_rows(binder, rows, window, asked)
        return [result.reshaped((batch, frames.count, asked.results, 2))]


def _for_each_part(binder: Binder, window: Tensor, parts: int) -> Tensor:
    """A window with as many words as a frame has: twice the same for complex numbers."""
    if parts == 1:
        return contiguous(binder, window)
    if window.array is not None:
        return binder.constant(np.repeat(window.array, parts))
    return copy(binder, window.reshaped((window.size, parts), (window.strides[0], 0))).reshaped((window.size * parts,))
