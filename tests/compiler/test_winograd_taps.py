"""Convolution by Winograd's algorithm with filters that are transformed while they are multiplied."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from sardonyx.compiler.llvm.kernels.convolution.winograd_taps import TAPS_SCHEME, TILES_AT_ONCE
from sardonyx.compiler.llvm.kernels.convolution.winograd_transforms import SCHEMES
from sardonyx.compiler.llvm.target import Caches, host_target
from sardonyx.compiler.native.convolution import winograd
from sardonyx.compiler.native.convolution.winograd_choice import Sizes, choose, cut_of
from tests.compiler.steps import VARIANTS, Array, Memory, new_binder
from tests.compiler.test_winograd import (
    ExactArithmetic,
    bound,
    call_of,
    channels_last,
    correlated,
    exact_matrix,
    tensors,
)

_NEAR, _FAR = Caches(48 << 10, 1 << 20, 32 << 20), Caches(48 << 10, 2 << 20, 105 << 20)


def convolved(x: Array, w: Array, variant: str = "", k_block: int = 0, *, one_by_one: bool = False) -> Array:
    binder, memory = new_binder(variant), Memory()
    call = call_of(channels_last(memory, binder, x), binder.constant(w), None, (1, 1, 1, 1), 1)
    cut = cut_of(binder.target, winograd.sizes_of(call), TAPS_SCHEME, 0, from_taps=True)
    (y,) = winograd.bind_cut(binder, call, TAPS_SCHEME, replace(cut, k_block=k_block or cut.k_block))
    memory.run(binder, one_by_one=one_by_one)
    return memory.read(y).copy()


def test_points_are_those_of_the_transform() -> None:
    k, along = ExactArithmetic(), TAPS_SCHEME.along[0]
    scales = [along.scale(number) for number in range(along.size)]
    whole = exact_matrix(along.of_taps, 3, k)
    at_all = exact_matrix(along.taps_at_all, 3, k)
    for number, scale in enumerate(scales):
        alone = exact_matrix(lambda k, g, number=number: [along.tap_at(k, g, number)], 3, k)  # type: ignore[misc]
        for one, every, expected in zip(alone, at_all, whole, strict=True):
            assert one[0] == every[number]
            assert abs(one[0] * scale - expected[number]) < Fraction(1, 10**14)


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_and_sizes(variant: str) -> None:
    """Odd numbers of everything, fewer tiles than are multiplied at once, and more."""
    for shape, filters, k_block in [((1, 37, 7, 7), 70, 16), ((2, 19, 7, 11), 37, 0), ((1, 130, 3, 5), 16, 0)]:
        x, w = tensors(shape, filters)
        expected = correlated(x, w, (1, 1, 1, 1))
        found = convolved(x, w, variant, k_block)
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= bound(TAPS_SCHEME) * np.abs(expected).max()
        assert np.array_equal(found, convolved(x, w, variant, 5, one_by_one=True))


@pytest.mark.parametrize("where", ["image", "filters"])
def test_what_is_not_finite_stays_where_it_belongs(where: str) -> None:
    x, w = tensors((1, 40, 7, 7), 35, seed=6)
    if where == "image":
        x[0, 3, 4, 5], x[0, 16, 0, 0] = np.inf, np.nan
    else:
        w[34, 16, 2, 2], w[3, 0, 0, 1] = np.nan, -np.inf
    expected = correlated(x, w, (1, 1, 1, 1)).astype(np.float32)
    np.testing.assert_allclose(convolved(x, w), expected, rtol=1e-5, atol=bound(TAPS_SCHEME))


def test_taken_for_few_tiles_with_many_channels_where_memory_is_far() -> None:
    host = replace(host_target(), caches=_FAR)
    if host.registers < 32:
        pytest.skip("too few registers")
    many = Sizes(1, 512, 512, 7, 7)
    scheme, cut, _ = choose(host, many)
    assert (scheme, cut.from_taps, cut.tile_block) == (TAPS_SCHEME, True, TILES_AT_ONCE)
    near = choose(replace(host, caches=_NEAR), many)
    assert (near[0], near[1].from_taps) == (SCHEMES[1, 2], False)
    for sizes in (replace(many, images=2), Sizes(1, 64, 64, 56, 56), replace(many, stride=2)):
        assert not choose(host, sizes)[1].from_taps
