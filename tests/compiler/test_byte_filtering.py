"""Convolutions of bytes by minimal filtering in whole numbers: every sum as the product of all bytes has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.binding import Tensor
from sardonyx.compiler.choice.gemm_choice import panel_columns
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.llvm.kernels.quantization.byte_filtering import PRODUCT as FILTERED
from sardonyx.compiler.llvm.kernels.quantization.filtering_transforms import (
    BITS_LEFT,
    INVERSE,
    OF_ONES,
    OUTPUTS,
    POINT_OF_ONES,
    SHIFTS,
    SIZE,
    TAPS,
    along_both,
    of_inputs,
    of_outputs,
    of_taps,
)
from sardonyx.compiler.llvm.target import Caches, Target
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.quantization import byte_filtering
from sardonyx.compiler.native.quantization.byte_convolution import PRODUCT, convolved
from sardonyx.compiler.native.quantization.byte_filtering_choice import Cut, Sizes, choose, cut_of
from sardonyx.compiler.native.quantization.integer_convolution import ConvIntegerKernel
from sardonyx.kernel.expr import Input
from sardonyx.runtime.settings import RunSettings
from tests.compiler.machines import described
from tests.compiler.steps import PRODUCT_VARIANTS, VARIANTS, Array, Memory, bind, new_binder, outputs_of
from tests.compiler.test_byte_convolution import Geometry, attributes, exact, quantized, random_bytes
from tests.compiler.test_byte_products import weights_of

_I32 = np.dtype(np.int32)

# Whole tiles and others, one and several blocks of them, of channels and of filters; all sides of padding; batches.
CASES: list[Geometry] = [
    ((1, 16, 8, 8), (16, 16, 3, 3), 1, {"pads": [1, 1, 1, 1]}),
    ((2, 17, 9, 13), (40, 17, 3, 3), 1, {"pads": [0, 2, 1, 0]}),
    ((3, 40, 5, 3), (70, 40, 3, 3), 1, {}),
    ((1, 130, 19, 22), (33, 130, 3, 3), 1, {"pads": [2, 1, 2, 1]}),
    ((1, 64, 1, 1), (20, 64, 3, 3), 1, {"auto_pad": "SAME_UPPER"}),
    ((1, 24, 61, 50), (24, 24, 3, 3), 1, {"pads": [1, 1, 1, 1]}),
    ((1, 16, 4, 300), (16, 16, 3, 3), 1, {"pads": [1, 0, 1, 0]}),
]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minimal filtering wherever it is exact, of blocks as small as they come."""

    def small(target: Target, sizes: Sizes) -> Cut:
        return cut_of(replace(target, caches=Caches(l1=4 << 10, l2=96 << 10)), sizes)

    monkeypatch.setattr(byte_filtering, "choose", cut_of)
    monkeypatch.setattr(byte_filtering, "cut_of", small)


def steps_of(kernel: Any, inputs: list[Array | None], variant: str, known: tuple[int, ...]) -> list[str]:
    binder, _, _ = bind(kernel, inputs, variant, known=known)
    return [step.detail if isinstance(step.detail, str) else step.detail() for step in binder.steps]


def is_filtered(details: list[str]) -> bool:
    return any(detail.startswith("tiles of 4x4") for detail in details)


def test_transforms_are_exact_modulo_the_words() -> None:
    rng = np.random.default_rng(0)
    for number in range(200):
        x = rng.integers(0, 256, (SIZE, SIZE)) if number else np.full((SIZE, SIZE), 255)
        w = rng.integers(-128, 128, (TAPS, TAPS)) if number else np.full((TAPS, TAPS), -128)
        start = int(rng.integers(-(1 << 24), 1 << 24))
        left = np.array(along_both(of_inputs, x.T.tolist()))
        right = np.array(along_both(of_taps, w.T.tolist()))
        sums = (left * right) % (1 << 32)
        sums[POINT_OF_ONES] += OF_ONES * start
        found = np.array(along_both(of_outputs, sums.reshape(SIZE, SIZE).T.tolist())).reshape(OUTPUTS, OUTPUTS)
        words = (found * INVERSE % (1 << 32)).astype(np.uint32).view(np.int32)
        shifts = np.add.outer(SHIFTS, SHIFTS)
        wanted = [[(x[i : i + TAPS, j : j + TAPS] * w).sum() + start for j in range(OUTPUTS)] for i in range(OUTPUTS)]
        np.testing.assert_array_equal(words >> shifts, wanted)


