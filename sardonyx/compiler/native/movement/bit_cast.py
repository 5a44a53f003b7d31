"""BitCast: the same memory read as another type."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact


@template("bit_cast")
class BitCast(NativeKernel):
    """A view of the elements as ``dtype``, whose elements are as wide."""

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        data = inputs[0]
        if data is None or data.dtype is None or numpy_dtype(data.dtype).itemsize != self.parameters["dtype"].itemsize:
            return "the types differ in width"
        if data.dtype.bitwidth < 8:
            return "elements of less than a byte are converted in NumPy"
        return None

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data = inputs[0]
        assert data is not None
        return [Tensor(self.parameters["dtype"], data.shape, data.strides, data.buffer, data.offset)]
