"""QLinearAveragePool: the real numbers of the input, pooled in float32, and the integers of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.native.pointwise import PointwiseKernel
from sardonyx.compiler.native.pooling.pool import PoolKernel
from sardonyx.compiler.native.template import NativeKernel, template
from sardonyx.kernel.program import Pointwise
from sardonyx.ops.framework.facts import Fact


@template("pool_quantized")
class QuantizedPoolKernel(NativeKernel):
    """Inputs: X, its scale and zero point, scale and zero point of the result; parameters are single numbers.

    Parameters: `real`, a `Pointwise` over X and those of its parameters that are there; `pool`, the parameters of the
    template "pool", whose further inputs are those of the result.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._real: Pointwise = parameters["real"]
        self._pool = PoolKernel(parameters["pool"])

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        return self._pool.declines(inputs, outputs)

    def bind(self, binder: Binder, inputs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        x = inputs[0]
        assert x is not None
        before, after = (
            [tensor.reshaped(()) for tensor in part if tensor is not None] for part in (inputs[1:3], inputs[3:])
        )
        (real,) = PointwiseKernel(self._real.outputs, self._real.inputs).bind(binder, [x, *before])
        return self._pool.bind(binder, [real, *after])
