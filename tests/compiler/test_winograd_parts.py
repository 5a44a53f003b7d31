"""Convolution by Winograd's algorithm with products in tiles of AMX, whose instructions are calls of an emulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.llvm.kernels.convolution.winograd_transforms import SCHEMES, Scheme
from sardonyx.compiler.llvm.target import Caches, Target, host_target, host_targets
from sardonyx.compiler.native.convolution import winograd
from sardonyx.compiler.native.convolution.convolution import choose as choose_algorithm
from sardonyx.compiler.native.convolution.winograd_calls import WINOGRAD
from sardonyx.compiler.native.convolution.winograd_choice import Sizes, choose, cut_of, cuts
from tests.compiler.steps import Array, Memory, new_binder
from tests.compiler.test_gemm_tiles import EmulatedLibrary, needs_avx512, run
from tests.compiler.test_winograd import EVERY, bound, call_of, channels_last, correlated, tensors

_FAR = Caches(48 << 10, 2 << 20, 105 << 20)


@pytest.fixture(scope="module")
def emulated() -> EmulatedLibrary:
    return EmulatedLibrary()


def convolved(binder: Binder, x: Array, w: Array, scheme: Scheme, block: int) -> Array:
    memory = Memory()
    call = call_of(channels_last(memory, binder, x), binder.constant(w), None, (1, 1, 1, 1), scheme.stride)
    cut = cut_of(binder.target, winograd.sizes_of(call), scheme, block, in_tiles=True)
    (y,) = winograd.bind_cut(binder, replace(call, product="f32 tiles"), scheme, cut)
    run(binder, memory)
    return memory.read(y).copy()


@needs_avx512
@EVERY
def test_odd_sizes(emulated: EmulatedLibrary, scheme: Scheme) -> None:
    """Channels that fill half of a tile or more, several blocks of them; tiles that fill none; two panels."""
    for shape, filters, block in [((1, 9, 7, 5), 16, 40), ((2, 53, 9, 11), 37, 16), ((1, 170, 5, 5), 8, 3)]:
        x, w = tensors(shape, filters)
        expected = correlated(x, w, (1, 1, 1, 1), scheme.stride)
        found = convolved(Binder(emulated), x, w, scheme, block)
        assert np.abs(found - expected).max() <= bound(scheme) * np.abs(expected).max()
        assert not emulated.tiles.configured


@needs_avx512
@pytest.mark.parametrize("where", ["image", "filters"])
def test_what_is_not_finite_stays_where_it_belongs(emulated: EmulatedLibrary, where: str) -> None:
    x, w = tensors((1, 20, 7, 7), 35, seed=6)
    if where == "image":
        x[0, 3, 4, 5], x[0, 16, 0, 0], x[0, 19, 6, 1] = np.inf, np.nan, 3.4e38
    else:
        w[34, 16, 2, 2], w[3, 0, 0, 1] = np.nan, -np.inf
    with np.errstate(over="ignore"):
        expected = correlated(x, w, (1, 1, 1, 1)).astype(np.float32)
    found = convolved(Binder(emulated), x, w, SCHEMES[1, 4], 16)
    far = np.abs(expected) > 1e30  # results of the huge pixel
    np.testing.assert_allclose(found[far], expected[far], rtol=1e-5)
    assert np.isfinite(expected[~far]).sum() > 100


@pytest.mark.skipif("amx" not in host_targets(), reason="no AMX")
@EVERY
def test_same_bits_for_every_cut_on_this_machine(scheme: Scheme) -> None:
    x, w = tensors((2, 70, 19, 17), 50)
    expected = correlated(x, w, (1, 1, 1, 1), scheme.stride)
    found = [convolved(new_binder("amx"), x, w, scheme, block) for block in (16, 48, 1000)]
    assert np.abs(found[0] - expected).max() <= bound(scheme) * np.abs(expected).max()
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def _with_amx() -> Target:
    return replace(host_target(), caches=_FAR, has_amx=True)


@needs_avx512
def test_every_cut_has_room_for_whole_tiles() -> None:
    target = _with_amx()
    for sizes in (Sizes(1, 64, 64, 56, 56), Sizes(8, 500, 512, 7, 7), Sizes(1, 17, 33, 101, 5)):
        for scheme in SCHEMES.values():
            for cut in cuts(target, sizes, scheme, in_tiles=True):
                rows, words = -(-cut.tile_block // 16), -(-sizes.channels // 32) * 3 * 256
                assert cut.tile_block % 16 == 0 or cut.blocks == 1
                assert cut.k_block % 32 == 0
                assert cut.v_apart >= words
                assert cut.m_scratch - cut.v_scratch >= 4 * rows * scheme.points * cut.v_apart
                assert cut.o_scratch - cut.m_scratch >= 4 * 16 * rows * scheme.points * 32


@needs_avx512
def test_taken_where_the_filters_stay_in_the_second_cache() -> None:
    """Filters as parts are half as many bytes again; and nothing changes where there is no AMX."""
    target = _with_amx()
    for sizes, pays in ((Sizes(1, 64, 64, 80, 80), True), (Sizes(1, 256, 256, 14, 14), False)):
        assert (choose(target, sizes, "f32 tiles")[2] < choose(target, sizes)[2]) == pays


@pytest.mark.skipif("amx" not in host_targets(), reason="no AMX")
@pytest.mark.parametrize("allowed", [True, False])
def test_sessions_may_turn_it_off(allowed: bool) -> None:
    binder, memory = new_binder("amx"), Memory()
    binder.settings = replace(binder.settings, float32_tiles=allowed)
    x, w = tensors((1, 64, 80, 80), 64)
    call = call_of(channels_last(memory, binder, x), binder.constant(w), None, (1, 1, 1, 1), 1)
    _, algorithm, chosen = choose_algorithm(binder, call)
    assert algorithm is WINOGRAD
    assert chosen.product == ("f32 tiles" if allowed and binder.target.caches.l2 >= _FAR.l2 else "f32")
