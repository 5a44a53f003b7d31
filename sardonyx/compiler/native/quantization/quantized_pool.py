"""QLinearAveragePool: the input without its zero point, pooled in float32, and the integers of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.native.pooling.pool import PoolKernel
from sardonyx.kernel.program import Pointwise
from sardonyx.ops.framework.facts import Fact


@template("pool_quantized")
class QuantizedPoolKernel(NativeKernel):
    """Inputs: X, its scale and zero point, scale and zero point of the result; parameters are single numbers.

    Parameters: `whole`, a `Pointwise` over X and its zero point, if that is there; `pool`, the parameters of the
    template "pool", whose further inputs are the scale of X and those of the result.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._whole: Pointwise = parameters["whole"]
        self._pool = PoolKernel(parameters["pool"])

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        return self._pool.declines(inputs, outputs)

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor | None]:
        x = inputs[0]
        assert x is not None
        scale, zero, *after = (None if tensor is None else tensor.reshaped(()) for tensor in inputs[1:])
        read = [x] if zero is None else [x, zero]
        (whole,) = PointwiseKernel(self._whole.outputs, self._whole.inputs).bind(binder, read)
        return self._pool.bind(binder, whole, scale, *after)
