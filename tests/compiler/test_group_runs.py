"""Grouped convolutions along one dimension, whose windows are runs of the input, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.choice.gemm_choice import bf16_product
from sardonyx.compiler.llvm.target import host_targets
from sardonyx.compiler.native.convolution.convolution import ConvolutionKernel, choose
from sardonyx.compiler.native.convolution.group_runs import GROUP_RUNS
from sardonyx.runtime.settings import RunSettings
from tests.compiler.convolution_cases import Case, arrays_of, expected, place, random_case, run
from tests.compiler.steps import PRODUCT_VARIANTS, Memory, new_binder

ROUNDING = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
# The positional convolution of a speech model, with fewer taps.
SPEECH = Case((1, 192, 50), (192, 48, 16), 4, (1,), (1,), (8, 8), has_bias=True, follows="relu")


def sweep(
    seed: int,
    count: int,
    dtype: Any,
    bound: float,
    variant: str = "",
    precision: str = "float32",
    constant: bool = True,
) -> int:
    """How many of `count` random cases are taken; all of them are right."""
    random = np.random.default_rng(seed)
    taken = 0
    for number in range(count):
        case = random_case(random, dims=1) if number else SPEECH
        arrays = arrays_of(case, random, dtype)
        binder = Binder(new_binder(variant).library, RunSettings(precision=precision))
        found = run(binder, GROUP_RUNS, case, *arrays, one_by_one=number % 3 == 0, constant=constant)
        if found is not None:
            taken += 1
            wanted, scale = expected(*arrays, case)
            assert found.shape == wanted.shape
            assert (np.abs(found.astype(np.float64) - wanted) <= bound * scale + 1e-30).all(), case
    return taken


@pytest.mark.parametrize("variant", PRODUCT_VARIANTS)
def test_any_attributes(variant: str) -> None:
    count = 25 if variant == "neon" else 80
    assert sweep(21, count, np.float32, 4 * ROUNDING["float32"], variant) > 3


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16], ids=str)
def test_every_type_of_data(dtype: Any) -> None:
    assert sweep(22, 60, dtype, 4 * ROUNDING[np.dtype(dtype).name]) > 3


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("variant", [name for name, target in host_targets().items() if bf16_product(target)])
def test_bfloat16_products_of_float32(variant: str, constant: bool) -> None:
    assert sweep(23, 120, np.float32, 2.0**-7, variant, "bfloat16", constant) > 3


def test_long_windows_of_groups_are_runs() -> None:
    binder = new_binder()
    x, w, bias, _ = arrays_of(SPEECH, np.random.default_rng(24))
    kernel = ConvolutionKernel({"group": SPEECH.group, "attributes": lambda sizes: SPEECH.attributes()})
    call = kernel.call(binder, place(Memory(), x, True), binder.constant(w), binder.constant(bias), None)
    assert choose(binder, call)[1] is GROUP_RUNS
