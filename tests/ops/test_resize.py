"""Resize against onnxruntime over modes, coordinates and scales."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.single_node import assert_same, ours, theirs

X = np.random.default_rng(0).standard_normal((1, 2, 7, 9)).astype(np.float32)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric"])
@pytest.mark.parametrize("scales", [(2, 3), (0.6, 0.7), (1.7, 0.4)])
def test_scales(mode: str, coordinates: str, scales: tuple[float, float]) -> None:
    pytest.importorskip("onnxruntime")
    if (mode, coordinates, scales) == ("nearest", "half_pixel_symmetric", (1.7, 0.4)):
        scales = (1.6, 0.4)  # 1.7 puts the middle row on an element, which `ceil` takes or not by the last bit
    inputs = (X, None, np.array([1, 1, *scales], np.float32))
    for extra in ({}, {"exclude_outside": 1} if mode == "cubic" else {"nearest_mode": "ceil"}):
        attributes = {"mode": mode, "coordinate_transformation_mode": coordinates, **extra}
        assert_same(ours("Resize", *inputs, **attributes), theirs("Resize", *inputs, **attributes), 1e-4, 1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("size", [(14, 4), (3, 20), (7, 9)])
def test_sizes_with_aligned_corners(mode: str, size: tuple[int, int]) -> None:
    pytest.importorskip("onnxruntime")
    inputs = (X, None, None, np.array([1, 2, *size], np.int64))
    attributes = {"mode": mode, "coordinate_transformation_mode": "align_corners", "nearest_mode": "floor"}
    assert_same(ours("Resize", *inputs, **attributes), theirs("Resize", *inputs, **attributes), 1e-4, 1e-5)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_aspect_ratio_is_kept(policy: str) -> None:
    pytest.importorskip("onnxruntime")
    inputs = (X, None, None, np.array([5, 12], np.int64))
    attributes = {"axes": [2, 3], "keep_aspect_ratio_policy": policy, "mode": "linear"}
    assert_same(ours("Resize", *inputs, **attributes), theirs("Resize", *inputs, **attributes), 1e-4, 1e-5)


def test_cropping_fills_what_lies_outside() -> None:
    region = np.array([0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7], np.float32)
    inputs = (X, region, None, np.array([1, 2, 5, 4], np.int64))
    attributes = {
        "mode": "linear",
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 9.0,
    }
    pytest.importorskip("onnxruntime")
    assert_same(ours("Resize", *inputs, **attributes), theirs("Resize", *inputs, **attributes), 1e-4, 1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialiased_integers(dtype: type, mode: str) -> None:
    pytest.importorskip("onnxruntime")
    lowest = -100 if dtype == np.int32 else 0
    # Along one axis: along two, onnxruntime rounds after each.
    x = np.random.default_rng(1).integers(lowest, 200, (1, 2, 4, 40)).astype(dtype)
    inputs = (x, None, np.array([1, 1, 1, 0.5], np.float32))
    attributes = {"mode": mode, "antialias": 1}
    assert_same(ours("Resize", *inputs, **attributes), theirs("Resize", *inputs, **attributes), 0, 0)


def test_neither_scales_nor_sizes_is_an_error() -> None:
    with pytest.raises(Exception, match="either scales or sizes"):
        ours("Resize", X, None, np.array([], np.float32))
