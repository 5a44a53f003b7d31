"""Renders kernels as Python functions over NumPy arrays: portable, and the oracle of the native renderings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.kernel.evaluate import evaluate
from sardonyx.kernel.program import Host, Kernel, Pointwise, Template, View
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.memory import memory
from sardonyx.runtime.plan import StepCall


def render(kernel: Kernel) -> StepCall:
    """The function that a step of a plan calls."""
    if isinstance(kernel, Pointwise):
        return _pointwise(kernel)
    if isinstance(kernel, View):
        return _view(kernel)
    return _host(kernel)


def _pointwise(kernel: Pointwise) -> StepCall:
    width = sum(expr.dtype.itemsize for expr in kernel.outputs)

    def call(context: RunContext, inputs: Sequence[Any]) -> Sequence[Any]:
        given = [value for value in inputs if value is not None]
        most = width
        for value in given:
            most *= value.size
        if most >= memory.CHECKED_BYTES:  # an upper bound of the outputs' size; seldom reached
            shape = np.broadcast_shapes(*(value.shape for value in given))
            memory.require(width * math.prod(shape), "the result of a pointwise kernel")
        return evaluate(kernel, given)

    return call


def _view(kernel: View) -> StepCall:
    def call(context: RunContext, inputs: Sequence[Any]) -> Sequence[Any]:
        _check_copies(inputs)
        found = kernel.apply(*inputs)
        return found if isinstance(found, tuple) else (found,)

    return call


def _host(kernel: Host | Template) -> StepCall:
    function = kernel.call if isinstance(kernel, Host) else kernel.run

    def call(context: RunContext, inputs: Sequence[Any]) -> Sequence[Any]:
        _check_copies(inputs)
        return function(*inputs)

    return call


def _check_copies(inputs: Sequence[Any]) -> None:
    """Whether there is room for copies of inputs that are views: an expanded one is far larger than its memory."""
    for value in inputs:
        if isinstance(value, np.ndarray) and value.nbytes >= memory.CHECKED_BYTES and not value.flags.c_contiguous:
            memory.require(value.nbytes, "a copy of an input")
