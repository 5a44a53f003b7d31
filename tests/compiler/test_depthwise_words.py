"""Depthwise convolutions of bytes by words: groups of lines, blocks of channels, padding, against exact integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.llvm.target import host_targets
from sardonyx.compiler.native.quantization.integer_convolution import ConvIntegerKernel
from tests.compiler.steps import PRODUCT_VARIANTS, bind, outputs_of
from tests.compiler.test_byte_convolution import attributes, exact, random_bytes

# The image's shape, the kernel, attributes of the windows.
CASES: list[tuple[Sequence[int], Sequence[int], dict[str, Any]]] = [
    ((1, 96, 14, 14), (3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 72, 13, 9), (5, 5), {"pads": [2, 2, 2, 2]}),
    ((1, 40, 15, 15), (5, 5), {"pads": [2, 2, 2, 2], "strides": [2, 2]}),
    ((1, 32, 7, 7), (3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((1, 64, 3, 3), (7, 7), {"pads": [3, 3, 3, 3]}),
    ((1, 20, 6, 7), (3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    ((1, 24, 3, 5, 6), (2, 3, 2), {"pads": [1, 0, 1, 0, 1, 2]}),
    ((2, 17, 12), (3,), {"dilations": [2], "pads": [0, 3]}),
    ((1, 16, 1, 1), (3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 16, 5, 1), (3, 3), {"pads": [1, 4, 1, 4]}),
    ((1, 7, 5, 6), (3, 3), {"pads": [1, 1, 1, 1]}),
]


@pytest.mark.parametrize("variant", PRODUCT_VARIANTS)
def test_sums_are_exact(variant: str) -> None:
    """Bytes of all kinds; zero points that are known, and those of the image that come with the run."""
    rng = np.random.default_rng(21)
    kinds = [(np.uint8, np.int8), (np.int8, np.uint8), (np.int8, np.int8)]
    for number, (shape, kernel, given) in enumerate(CASES):
        x_type, w_type = kinds[number % len(kinds)]
        channels = shape[1]
        x, w = random_bytes(rng, x_type, shape), random_bytes(rng, w_type, (channels, 1, *kernel))
        x_zero, w_zero = random_bytes(rng, x_type, ()), random_bytes(rng, w_type, [(), (channels,)][number % 2])
        native = ConvIntegerKernel({"group": channels, "attributes": attributes(given)})
        known = [(1, 2, 3), (1, 3)][number // 3 % 2]
        (found,) = outputs_of(native, [x, w, x_zero, w_zero], variant, known=known, one_by_one=True)
        assert np.array_equal(found, exact(x, w, int(x_zero), w_zero, channels, given)), (shape, kernel, given)


@pytest.mark.parametrize("variant", [name for name in host_targets() if name.startswith("avx")])
def test_nothing_of_the_image_is_copied(variant: str) -> None:
    rng = np.random.default_rng(22)
    x, w = random_bytes(rng, np.uint8, (1, 9, 11, 48)), random_bytes(rng, np.int8, (48, 1, 3, 3))
    native = ConvIntegerKernel({"group": 48, "attributes": attributes({"pads": [1, 1, 1, 1]})})
    turned = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    binder, _, _ = bind(native, [turned, w], variant, known=(1,))
    assert [step.kernel for step in binder.steps][-1] == "depthwise_words"
    assert not any("fill" in step.kernel for step in binder.steps)
