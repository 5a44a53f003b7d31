"""QLinearConcat: parts of several scales, expressed in one and put side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.expression import supported
from sardonyx.compiler.native.movement.concat import Concat
from sardonyx.ops.framework.facts import Fact


@template("concat_quantized")
class QLinearConcatKernel(NativeKernel):
    """Inputs: scale and zero point of the result, and triples of a part and its own.

    Parameters: `axis`, and `programs`, a `Pointwise` over each triple and the result's scale and zero point. Parts that
    have these already are put in place as they are.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._concat = Concat({"axis": parameters["axis"]})

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        return supported([root for program in self.parameters["programs"] for root in program.outputs])

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        target = [_number(tensor) for tensor in inputs[:2]]
        parts = []
        for program, first in zip(self.parameters["programs"], range(2, len(inputs), 3), strict=True):
            part = inputs[first]
            assert part is not None
            own = inputs[first + 1 : first + 3]
            if part.dtype == target[1].dtype and _are_the_same(own, inputs[:2]):
                parts.append(part)
                continue
            operands = [part, *map(_number, own), *target]
            parts += PointwiseKernel(program.outputs, program.inputs).bind(binder, operands)
        return self._concat.bind(binder, *parts)


# A scale between these gives each of 256 steps back what it was, times it and divided by it.
_SMALLEST, _LARGEST = float(np.finfo(np.float32).tiny), 1e30


def _are_the_same(own: Sequence[Tensor | None], target: Sequence[Tensor | None]) -> bool:
    """Whether a part's scale and zero point are known to be those of the result."""
    arrays = [tensor.array for tensor in (*own, *target) if tensor is not None and tensor.array is not None]
    if len(arrays) < len(own) + len(target):
        return False
    scale, zero, wanted, origin = (array.reshape(()).item() for array in arrays)
    return bool(scale == wanted and zero == origin and _SMALLEST <= abs(scale) <= _LARGEST)


def _number(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.reshaped(())
