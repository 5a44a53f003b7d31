"""Steps of optimizers: Momentum, Adagrad, Adam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.expression import supported
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.optimizers import check_scalars, check_tensor


@template("optimizer")
class Optimizer(NativeKernel):
    """A step of each of several tensors.

    `prelude` makes the numbers that serve all of them, a loop over one element; `stepped` is a loop over the elements
    of each tensor, its gradient and its states.
    """

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        dtypes = [None if fact is None or fact.dtype is None else numpy_dtype(fact.dtype) for fact in inputs]
        rate, count, *others = (dtype for dtype in dtypes if dtype is not None)
        each = self.parameters["tensors"](len(others))
        for number in range(each):
            given = others[number::each]
            prelude = self.parameters["prelude"](rate, count, given[0])
            problem = supported([*prelude.outputs, *self.parameters["stepped"](prelude, given).outputs])
            if problem is not None:
                return problem
        return None

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        rate, count, *others = (tensor for tensor in inputs if tensor is not None)
        check_scalars(rate.shape, count.shape)
        each = self.parameters["tensors"](len(others))
        single = [rate.reshaped(()), count.reshaped(())]
        scalars: dict[np.dtype[Any], list[Tensor]] = {}
        results = []
        for number in range(each):
            given = others[number::each]
            check_tensor([tensor.shape for tensor in given])
            dtype = given[0].dtype
            prelude = self.parameters["prelude"](rate.dtype, count.dtype, dtype)
            if dtype not in scalars:
                scalars[dtype] = PointwiseKernel(prelude.outputs, prelude.inputs).bind(binder, single)
            step = self.parameters["stepped"](prelude, [tensor.dtype for tensor in given])
            results.append(PointwiseKernel(step.outputs, step.inputs).bind(binder, [*scalars[dtype], *given]))
        return [result[place] for place in range(len(results[0])) for result in results]
