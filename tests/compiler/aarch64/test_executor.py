"""The executor on AArch64: whole plans, alone and as the only thread of a thread pool."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.binding import Binder, Bound
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.native.products.matmul import MatMulKernel
from sardonyx.kernel.expr import Input, maximum
from sardonyx.runtime.native_plan import NativePlan
from sardonyx.runtime.threads.thread_pool import FINISHED
from tests.compiler.aarch64.machine import emulated, missing
from tests.compiler.aarch64.plans import run_plan

pytestmark = [
    pytest.mark.names_targets,
    pytest.mark.skipif(bool(missing()), reason=f"AArch64 is not emulated: {missing()}"),
]

Array = np.ndarray[Any, Any]
F32 = np.dtype(np.float32)


def run(bound: Bound, inputs: Sequence[Array], *, in_thread_pool: bool, times: Array) -> list[Array]:
    outputs = [np.empty(shape, dtype) for dtype, shape in bound.outputs]
    assert run_plan(bound, [*inputs, *outputs], in_thread_pool=in_thread_pool, times=times) == FINISHED
    return outputs


@pytest.mark.parametrize("in_thread_pool", [False, True])
def test_a_network_of_two_layers(in_thread_pool: bool) -> None:
    rng = np.random.default_rng(1)
    x, first, second = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 90), (90, 300), (300, 40)))
    binder = Binder(emulated())
    (hidden,) = MatMulKernel({}).bind(binder, binder.external(0, F32, x.shape), binder.constant(first))
    assert hidden is not None
    (active,) = PointwiseKernel([maximum(Input(F32, 0), 0.0)], [F32]).bind(binder, [hidden])
    (result,) = MatMulKernel({}).bind(binder, active, binder.constant(second))
    assert result is not None
    bound = binder.finish([result], 1, lambda _, tensor: tensor)
    assert bound.plan.width > 1
    times = np.zeros(len(bound.steps) + 1, np.int64)
    (found,) = run(bound, [x], in_thread_pool=in_thread_pool, times=times)
    expected = np.maximum(x.astype(np.float64) @ first, 0) @ second
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert (np.diff(times) > 0).all()


@pytest.mark.parametrize("flush", [False, True])
def test_denormal_numbers_are_kept_or_flushed(flush: bool) -> None:
    binder = Binder(emulated())
    x = np.array([1e-40, 1.0, 3e-39, -1e-44], np.float32)
    (result,) = PointwiseKernel([Input(F32, 0) * 2.0], [F32]).bind(binder, [binder.external(0, F32, x.shape)])
    bound = binder.finish([result], 1, lambda _, tensor: tensor)
    plan = bound.plan
    remade = NativePlan(
        plan.words, plan.fixups, plan.steps, plan.arena_bytes, plan.scratch_bytes, plan.base_count, plan.labels,
        flush_denormals=flush,
    )  # fmt: skip
    bound = dataclasses.replace(bound, plan=remade)
    (found,) = run(bound, [x], in_thread_pool=False, times=np.zeros(2, np.int64))
    np.testing.assert_array_equal(found, np.where(np.abs(x) < 1e-38, 0, x * 2) if flush else x * 2)
