"""QLinearConcat: parts of several scales, expressed in one and put side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.llvm.expression import supported
from sardonyx.compiler.native.movement.concat import Concat
from sardonyx.compiler.native.pointwise import PointwiseKernel
from sardonyx.compiler.native.template import NativeKernel, template
from sardonyx.ops.framework.facts import Fact


@template("concat_quantized")
class QLinearConcatKernel(NativeKernel):
    """Inputs: scale and zero point of the result, and triples of a part and its own.

    Parameters: `axis`, and `programs`, a `Pointwise` over each triple and the result's scale and zero point.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._concat = Concat({"axis": parameters["axis"]})

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        return supported([root for program in self.parameters["programs"] for root in program.outputs])

    def bind(self, binder: Binder, inputs: Sequence[Tensor | None]) -> Sequence[Tensor]:
        target = [_number(tensor) for tensor in inputs[:2]]
        parts = []
        for program, first in zip(self.parameters["programs"], range(2, len(inputs), 3), strict=True):
            part = inputs[first]
            assert part is not None
            operands = [part, *(_number(tensor) for tensor in inputs[first + 1 : first + 3]), *target]
            parts += PointwiseKernel(program.outputs, program.inputs).bind(binder, operands)
        return self._concat.bind(binder, parts)


def _number(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.reshaped(())
