"""Convolutions of every attribute by every algorithm, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.compiler.native.convolution.algorithm import Algorithm
from sardonyx.compiler.native.convolution.line_products import LINE_PRODUCTS
from sardonyx.compiler.native.convolution.window_copies import WINDOW_COPIES
from sardonyx.compiler.native.convolution.window_products import WINDOW_PRODUCTS
from tests.compiler.convolution_cases import Array, Case, arrays_of, expected, random_case, run
from tests.compiler.steps import VARIANTS, new_binder

ROUNDING = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def check(found: Array, wanted: Array, scale: Array, case: Case) -> None:
    """Errors against the sum of magnitudes."""
    assert found.shape == wanted.shape
    error = np.abs(found.astype(np.float64) - wanted) / (scale + 1e-30)
    assert error.max(initial=0.0) <= 4 * ROUNDING[found.dtype.name], case


def sweep(algorithm: Algorithm | None, variant: str, seed: int, count: int, dtype: Any = np.float32) -> int:
    """How many of `count` random cases the algorithm takes; all of them are right."""
    random = np.random.default_rng(seed)
    taken = 0
    for number in range(count):
        case = random_case(random)
        arrays = arrays_of(case, random, dtype)
        found = run(new_binder(variant), algorithm, case, *arrays, one_by_one=number % 3 == 0)
        if found is not None:
            taken += 1
            check(found, *expected(*arrays, case), case)
    return taken


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("algorithm", [WINDOW_COPIES, WINDOW_PRODUCTS, LINE_PRODUCTS], ids=lambda one: one.name)
def test_an_algorithm_is_right_for_any_attributes(algorithm: Algorithm, variant: str) -> None:
    assert sweep(algorithm, variant, 11, 30 if variant == "neon" else 100) > 10
