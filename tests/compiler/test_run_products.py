"""Convolutions by AMX that read windows where they lie, on any x86-64 machine with AVX-512: see `test_gemm_tiles`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.native.convolution import convolution
from sardonyx.compiler.native.convolution.convolution import ConvolutionKernel
from sardonyx.compiler.native.convolution.run_products import RUN_PRODUCTS
from sardonyx.compiler.native.convolution.window_copies import WINDOW_COPIES
from sardonyx.compiler.native.convolution.window_products import WINDOW_PRODUCTS
from sardonyx.kernel.expr import Input, maximum
from sardonyx.runtime.settings import RunSettings
from tests.compiler.convolution_cases import Case, expected, place
from tests.compiler.steps import Memory
from tests.compiler.test_gemm_tiles import EmulatedLibrary, needs_avx512, run

CASES = (
    Case((1, 32, 7, 7), (33, 32, 3, 3), 1, (1, 1), (1, 1), (1, 1, 1, 1), follows="residual"),
    Case((2, 40, 5, 9), (20, 40, 3, 3), 1, (1, 1), (1, 1), (1, 1, 1, 1), follows="relu", has_bias=True),
    Case((1, 32, 9, 8), (40, 32, 3, 3), 1, (1, 1), (2, 2), (2, 2, 2, 2), channels_last=False),
    Case((2, 64, 6, 5), (32, 64, 2, 3), 1, (1, 1), (1, 1), (0, 0, 0, 0), follows="residual"),
    Case((1, 32, 2, 40), (32, 32, 5, 1), 1, (1, 1), (1, 1), (2, 3, 4, 1)),
    Case((1, 18, 3, 1), (70, 18, 3, 3), 1, (1, 1), (1, 1), (1, 1, 1, 1)),
)
FEW_ROWS = Case((1, 64, 1, 19), (40, 64, 1, 1), 1, (1, 1), (1, 1), (0, 0, 0, 0), follows="residual")


@pytest.fixture(scope="module")
def emulated() -> EmulatedLibrary:
    return EmulatedLibrary()


@needs_avx512
@pytest.mark.parametrize("algorithm", [RUN_PRODUCTS, WINDOW_COPIES], ids=lambda one: one.name)
def test_convolutions_in_parts(emulated: EmulatedLibrary, monkeypatch: pytest.MonkeyPatch, algorithm: Any) -> None:
    """Of float32, with all of its bits, and infinities where they belong."""
    monkeypatch.setattr(convolution, "ALGORITHMS", ())
    monkeypatch.setattr(convolution, "IN_PARTS", (algorithm,))
    monkeypatch.setattr(convolution, "ROWS_OF_PARTS", 0)
    monkeypatch.setattr(convolution, "OPERATIONS_OF_PARTS", 0)
    monkeypatch.setattr(convolution, "OPERATIONS_OF_ANY", 0)
    rng = np.random.default_rng(6)
    for case in (*CASES, *([] if algorithm is RUN_PRODUCTS else [FEW_ROWS])):
        x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (case.x, case.w))
        memory, binder = Memory(), Binder(emulated)
        kernel = ConvolutionKernel({"group": 1, "attributes": lambda sizes, case=case: case.attributes()})
        given = place(memory, x, case.channels_last)
        (y,) = kernel.bind(binder, given, binder.constant(w))
        assert y is not None
        run(binder, memory)
        plain = replace(case, follows="", has_bias=False)
        wanted, scale = expected(x, w, None, None, plain)
        assert (np.abs(memory.read(y) - wanted) <= 3e-7 * scale + 1e-30).all(), case
        x[0, 0, 0, 0] = np.inf
        memory.put(given, x)
        run(binder, memory)
        with np.errstate(invalid="ignore"):
            wanted, _ = expected(x, w, None, None, plain)
        assert np.array_equal(np.isfinite(memory.read(y)), np.isfinite(wanted))
        assert np.array_equal(memory.read(y)[np.isinf(wanted)], wanted[np.isinf(wanted)])


@needs_avx512
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("algorithm", [RUN_PRODUCTS, WINDOW_PRODUCTS, WINDOW_COPIES], ids=lambda one: one.name)
def test_convolutions_in_tiles(
    emulated: EmulatedLibrary, monkeypatch: pytest.MonkeyPatch, algorithm: Any, rounded: bool
) -> None:
    monkeypatch.setattr(convolution, "ALGORITHMS", (algorithm,))
    monkeypatch.setattr(convolution, "OF_WORDS", (algorithm,))
    rng = np.random.default_rng(5)
    for case in (*CASES, *([] if algorithm is RUN_PRODUCTS else [FEW_ROWS])):
        if algorithm is WINDOW_PRODUCTS and case.x[1] < 32:
            continue
        x = rng.standard_normal(case.x).astype(ml_dtypes.bfloat16)
        w = rng.standard_normal(case.w).astype(ml_dtypes.bfloat16).astype(np.float32)
        bias = rng.standard_normal(case.w[0]).astype(np.float32) if case.has_bias else None
        memory, binder = Memory(), Binder(emulated, settings=RunSettings(precision="bfloat16"))
        given = place(memory, x if rounded else x.astype(np.float32), case.channels_last)
        kernel = ConvolutionKernel({"group": 1, "attributes": lambda sizes, case=case: case.attributes()})
        inputs = [given, binder.constant(w), None if bias is None else binder.constant(bias)]
        residual = None
        total = Input(w.dtype, 0)
        if case.follows == "residual":
            windows = case.attributes().windows(case.x[2:])
            residual = rng.standard_normal((case.x[0], case.w[0], *windows.output)).astype(np.float32)
            beside = place(memory, residual, case.channels_last)
            epilogue = Epilogue((maximum(total + Input(w.dtype, 1), 0.0),), (beside,))
        else:
            epilogue = Epilogue((maximum(total, 0.0) if case.follows else total,), ())
        (y,) = kernel.bind(binder, *inputs, epilogue=epilogue)
        assert y is not None
        run(binder, memory)
        wanted, scale = expected(x.astype(np.float32), w, bias, residual, case)
        assert (np.abs(memory.read(y) - wanted) <= 1e-5 * scale + 1e-30).all(), case