def test_transformed_numbers_fit_in_16_bits() -> None:
    """The largest and the smallest sum at each point, and so all between."""
    for transform, size, lowest, highest in ((of_inputs, SIZE, 0, 255), (of_taps, TAPS, -128, 127)):
        units = np.eye(size * size, dtype=np.int64).reshape(-1, size, size)
        factors = np.array([along_both(transform, unit.tolist()) for unit in units])
        for low, high in ((lowest, highest), (highest, lowest)):
            ends = np.where(factors > 0, factors * high, factors * low).sum(axis=0)
            assert abs(ends).max() <= np.iinfo(np.int16).max


@pytest.mark.parametrize("variant", PRODUCT_VARIANTS)
def test_variants(variant: str) -> None:
    """Chunks from the last to the first, all types of bytes, a zero point for all filters or for each."""
    rng = np.random.default_rng(1)
    kinds = [(np.uint8, np.int8), (np.int8, np.uint8), (np.uint8, np.uint8), (np.int8, np.int8)]
    for number, (x_shape, w_shape, group, given) in enumerate(CASES):
        x_type, w_type = kinds[number % len(kinds)]
        x, w = random_bytes(rng, x_type, x_shape), random_bytes(rng, w_type, w_shape)
        zero, w_zero = random_bytes(rng, x_type, ()), random_bytes(rng, w_type, [(), w_shape[:1]][number % 2])
        kernel = ConvIntegerKernel({"group": group, "attributes": attributes(given)})
        known = [(1, 2, 3), (1, 3)][number % 2]
        if variant != "neon":
            assert is_filtered(steps_of(kernel, [x, w, zero, w_zero], variant, known))
        (found,) = outputs_of(kernel, [x, w, zero, w_zero], variant, known=known, one_by_one=True)
        np.testing.assert_array_equal(found, exact(x, w, int(zero), w_zero, group, given), err_msg=f"{x_shape}")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("weight", [-128, 127, None])
