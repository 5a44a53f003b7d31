"""Convolutions against PyTorch over random shapes and attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops import exact_integers
from tests.ops.single_node import assert_same, ours, theirs

torch = pytest.importorskip("torch")

CASES = 80


def _random_case(rng: np.random.Generator, rank: int) -> tuple[Any, ...]:
    group = int(rng.choice([1, 1, 2, 3]))
    channels = group * int(rng.integers(1, 4))
    filters = group * int(rng.integers(1, 4))
    kernel = [int(n) for n in rng.integers(1, 4, rank)]
    dilations = [int(n) for n in rng.integers(1, 3, rank)]
    strides = [int(n) for n in rng.integers(1, 4, rank)]
    pads = [int(n) for n in rng.integers(0, 3, rank)]
    sizes = [(n - 1) * d + int(rng.integers(1, 7)) for n, d in zip(kernel, dilations, strict=True)]
    x = rng.standard_normal((int(rng.integers(1, 3)), channels, *sizes)).astype(np.float32)
    return x, group, channels, filters, kernel, dilations, strides, pads


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_conv_agrees_with_torch(rank: int) -> None:
    function = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[rank - 1]
    rng = np.random.default_rng(rank)
    for _ in range(CASES):
        x, group, channels, filters, kernel, dilations, strides, pads = _random_case(rng, rank)
        w = rng.standard_normal((filters, channels // group, *kernel)).astype(np.float32)
        bias = rng.standard_normal(filters).astype(np.float32) if rng.random() < 0.5 else None
        expected = function(
            torch.from_numpy(x), torch.from_numpy(w), None if bias is None else torch.from_numpy(bias),
            strides, pads, dilations, group,
        )  # fmt: skip
        inputs = (x, w) if bias is None else (x, w, bias)
        actual = ours("Conv", *inputs, strides=strides, pads=pads * 2, dilations=dilations, group=group)
        assert_same(actual, [expected.numpy()], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_conv_transpose_agrees_with_torch(rank: int) -> None:
    function = (
        torch.nn.functional.conv_transpose1d,
        torch.nn.functional.conv_transpose2d,
        torch.nn.functional.conv_transpose3d,
    )[rank - 1]
    rng = np.random.default_rng(10 + rank)
    for _ in range(CASES // 2):
        x, group, channels, filters, kernel, dilations, strides, pads = _random_case(rng, rank)
        pads = [min(p, ((n - 1) * d) // 2) for p, n, d in zip(pads, kernel, dilations, strict=True)]
        extra = [int(rng.integers(0, max(s, d))) for s, d in zip(strides, dilations, strict=True)]
        w = rng.standard_normal((channels, filters // group, *kernel)).astype(np.float32)
        expected = function(
            torch.from_numpy(x), torch.from_numpy(w), None, strides, pads, extra, group, dilations
        ).numpy()
        actual = ours(
            "ConvTranspose",
            x,
            w,
            strides=strides,
            pads=pads * 2,
            dilations=dilations,
            group=group,
            output_padding=extra,
        )
        assert_same(actual, [expected], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_auto_pad_agrees_with_onnxruntime(op: str, auto_pad: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 3, 7, 8)).astype(np.float32)
    w = rng.standard_normal((3, 3, 4, 3)).astype(np.float32)
    for strides in ([1, 1], [2, 3]):
        attributes = {"auto_pad": auto_pad, "strides": strides}
        assert_same(ours(op, x, w, **attributes), theirs(op, x, w, **attributes), rtol=1e-4, atol=1e-5)


def test_conv_of_half_floats_is_rounded_once() -> None:
    rng = np.random.default_rng(4)
    x, w = (rng.standard_normal(shape).astype(np.float16) for shape in ((1, 8, 9, 9), (4, 8, 3, 3)))
    (exact,) = ours("Conv", x.astype(np.float64), w.astype(np.float64))
    (actual,) = ours("Conv", x, w)
    assert actual.dtype == np.float16
    np.testing.assert_allclose(actual.astype(np.float64), exact, rtol=2**-11 + 1e-5, atol=1e-4)


def test_an_empty_batch_gives_an_empty_output() -> None:
    (y,) = ours("Conv", np.zeros((0, 2, 5, 5), np.float32), np.zeros((3, 2, 3, 3), np.float32))
    assert y.shape == (0, 3, 3, 3)


@pytest.mark.parametrize("per_channel", [False, True])
def test_quantised_convolutions_are_exact(per_channel: bool) -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        x = rng.integers(0, 256, (1, 4, 6, 6)).astype(np.uint8)
        w = rng.integers(-128, 128, (6, 2, 3, 3)).astype(np.int8)
        count = 6 if per_channel else 1
        scales = rng.uniform(0.001, 0.01, count).astype(np.float32)
        zeros = np.zeros(count, np.int8)
        if not per_channel:
            scales, zeros = scales.reshape(()), zeros.reshape(())
        inputs = (
            x, np.array(0.02, np.float32), np.array(130, np.uint8), w, scales, zeros,
            np.array(0.3, np.float32), np.array(99, np.uint8), rng.integers(-500, 500, 6).astype(np.int32),
        )  # fmt: skip
        attributes = {"group": 2, "pads": [1, 1, 1, 1]}
        sums = exact_integers.convolution(x, w, inputs[2], **attributes) + inputs[8].reshape(6, 1, 1)
        real = sums * inputs[1].astype(np.float64) * scales.astype(np.float64).reshape(-1, 1, 1) / inputs[6]
        (actual,) = ours("QLinearConv", *inputs, **attributes)
        exact_integers.assert_quantised(actual, real, inputs[7])


def test_contradictions_name_the_shapes() -> None:
    x, w = np.zeros((1, 3, 5, 5), np.float32), np.zeros((4, 2, 3, 3), np.float32)
    with pytest.raises(Exception, match="3 channels"):
        ours("Conv", x, w)
    with pytest.raises(Exception, match="larger than the padded input"):
        ours("Conv", np.zeros((1, 2, 2, 2), np.float32), w)
