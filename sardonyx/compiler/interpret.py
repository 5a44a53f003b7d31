"""Renders kernels as Python functions over NumPy arrays: portable, and the oracle of the native renderings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.kernel.evaluate import evaluate
from sardonyx.kernel.program import Host, Kernel, Pointwise, View
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.plan import StepCall


def render(kernel: Kernel) -> StepCall:
    """The function that a step of a plan calls."""
    if isinstance(kernel, Pointwise):
        return _pointwise(kernel)
    if isinstance(kernel, View):
        return _view(kernel)
    return _host(kernel)


def _pointwise(kernel: Pointwise) -> StepCall:
    def call(context: RunContext, inputs: Sequence[Any]) -> Sequence[Any]:
        return evaluate(kernel, [value for value in inputs if value is not None])

    return call


def _view(kernel: View) -> StepCall:
    def call(context: RunContext, inputs: Sequence[Any]) -> Sequence[Any]:
        found = kernel.apply(*inputs)
        return found if isinstance(found, tuple) else (found,)

    return call


def _host(kernel: Host) -> StepCall:
    def call(context: RunContext, inputs: Sequence[Any]) -> Sequence[Any]:
        return kernel.call(*inputs)

    return call
