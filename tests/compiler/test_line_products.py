"""First layers line by line: lines of the input that stay for the next line of the result."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.choice.gemm_choice import bf16_product
from sardonyx.compiler.llvm.target import host_targets
from sardonyx.compiler.native.convolution import line_products
from sardonyx.compiler.native.convolution.line_products import LINE_PRODUCTS
from sardonyx.runtime.settings import RunSettings
from tests.compiler.convolution_cases import Case, arrays_of, expected, run
from tests.compiler.machines import kernels_of
from tests.compiler.steps import PRODUCT_VARIANTS, new_binder

# Kernel, strides and dilations: of the taps of a column all but one, two or three are there already, or none.
SHAPES = [
    ((3, 3), (1, 1), (1, 1)),
    ((7, 3), (2, 1), (1, 1)),
    ((5, 3), (3, 1), (1, 1)),
    ((4, 3), (2, 1), (2, 1)),
    ((4, 3), (3, 1), (2, 1)),
    ((2, 3), (3, 1), (1, 1)),
    ((2, 3, 3), (1, 2, 1), (1, 1, 1)),
]


@pytest.mark.parametrize("variant", PRODUCT_VARIANTS)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("kernel", "strides", "dilations"), SHAPES)
def test_lines_that_stay_are_those_that_are_copied_otherwise(
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    channels_last: bool,
    variant: str,
) -> None:
    """Two items with padding; chunk by chunk nothing stays, and the bits are the same."""
    dims = len(kernel)
    case = Case(
        x=(2, 3, *(13, 11, 12)[:dims]),
        w=(18, 3, *kernel),
        group=1,
        strides=strides,
        dilations=dilations,
        pads=(1,) * dims + (2,) * dims,
        channels_last=channels_last,
        has_bias=True,
        follows="relu",
    )
    arrays = arrays_of(case, np.random.default_rng(5), np.float32)
    found = run(new_binder(variant), LINE_PRODUCTS, case, *arrays, one_by_one=False)
    alone = run(new_binder(variant), LINE_PRODUCTS, case, *arrays, one_by_one=True)
    assert found is not None
    assert alone is not None
    np.testing.assert_array_equal(found, alone)
    wanted, scale = expected(*arrays, case)
    assert (np.abs(found - wanted) / (scale + 1e-30)).max() <= 4 * 2.0**-23


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("kernel", [(3, 2), (3, 3), (2, 7), (1, 9), (7,)])
def test_pairs_of_bfloat16_are_read_wherever_they_begin(
    kernel: tuple[int, ...], channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Infinities stay in their windows, where they may become NaN."""
    monkeypatch.setattr(line_products, "_WORTH_ROUNDING", 1.0)
    rng = np.random.default_rng(8)
    dims = len(kernel)
    for stride in (1, 2):
        case = Case(
            x=(2, 3, *(9, 37)[-dims:]),
            w=(21, 3, *kernel),
            group=1,
            strides=(stride,) * dims,
            dilations=(1,) * dims,
            pads=(1,) * dims + (2,) * dims,
            channels_last=channels_last,
            has_bias=True,
            follows="",
        )
        arrays = arrays_of(case, rng, np.float32)
        rounded = [array.astype(ml_dtypes.bfloat16).astype(np.float32) for array in arrays[:2]]
        hot = arrays[0].copy()
        hot[0, 1, ..., 11] = np.inf
        for variant in [name for name, target in host_targets().items() if bf16_product(target) == "bf16"]:
            found, touched = (
                run(Binder(kernels_of(variant), settings=RunSettings(precision="bfloat16")), LINE_PRODUCTS, case, *one)
                for one in (arrays, (hot, *arrays[1:]))
            )
            assert found is not None
            assert touched is not None
            wanted, scale = expected(*rounded, *arrays[2:], case)
            assert (np.abs(found - wanted) / (scale + 1e-30)).max() <= 4 * 2.0**-23
            same = run(new_binder(variant), LINE_PRODUCTS, case, hot, *arrays[1:])
            np.testing.assert_array_equal(np.isfinite(touched), np.isfinite(same))
