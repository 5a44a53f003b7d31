"""ConvInteger and QLinearConv against exact integers: all attributes, bytes and zero points, on every variant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from sardonyx.compiler.native.quantization.byte_windows import tile_of
from sardonyx.compiler.native.quantization.integer_convolution import ConvIntegerKernel, QLinearConvKernel
from sardonyx.ops.convolution import QLinearConv, correlate
from sardonyx.ops.windows import WindowAttributes
from tests.compiler.machines import described
from tests.compiler.steps import PRODUCT_VARIANTS, Array, outputs_of
from tests.compiler.test_byte_products import VARIANTS, weights_of

Geometry = tuple[Sequence[int], Sequence[int], int, dict[str, Any]]

# The image's shape, the weights' shape, groups, attributes of the windows.
CASES: list[Geometry] = [
    ((1, 8, 9, 11), (40, 8, 3, 3), 1, {"pads": [1, 1, 1, 1]}),
    ((2, 3, 13, 10), (33, 3, 5, 4), 1, {"strides": [2, 2], "pads": [2, 1, 0, 3]}),
    ((1, 6, 7, 7), (70, 6, 1, 1), 1, {}),
    ((3, 5, 17), (6, 5, 3), 1, {"dilations": [2], "pads": [2, 2]}),
    ((1, 8, 9, 9), (12, 2, 3, 3), 4, {"strides": [1, 2], "pads": [1, 0, 1, 2]}),
    ((1, 4, 4, 5, 6), (9, 4, 2, 3, 2), 1, {"strides": [1, 2, 1], "auto_pad": "SAME_UPPER"}),
    ((1, 4, 30, 29), (5, 4, 1, 1), 1, {"strides": [3, 2]}),
    ((2, 35, 9, 11), (35, 1, 3, 3), 35, {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ((1, 16, 12), (16, 1, 4), 16, {"dilations": [2]}),
]


def attributes(given: dict[str, Any]) -> Any:
    def of(kernel: Sequence[int]) -> WindowAttributes:
        pads, auto_pad = given.get("pads"), given.get("auto_pad", "NOTSET")
        return WindowAttributes.of(kernel, given.get("strides"), given.get("dilations"), pads, auto_pad)

    return of


def random_bytes(rng: np.random.Generator, dtype: Any, shape: Sequence[int]) -> Array:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape, dtype=dtype)


def exact(x: Array, w: Array, x_zero: int, w_zero: Array, group: int, given: dict[str, Any]) -> Array:
    windows = attributes(given)(w.shape[2:]).windows(x.shape[2:])
    points = w_zero.reshape(-1, *(1,) * (w.ndim - 1)) if w_zero.ndim else w_zero
    sums = correlate(x.astype(np.float64) - x_zero, w.astype(np.float64) - points.astype(np.float64), windows, group)
    return sums.astype(np.int64)


def check_cases(variant: str, seed: int, known: Sequence[Sequence[int]], *, one_by_one: bool = False) -> None:
    """All cases, with types and shapes of zero points in turns; `known` are inputs that no run brings, in turns."""
    rng = np.random.default_rng(seed)
    kinds = [(np.uint8, np.int8), (np.int8, np.uint8), (np.uint8, np.uint8), (np.int8, np.int8)]
    for number, (x_shape, w_shape, group, given) in enumerate(CASES):
        x_type, w_type = kinds[number % len(kinds)]
        x, w = random_bytes(rng, x_type, x_shape), random_bytes(rng, w_type, w_shape)
        x_zero, w_zero = random_bytes(rng, x_type, ()), random_bytes(rng, w_type, [(), w_shape[:1]][number % 2])
        kernel = ConvIntegerKernel({"group": group, "attributes": attributes(given)})
        inputs, constant = [x, w, x_zero, w_zero], known[number % len(known)]
        (found,) = outputs_of(kernel, inputs, variant, known=constant, one_by_one=one_by_one)
        assert found.dtype == np.int32
        assert np.array_equal(found, exact(x, w, int(x_zero), w_zero, group, given))


@pytest.mark.parametrize("variant", PRODUCT_VARIANTS)
def test_variants(variant: str) -> None:
    check_cases(variant, 0, [(1, 2, 3), (1, 3), (1, 3)], one_by_one=True)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["normal", "rare", "highest"])
def test_extreme_images_meet_weights_of_models(variant: str, kind: str) -> None:
    """Sums of pairs that 16 bits hold, of some that they do not, or of none, by the largest bytes there are."""
    rng = np.random.default_rng(11)
    for x_shape, w_shape, group, given in CASES:
        count = int(np.prod(w_shape))
        w = weights_of(rng, kind, count, 1).reshape(w_shape)
        for x in (np.full(x_shape, 255, np.uint8), random_bytes(rng, np.int8, x_shape)):
            native = ConvIntegerKernel({"group": group, "attributes": attributes(given)})
            zero = np.asarray(rng.choice([np.iinfo(x.dtype).min, 0, np.iinfo(x.dtype).max]), x.dtype)
            (found,) = outputs_of(native, [x, w, zero], variant, known=(1, 2))
            assert np.array_equal(found, exact(x, w, int(zero), np.zeros((), np.int8), group, given)), w_shape


@pytest.mark.parametrize("variant", VARIANTS)
def test_maps_of_all_sizes_by_weights_of_models(variant: str) -> None:
    """Tiles of every height, several panels and chunks, one channel and many."""
    rng = np.random.default_rng(12)
    for size, channels, filters in [(3, 4, 8), (7, 64, 40), (12, 9, 17), (29, 16, 64), (56, 3, 9)]:
        x = random_bytes(rng, np.uint8, (1, channels, size, size))
        w = weights_of(rng, "normal", filters, channels * 9).reshape(filters, channels, 3, 3)
        found, wanted = quantized(x, w, {"pads": [1, 1, 1, 1]}, variant)
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize(("filters", "vectors"), [(16, 1), (24, 2), (40, 3), (64, 2), (80, 1), (96, 2), (144, 3)])
def test_panels_leave_little_empty(filters: int, vectors: int) -> None:
    """Of vectors of 16 filters; there are registers for other tiles with AVX-512 only."""
    targets = described()
    assert tile_of(targets["avx512vnni"], "u8s8", filters).vectors == vectors
    assert tile_of(targets["avx2"], "u8s8 pairs", filters).vectors == 2


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("filters", [16, 48, 80])
def test_panels_of_one_and_three_vectors(variant: str, filters: int) -> None:
    rng = np.random.default_rng(13)
    x = random_bytes(rng, np.uint8, (1, 20, 9, 31))
    w = weights_of(rng, "normal", filters, 20 * 9).reshape(filters, 20, 3, 3)
    found, wanted = quantized(x, w, {"pads": [1, 1, 1, 1]}, variant)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("variant", PRODUCT_VARIANTS)
def test_weights_that_come_with_the_run(variant: str) -> None:
    check_cases(variant, 7, [(), (1,), (1,)])


def test_long_sums_of_weights_that_come_with_the_run() -> None:
    """Beyond what float32 holds, and where minimal filtering would pay."""
    rng = np.random.default_rng(8)
    given = {"pads": [1, 1, 1, 1]}
    x, w = rng.integers(200, 256, (1, 256, 16, 16), np.uint8), rng.integers(90, 128, (64, 256, 3, 3), np.int8)
    kernel = ConvIntegerKernel({"group": 1, "attributes": attributes(given)})
    (found,) = outputs_of(kernel, [x, w])
    assert np.array_equal(found, exact(x, w, 0, np.zeros((), np.int8), 1, given))
    assert found.max() > 1 << 24


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("known", [(), (3, 4, 5)])
def test_scales_that_come_with_the_run(known: tuple[int, ...], channels_last: bool) -> None:
    rng = np.random.default_rng(9)
    for x_type in (np.uint8, np.int8):
        x, w = random_bytes(rng, x_type, (2, 5, 9, 8)), random_bytes(rng, np.int8, (7, 5, 3, 3))
        found, wanted = quantized(x, w, {"pads": [0, 1, 1, 1]}, channels_last=channels_last, known=known)
        np.testing.assert_array_equal(found, wanted)


def test_parameters_of_wrong_sizes() -> None:
    kernel = ConvIntegerKernel({"group": 1, "attributes": attributes({})})
    x, w = np.zeros((1, 2, 4, 4), np.uint8), np.zeros((3, 2, 2, 2), np.int8)
    with pytest.raises(ValueError, match=r"zero points have the shape \(2,\), but there are 3 filters"):
        outputs_of(kernel, [x, w, None, np.zeros(2, np.int8)])
    with pytest.raises(ValueError, match="zero point of x must be one number"):
        outputs_of(kernel, [x, w, np.zeros(2, np.uint8)])


def test_random_sweep() -> None:
    rng = np.random.default_rng(1)
    for _ in range(150):
        dims, group = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3]))
        kernel = rng.integers(1, 5, dims).tolist()
        given = {
            "strides": rng.integers(1, 4, dims).tolist(),
            "dilations": rng.integers(1, 4, dims).tolist(),
            "pads": rng.integers(0, 4, 2 * dims).tolist(),
        }
        extent = [(k - 1) * d + 1 for k, d in zip(kernel, given["dilations"], strict=True)]
        sizes = [int(rng.integers(max(1, one - 2), one + 14)) for one in extent]
        given["pads"] = [
            max(pad, one - size) for pad, one, size in zip(given["pads"], extent * 2, sizes * 2, strict=True)
        ]
        channels, filters = int(rng.integers(1, 9)), int(rng.integers(1, 40))
        x = random_bytes(rng, np.uint8, (int(rng.integers(1, 3)), channels * group, *sizes))
        w = random_bytes(rng, np.int8, (filters * group, channels, *kernel))
        zero = np.asarray(rng.integers(0, 256), np.uint8)
        native = ConvIntegerKernel({"group": group, "attributes": attributes(given)})
        (found,) = outputs_of(native, [x, w, zero], known={1, 2})
        assert np.array_equal(found, exact(x, w, int(zero), np.zeros((), np.int8), group, given)), (x.shape, given)


def quantized(
    x: Array,
    w: Array,
    given: dict[str, Any],
    variant: str = "",
    *,
    channels_last: bool = False,
    known: Sequence[int] = range(1, 9),
) -> tuple[Array, Array]:
    """A QLinearConv by its kernel, and in NumPy."""
    rng = np.random.default_rng(2)
    filters = w.shape[0]
    scales = rng.uniform(0.001, 0.01, filters).astype(np.float32)
    parameters = [np.asarray(0.02, np.float32), np.asarray(3, x.dtype), w, scales, np.zeros(filters, w.dtype)]
    parameters += [np.asarray(0.11, np.float32), np.asarray(-5 if x.dtype == np.int8 else 9, x.dtype)]
    parameters += [rng.integers(-9000, 9000, filters).astype(np.int32)]
    native = QLinearConvKernel({"group": 1, "attributes": attributes(given), "channels_last": channels_last})
    image = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if channels_last else x
    (found,) = outputs_of(native, [image, *parameters], variant, known=known)
    node = ir.node("QLinearConv", [], {name: value for name, value in given.items() if name != "auto_pad"})
    (wanted,) = QLinearConv(node, 10).run(x, *parameters)
    return (np.moveaxis(found, -1, 1) if channels_last else found), wanted


@pytest.mark.parametrize("variant", PRODUCT_VARIANTS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantized(variant: str, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    x, w = random_bytes(rng, dtype, (1, 16, 9, 10)), random_bytes(rng, np.int8, (37, 16, 3, 3))
    found, wanted = quantized(x, w, {"pads": [1, 1, 1, 1]}, variant)
    assert len(np.unique(wanted)) > 100
    assert found.dtype == wanted.dtype
    assert np.array_equal(found, wanted)


def test_channels_last() -> None:
    rng = np.random.default_rng(4)
    x, w = random_bytes(rng, np.uint8, (2, 6, 8, 7)), random_bytes(rng, np.int8, (40, 6, 3, 3))
    found, wanted = quantized(x, w, {"strides": [2, 1]}, channels_last=True)
    assert np.array_equal(found, wanted)


def test_shapes_that_do_not_fit() -> None:
    x, w = np.zeros((1, 3, 8, 8), np.uint8), np.zeros((4, 2, 3, 3), np.int8)
    kernel = ConvIntegerKernel({"group": 1, "attributes": attributes({})})
    with pytest.raises(ValueError, match=r"input \(1, 3, 8, 8\) and weights \(4, 2, 3, 3\) with group 1 do not fit"):
        outputs_of(kernel, [x, w], known={1})
