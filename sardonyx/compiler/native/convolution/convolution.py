"""Convolution: the template, and the choice of an algorithm.

To add an algorithm, write a file with an `Algorithm` (see `algorithm`): a function that predicts its time for a call,
None where it cannot do it, and one that binds it; put it into `ALGORITHMS`. What a call holds, and how results,
operands and the epilogue look to an algorithm, is in `convolution_call`. The least predicted time wins, the first of
equal ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.native.convolution.algorithm import Algorithm
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.convolution.line_products import LINE_PRODUCTS
from sardonyx.compiler.native.convolution.window_copies import WINDOW_COPIES
from sardonyx.compiler.native.convolution.winograd import WINOGRAD
from sardonyx.compiler.native.convolution.window_products import WINDOW_PRODUCTS
from sardonyx.compiler.native.products.gemm_step import product_of
from sardonyx.compiler.native.template import Epilogue, NativeKernel, template
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.windows import WindowAttributes

ALGORITHMS: tuple[Algorithm, ...] = (WINDOW_COPIES, WINDOW_PRODUCTS, LINE_PRODUCTS, WINOGRAD)


@template("convolution")
class ConvolutionKernel(NativeKernel):
    """Parameters: `group`, and `attributes`, from the kernel's sizes to its `WindowAttributes`."""

    takes_epilogue = True

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.group: int = parameters["group"]
        self.attributes: Callable[[Sequence[int]], WindowAttributes] = parameters["attributes"]

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        for fact in inputs[:2]:
            if fact is None or fact.dtype is None:
                return "the type of the input or of the weights is not known before the run"
            if product_of(numpy_dtype(fact.dtype)) is None:
                return f"no kernel for products of {numpy_dtype(fact.dtype)}"
        return None

    def bind(
        self, binder: Binder, inputs: Sequence[Tensor | None], *, epilogue: Epilogue | None = None
    ) -> Sequence[Tensor | None]:
        x, w = inputs[0], inputs[1]
        assert x is not None
        assert w is not None
        call = self.call(binder, x, w, inputs[2] if len(inputs) > 2 else None, epilogue)
        return choose(binder, call).bind(binder, call)

    def call(
        self, binder: Binder, x: Tensor, w: Tensor, bias: Tensor | None, epilogue: Epilogue | None
    ) -> ConvolutionCall:
        """The call; ValueError where the shapes do not fit."""
        rank, group = len(x.shape), self.group
        fits = rank == len(w.shape) and rank > 2
        if not fits or x.shape[1] != w.shape[1] * group or w.shape[0] % group:
            raise ValueError(f"input {x.shape} and weights {w.shape} with group {group} do not fit")
        if bias is not None and bias.shape != w.shape[:1]:
            raise ValueError(f"the bias has the shape {bias.shape}, but there are {w.shape[0]} filters")
        product = product_of(x.dtype, binder.target, binder.settings.precision)
        assert product is not None
        windows = self.attributes(w.shape[2:]).windows(x.shape[2:])
        return ConvolutionCall(x, w, bias, windows, group, epilogue, product)


def choose(binder: Binder, call: ConvolutionCall) -> Algorithm:
    """The algorithm that is predicted to be the fastest for a call."""
    predicted = [(algorithm.predict(binder, call), algorithm) for algorithm in ALGORITHMS]
    able = [(time, algorithm) for time, algorithm in predicted if time is not None]
    return min(able, key=lambda pair: pair[0])[1]
