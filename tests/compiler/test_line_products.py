"""First layers line by line: lines of the input that stay for the next line of the result."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.compiler.native.convolution.line_products import LINE_PRODUCTS
from tests.compiler.convolution_cases import Case, arrays_of, expected, run
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
