"""Channels-last and quantised pools against onnxruntime, quantised convolutions against exact integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops import exact_integers
from tests.ops.microsoft import peer
from tests.ops.microsoft.quantized import Array, random, scale, steps

WINDOWS: list[dict[str, Any]] = [
    {"kernel_shape": [3, 3]},
    {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]},
    {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER", "strides": [2, 2]},
]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("attributes", [*WINDOWS, {"kernel_shape": [3, 3], "dilations": [2, 1], "pads": [2, 1, 2, 1]}])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_qlinear_conv(dtype: type, channels_last: int, attributes: dict[str, Any], group: int) -> None:
    generator = np.random.default_rng(1)
    x = random(generator, dtype, 2, 4, 9, 8)
    w = random(generator, np.int8, 8, 4 // group, *attributes["kernel_shape"])
    per_filter = (generator.random(8) * 0.01 + 0.001).astype(np.float32)
    bias = generator.integers(-3000, 3000, 8).astype(np.int32)
    inputs = [
        np.moveaxis(x, 1, -1).copy() if channels_last else x,
        scale(0.02),
        np.array(5, dtype),
        w,
        per_filter,
        np.zeros(8, np.int8),
        scale(0.1),
        np.array(9, dtype),
        bias,
    ]
    sums = exact_integers.convolution(x, w, inputs[2], group=group, **attributes) + bias.reshape(8, 1, 1)
    real = sums * (0.02 * per_filter.astype(np.float64).reshape(8, 1, 1) / 0.1)
    more = {**attributes, "group": group, "channels_last": channels_last}
    (found,) = peer.run("QLinearConv", inputs, 1, more, constants=[1, 2, 3, 4, 5, 6, 7, 8])
    exact_integers.assert_quantised(found, np.moveaxis(real, 1, -1) if channels_last else real, inputs[7])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("attributes", WINDOWS)
@pytest.mark.parametrize("include", [0, 1])
def test_qlinear_average_pool(dtype: type, channels_last: int, attributes: dict[str, Any], include: int) -> None:
    x = random(np.random.default_rng(2), dtype, 2, 9, 8, 5)
    inputs = [x, scale(0.02), np.array(5, dtype), scale(0.015), np.array(9, dtype)]
    # onnxruntime sums in another order, so a mean half way between two steps may fall elsewhere.
    steps(
        "QLinearAveragePool",
        inputs,
        1,
        {**attributes, "count_include_pad": include, "channels_last": channels_last},
        allowed=1,
        share=0.02,
    )


def steps_of_means(sums: Array, counts: Any, dtype: type, zero: int) -> Array:
    """Means of integers of one scale in integers of the same scale, ties to even: in whole numbers alone."""
    doubled = 2 * sums + counts  # floor of mean + 1/2, of which a tie that became odd is one less
    nearest = doubled // (2 * counts)
    nearest -= (doubled % (2 * counts) == 0) & (nearest % 2 != 0)
    kind = np.iinfo(dtype)
    return np.clip(nearest + zero, kind.min, kind.max).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(("kernel", "pad", "channels"), [(2, 0, 5), (3, 1, 3), (2, 1, 48), (4, 1, 1)])
def test_means_half_way_between_two_steps_go_to_the_even_one(
    dtype: type, channels_last: int, include: int, kernel: int, pad: int, channels: int
) -> None:
    """Every form of the pool has the same bits, those of exact means."""
    x = random(np.random.default_rng(7), dtype, 2, channels, 25, 33)
    padded = np.pad(x.astype(np.int64) - 5, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    there = np.pad(np.ones_like(x, np.int64), [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    windows, inside = (
        np.lib.stride_tricks.sliding_window_view(one, (kernel, kernel), axis=(2, 3)).sum(axis=(-2, -1))
        for one in (padded, there)
    )
    expected = steps_of_means(windows, kernel * kernel if include else inside, dtype, 9)
    given = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if channels_last else x
    for step in (0.02, 0.0731):  # times a scale and divided by it, a tie is none
        inputs = [given, scale(step), np.array(5, dtype), scale(step), np.array(9, dtype)]
        attributes = {"kernel_shape": [kernel] * 2, "pads": [pad] * 4, "count_include_pad": include}
        (found,) = peer.run("QLinearAveragePool", inputs, 1, {**attributes, "channels_last": channels_last})
        np.testing.assert_array_equal(np.moveaxis(found, -1, 1) if channels_last else found, expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("size", [2, 6, 8])
def test_global_means_half_way_between_two_steps(dtype: type, channels_last: int, size: int) -> None:
    x = random(np.random.default_rng(8), dtype, 3, 700, size, size)
    expected = steps_of_means((x.astype(np.int64) - 5).sum(axis=(2, 3), keepdims=True), size * size, dtype, 9)
    given = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if channels_last else x
    inputs = [given, scale(0.0731), np.array(5, dtype), scale(0.0731), np.array(9, dtype)]
    (found,) = peer.run("QLinearGlobalAveragePool", inputs, 1, {"channels_last": channels_last})
    np.testing.assert_array_equal(np.moveaxis(found, -1, 1) if channels_last else found, expected)
    if not channels_last:
        (found,) = peer.run("QLinearReduceMean", inputs, 1, {"axes": [2, 3], "keepdims": 1})
        np.testing.assert_array_equal(found, expected)


def test_windows_whose_sums_float32_does_not_hold() -> None:
    x = random(np.random.default_rng(9), np.uint8, 1, 1, 260, 260)
    inputs = [x, scale(0.02), np.array(0, np.uint8), scale(0.02), np.array(0, np.uint8)]
    (found,) = peer.run("QLinearAveragePool", inputs, 1, {"kernel_shape": [260, 260]})
    expected = steps_of_means(x.astype(np.int64).sum(axis=(2, 3), keepdims=True), 260 * 260, np.uint8, 0)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("shape", [(2, 5, 7, 6), (1, 3, 40, 40)])
def test_qlinear_global_average_pool(dtype: type, channels_last: int, shape: tuple[int, ...]) -> None:
    x = random(np.random.default_rng(3), dtype, *shape)
    inputs = [x, scale(0.02), np.array(5, dtype), scale(0.005), np.array(9, dtype)]
    steps("QLinearGlobalAveragePool", inputs, 1, {"channels_last": channels_last}, allowed=1, share=0.1)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    "attributes",
    [
        *WINDOWS,
        {"kernel_shape": [2, 2], "dilations": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    ],
)
def test_nhwc_max_pool(dtype: type, attributes: dict[str, Any]) -> None:
    steps("NhwcMaxPool", [random(np.random.default_rng(4), dtype, 2, 9, 8, 5)], 1, attributes)


@pytest.mark.parametrize("group", [1, 2])
def test_nhwc_conv(group: int) -> None:
    generator = np.random.default_rng(5)
    x, w = generator.standard_normal((2, 4, 9, 8)), generator.standard_normal((6, 4 // group, 3, 3))
    bias, z = generator.standard_normal(6), generator.standard_normal((2, 9, 8, 6))
    x, w, bias, z = (array.astype(np.float32) for array in (x, w, bias, z))
    attributes = {"pads": [1, 1, 1, 1], "group": group}
    (exact,) = peer.onnxruntime(*_with_feeds("Conv", [x, w, bias], attributes))
    exact = np.moveaxis(exact, 1, -1)
    given = np.moveaxis(x, 1, -1).copy()
    (plain,) = peer.run("NhwcConv", [given, w, bias], 1, attributes)
    np.testing.assert_allclose(plain, exact, rtol=1e-4, atol=1e-4)
    (fused,) = peer.run("NhwcFusedConv", [given, w, bias, z], 1, {**attributes, "activation": "Relu"})
    np.testing.assert_allclose(fused, np.maximum(exact + z, 0), rtol=1e-4, atol=1e-4)


def _with_feeds(op_type: str, inputs: list[np.ndarray], attributes: dict[str, Any]) -> tuple[Any, Any]:
    model = peer.one_node(op_type, inputs, 1, attributes, domain="")
    return model, peer.feeds(model, inputs)