def test_extreme_bytes_and_zero_points(variant: str, weight: int | None) -> None:
    rng = np.random.default_rng(2)
    given = {"pads": [1, 1, 1, 1]}
    for x_type in (np.uint8, np.int8):
        ends = np.iinfo(x_type).min, np.iinfo(x_type).max
        w = np.full((18, 80, 3, 3), weight or 0, np.int8)
        if weight is None:
            w = rng.choice(np.array([-128, 127], np.int8), w.shape)
        images = [np.full((1, 80, 7, 10), end, x_type) for end in ends]
        images.append(rng.choice(np.array(ends, x_type), (1, 80, 7, 10)))
        for x in images:
            for zero in ends:
                kernel = ConvIntegerKernel({"group": 1, "attributes": attributes(given)})
                (found,) = outputs_of(kernel, [x, w, np.asarray(zero, x_type)], variant, known=(1, 2))
                np.testing.assert_array_equal(found, exact(x, w, zero, np.zeros((), np.int8), 1, given))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_results_in_bytes_are_those_of_the_operator(variant: str, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    for shape, filters in [((1, 64, 14, 14), 70), ((2, 20, 7, 9), 16)]:
        x = random_bytes(rng, dtype, shape)
        w = weights_of(rng, "normal", filters, shape[1] * 9).reshape(filters, shape[1], 3, 3)
        for channels_last in (False, True):
            found, wanted = quantized(x, w, {"pads": [1, 1, 1, 1]}, variant, channels_last=channels_last)
            assert len(np.unique(wanted)) > 100
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("variant", VARIANTS)
def test_epilogues_read_operands_at_every_place_of_every_image(variant: str) -> None:
    rng = np.random.default_rng(4)
    given = {"pads": [1, 1, 1, 1]}
    x, w = random_bytes(rng, np.uint8, (3, 16, 6, 9)), random_bytes(rng, np.int8, (21, 16, 3, 3))
    added, factor = (
        rng.integers(-99, 99, (3, 21, 6, 9)).astype(np.int32),
        rng.integers(1, 9, (21, 1, 1)).astype(np.int32),
    )
    binder, memory = new_binder(variant), Memory()
    tensors = [binder.external(index, one.dtype, one.shape) for index, one in enumerate((x, added))]
    for tensor, array in zip(tensors, (x, added), strict=True):
        memory.put(tensor, array)
    total = Input(_I32, 0)
    outputs = (total * Input(_I32, 2) + Input(_I32, 1), total - Input(_I32, 1))
    epilogue = Epilogue(outputs, (tensors[1], binder.constant(factor)))
    kernel = ConvIntegerKernel({"group": 1, "attributes": attributes(given)})
    results = kernel.bind(binder, tensors[0], binder.constant(w), epilogue=epilogue)
    memory.run(binder)
    sums = exact(x, w, 0, np.zeros((), np.int8), 1, given)
    for result, wanted in zip(results, (sums * factor + added, sums - added), strict=True):
        assert result is not None
        np.testing.assert_array_equal(memory.read(result), wanted)


def convolve(x: Array, w: Array, init: Array, variant: str) -> tuple[Array, bool]:
    """The sums that start from `init`, and whether they were filtered."""
    binder, memory = new_binder(variant), Memory()
    image = binder.external(0, x.dtype, x.shape)
    memory.put(image, x)
    windows = attributes({"pads": [1, 1, 1, 1]})(w.shape[2:]).windows(x.shape[2:])
    call = ConvolutionCall(image, binder.constant(w), None, windows, 1, None, PRODUCT)
    padding: Tensor = binder.constant(np.asarray(0, np.uint8))
    (result,) = convolved(binder, call, padding, Input(_I32, 0), [], init)
    memory.run(binder)
    details = [step.detail if isinstance(step.detail, str) else step.detail() for step in binder.steps]
    return memory.read(result).copy(), is_filtered(details)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_largest_outputs_that_are_exact_are_filtered_and_none_beyond(variant: str) -> None:
    """An image of 255 meets filters of one sign: each end of what the bits that are left hold, and one more."""
    x = np.full((1, 32, 5, 5), 255, np.uint8)
    w = np.full((16, 32, 3, 3), 127, np.int8)
    w[1] = -128
    limit = 1 << (BITS_LEFT - 1)
    sums = exact(x, w, 0, np.zeros((), np.int8), 1, {"pads": [1, 1, 1, 1]})
    for filter_number, end in ((0, limit - 1), (1, -limit)):
        for beyond in (0, 1):
            init = np.zeros(16, np.int32)
            init[filter_number] = end - sums[0, filter_number, 2, 2] + (beyond if end > 0 else -beyond)
            found, filtered = convolve(x, w, init, variant)
            np.testing.assert_array_equal(found, sums + init[:, None, None])
            assert filtered == (variant != "neon" and not beyond)


@pytest.mark.parametrize("variant", VARIANTS)
def test_long_sums_are_multiplied_as_they_are(variant: str) -> None:
    rng = np.random.default_rng(5)
    given = {"pads": [1, 1, 1, 1]}
    x, w = rng.integers(200, 256, (1, 256, 6, 6), np.uint8), rng.integers(90, 128, (16, 256, 3, 3), np.int8)
    kernel = ConvIntegerKernel({"group": 1, "attributes": attributes(given)})
    assert not is_filtered(steps_of(kernel, [x, w], variant, (1,)))
    (found,) = outputs_of(kernel, [x, w], variant, known=(1,))
    np.testing.assert_array_equal(found, exact(x, w, 0, np.zeros((), np.int8), 1, given))


@pytest.mark.parametrize(
    ("shape", "group", "given"),
    [
        ((16, 16, 3, 3), 2, {}),
        ((16, 32, 3, 2), 1, {}),
        ((16, 32, 3, 3), 1, {"strides": [1, 2]}),
        ((16, 32, 3, 3), 1, {"dilations": [2, 1]}),
        ((16, 32, 3), 1, {}),
        ((15, 32, 3, 3), 1, {}),
    ],
)
def test_other_windows_and_groups(shape: tuple[int, ...], group: int, given: dict[str, Any]) -> None:
    rng = np.random.default_rng(6)
    x = random_bytes(rng, np.uint8, (1, shape[1] * group, *(9 for _ in shape[2:])))
    w = random_bytes(rng, np.int8, shape)
    kernel = ConvIntegerKernel({"group": group, "attributes": attributes(given)})
    assert not is_filtered(steps_of(kernel, [x, w], "", (1,)))
    (found,) = outputs_of(kernel, [x, w], known=(1,))
    np.testing.assert_array_equal(found, exact(x, w, 0, np.zeros((), np.int8), group, given))


@pytest.mark.parametrize("winograd", [False, True])
def test_the_session_may_turn_it_off(winograd: bool) -> None:
    rng = np.random.default_rng(7)
    x, w = random_bytes(rng, np.uint8, (1, 16, 9, 9)), random_bytes(rng, np.int8, (16, 16, 3, 3))
    binder = replace(new_binder("portable"), settings=RunSettings(winograd=winograd))
    kernel = ConvIntegerKernel({"group": 1, "attributes": attributes({})})
    (found,) = outputs_of(kernel, [x, w], known=(1,), binder=binder)
    np.testing.assert_array_equal(found, exact(x, w, 0, np.zeros((), np.int8), 1, {}))
    details = [step.detail if isinstance(step.detail, str) else step.detail() for step in binder.steps]
    assert is_filtered(details) == winograd


@pytest.mark.parametrize("name", ["avx2", "avx512", "avx512vnni", "portable"])
def test_maps_of_models_are_filtered_and_single_tiles_are_not(name: str) -> None:
    for takes_turns in (False, True):
        target = described(takes_turns=takes_turns)[name]
        assert choose(target, Sizes(1, 64, 64, 56, 56)) is not None
        assert choose(target, Sizes(1, 128, 128, 28, 28)) is not None
        assert choose(target, Sizes(1, 512, 512, 2, 2)) is None
        assert choose(target, Sizes(1, 16, 16, 3, 3)) is None


def test_seven_by_seven_depends_on_the_dot_products() -> None:
    machines = described()
    sizes = Sizes(1, 512, 512, 7, 7)
    assert choose(machines["avx2"], sizes) is not None
    assert choose(machines["avx512vnni"], sizes) is None
    assert choose(machines["avx512vnni"], replace(sizes, images=16)) is not None


def test_blocks_fit_in_the_second_cache() -> None:
    for l2 in (256 << 10, 512 << 10, 2 << 20):
        for name in ("avx2", "avx512vnni"):
            target = replace(described()[name], caches=Caches(l2=l2))
            for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7), (64, 512)):
                cut = cut_of(target, Sizes(1, channels, channels, size, size))
                assert cut.scratch <= l2 or cut.tile_block <= 12
                assert cut.blocks * cut.tile_block >= cut.all_tiles
                assert cut.groups * cut.group * panel_columns(target, FILTERED) >= channels
