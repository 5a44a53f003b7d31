"""Fourier transforms and products of complex numbers, real and imaginary parts interleaved along the last axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx.ops.framework.facts import Dim, Fact, broadcast
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.rules import DOMAIN, Array, like, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


def as_complex(x: Array, name: str) -> Array:
    """(…, 2) as complex numbers."""
    if x.ndim == 0 or x.shape[-1] != 2:
        raise ValueError(f"the last dimension of input '{name}' must be 2 (real, imaginary), got shape {x.shape}")
    values = wide(x)
    return np.asarray(values[..., 0] + 1j * values[..., 1])


def interleaved(z: Array, dtype: np.dtype[Any]) -> Array:
    """Complex numbers as (…, 2)."""
    return np.stack([z.real, z.imag], axis=-1).astype(dtype)


class Fourier(Operator):
    """A one-sided transform over the last `signal_ndim` axes of the signal."""

    inputs: ClassVar[str] = "X"
    outputs: ClassVar[str] = "Y"
    normalized: int = 0
    onesided: int = 1
    signal_ndim: int
    host_reason: ClassVar[str] = "a Fourier transform"

    def axes(self, rank: int) -> tuple[int, ...]:
        """The axes of a signal of `rank` dimensions."""
        if self.normalized or not self.onesided:
            raise ValueError("attributes 'normalized' and 'onesided' must be 0 and 1: no other transform is defined")
        if not 1 <= self.signal_ndim <= rank:
            raise ValueError(f"attribute 'signal_ndim' must be between 1 and {rank}, not {self.signal_ndim}")
        return tuple(range(rank - self.signal_ndim, rank))


@operator("Rfft", domain=DOMAIN)
class Rfft(Fourier):
    """The transform of a real signal of n elements: n // 2 + 1 complex ones."""

    signal_ndim: int = 1

    def run(self, *inputs: Any) -> Sequence[Array]:
        (x,) = inputs
        return (interleaved(np.fft.rfftn(wide(x), axes=self.axes(x.ndim)), x.dtype),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        if x is None or x.shape is None:
            return [like(x, None)]
        self.axes(len(x.shape))
        return [like(x, (*x.shape[:-1], x.shape[-1] // 2 + 1, 2))]


@operator("Irfft", domain=DOMAIN)
class Irfft(Fourier):
    """The real signal of n elements, n even, whose Rfft is the input."""

    def run(self, *inputs: Any) -> Sequence[Array]:
        z = as_complex(inputs[0], "X")
        return (np.fft.irfftn(z, axes=self.axes(z.ndim)).astype(inputs[0].dtype),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        if x is None or x.shape is None or len(x.shape) < 2:
            return [like(x, None)]
        self.axes(len(x.shape) - 1)
        length: Dim = (x.shape[-2] - 1) * 2
        return [like(x, (*x.shape[:-2], length))]


@operator("ComplexMul", domain=DOMAIN)
class ComplexMul(Operator):
    """A * B of complex numbers, which broadcast."""

    inputs: ClassVar[str] = "A, B"
    outputs: ClassVar[str] = "C"
    host_reason: ClassVar[str] = "pairs of elements make one number"

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, b = inputs
        return (interleaved(as_complex(a, "A") * self.factor(as_complex(b, "B")), a.dtype),)

    def factor(self, b: Array) -> Array:
        return b

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        shapes = [fact.shape for fact in inputs if fact is not None and fact.shape is not None]
        return [like(inputs[0], broadcast(shapes) if len(shapes) == 2 else None)]


@operator("ComplexMulConj", domain=DOMAIN)
class ComplexMulConj(ComplexMul):
    """A times the conjugate of B."""

    def factor(self, b: Array) -> Array:
        return np.asarray(np.conj(b))
