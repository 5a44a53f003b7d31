"""Convolutions of every attribute by every algorithm, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.choice.gemm_choice import bf16_product
from sardonyx.compiler.llvm.target import host_target, host_targets
from sardonyx.compiler.llvm.types import F32
from sardonyx.compiler.native.convolution.algorithm import Algorithm
from sardonyx.compiler.native.convolution.line_products import LINE_PRODUCTS
from sardonyx.compiler.native.convolution.line_sums import LINE_SUMS
from sardonyx.compiler.native.convolution.window_copies import WINDOW_COPIES
from sardonyx.compiler.native.convolution.window_products import WINDOW_PRODUCTS
from sardonyx.runtime.settings import RunSettings
from tests.compiler.convolution_cases import Array, Case, arrays_of, expected, random_case, run
from tests.compiler.steps import VARIANTS, new_binder

EXACT = (WINDOW_COPIES, WINDOW_PRODUCTS, LINE_PRODUCTS, LINE_SUMS)
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
@pytest.mark.parametrize("algorithm", EXACT, ids=lambda one: one.name)
def test_an_algorithm_is_right_for_any_attributes(algorithm: Algorithm, variant: str) -> None:
    assert sweep(algorithm, variant, 11, 25 if variant == "neon" else 100) > 3


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("strides", "dilations"), [((1, 1), (1, 1)), ((2, 3), (2, 1))], ids=str)
def test_lines_of_few_channels_may_have_many_taps(
    variant: str, strides: tuple[int, ...], dilations: tuple[int, ...]
) -> None:
    case = Case((2, 5, 9, 31), (19, 5, 3, 7), 1, strides, dilations, (1, 3, 1, 3), has_bias=True, follows="relu")
    binder = new_binder(variant)
    arrays = arrays_of(case, np.random.default_rng(18))
    found = run(binder, LINE_PRODUCTS, case, *arrays)
    assert (found is None) == (binder.target.lanes(F32) <= 5)  # otherwise the channels of a place fill vectors
    if found is not None:
        check(found, *expected(*arrays, case), case)


@pytest.mark.parametrize("variant", VARIANTS)
def test_lines_of_sums_end_in_any_part_of_their_blocks(variant: str) -> None:
    """Blocks are of one to four vectors, three among them."""
    random = np.random.default_rng(19)
    lanes = new_binder(variant).target.lanes(F32)
    for width in (lanes - 1, *(vectors * lanes + more for vectors in (1, 2, 3, 4) for more in (0, 1, 3))):
        case = Case((1, 6, 3, width), (2, 6, 3, 3), 1, (1, 1), (1, 1), (1, 1, 1, 1))
        arrays = arrays_of(case, random)
        found = run(new_binder(variant), LINE_SUMS, case, *arrays)
        assert found is not None
        check(found, *expected(*arrays, case), case)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("algorithm", EXACT, ids=lambda one: one.name)
def test_every_type_of_data(algorithm: Algorithm, dtype: Any, variant: str) -> None:
    assert sweep(algorithm, variant, 12, 20 if variant == "neon" else 40, dtype) > 1


@pytest.mark.parametrize("variant", host_targets())
def test_the_choice_is_right(variant: str) -> None:
    count = 500 if variant == host_target().name else 250
    assert sweep(None, variant, 13, count) == count


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=str)
def test_the_choice_is_right_for_half_precision(dtype: Any, variant: str) -> None:
    count = 25 if variant == "neon" else 100
    assert sweep(None, variant, 14, count, dtype) == count


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_of_the_run_are_multiplied_as_they_lie(variant: str) -> None:
    random = np.random.default_rng(15)
    for _ in range(25 if variant == "neon" else 100):
        case = random_case(random)
        arrays = arrays_of(case, random)
        found = run(new_binder(variant), None, case, *arrays, constant=False)
        assert found is not None
        check(found, *expected(*arrays, case), case)


@pytest.mark.parametrize("variant", [name for name, target in host_targets().items() if bf16_product(target)])
@pytest.mark.parametrize("algorithm", [WINDOW_COPIES, WINDOW_PRODUCTS], ids=lambda one: one.name)
def test_bfloat16_products_of_float32(algorithm: Algorithm, variant: str) -> None:
    random = np.random.default_rng(16)
    taken = 0
    for _ in range(60):
        case = random_case(random)
        arrays = arrays_of(case, random)
        binder = Binder(new_binder(variant).library, RunSettings(precision="bfloat16"))
        found = run(binder, algorithm, case, *arrays)
        if found is not None:
            taken += 1
            wanted, scale = expected(*arrays, case)
            assert (np.abs(found - wanted) <= 2.0**-7 * scale + 1e-30).all(), case
    assert taken > 5


@pytest.mark.parametrize(
    ("x", "w"),
    [
        ((0, 3, 8, 8), (4, 3, 3, 3)),
        ((2, 0, 8, 8), (4, 0, 3, 3)),
        ((2, 3, 8, 8), (0, 3, 3, 3)),
        ((1, 3, 0, 8), (4, 3, 1, 1)),
    ],
    ids=["no items", "no channels", "no filters", "no places"],
)
@pytest.mark.parametrize("constant", [True, False])
def test_nothing_to_do(x: tuple[int, ...], w: tuple[int, ...], constant: bool) -> None:
    case = Case(x, w, 1, (1, 1), (1, 1), (0, 0, 0, 0), has_bias=True)
    arrays = arrays_of(case, np.random.default_rng(17))
    found = run(new_binder(), None, case, *arrays, constant=constant)
    assert found is not None
    check(found, *expected(*arrays, case), case)
