"""Values of rows that are quantised: a reduction to real numbers, then the integers of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.expression import supported
from sardonyx.compiler.native.rows.reduction import ReductionTemplate
from sardonyx.kernel.program import Pointwise
from sardonyx.ops.framework.facts import Fact


@template("quantized_rows")
class QuantizedRowsKernel(NativeKernel):
    """Parameters: `rows`, those of the template "reduction", which gives one value for each row, and `program`, a
    `Pointwise` over these values and the inputs at the places `parameters`, single numbers.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._rows = ReductionTemplate(parameters["rows"])
        self._program: Pointwise = parameters["program"]

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        return self._rows.declines(inputs, outputs) or supported(self._program.outputs)

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor | None]:
        (values,) = self._rows.bind(binder, *inputs)
        assert values is not None
        numbers = [inputs[place] for place in self.parameters["parameters"]]
        operands = [values, *(number.reshaped(()) for number in numbers if number is not None)]
        return PointwiseKernel(self._program.outputs, self._program.inputs).bind(binder, operands)
