"""Sampling and pooling of images against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(1)


def normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(3, 5), (1, 1), (7, 2)])
def test_crop_and_resize(mode: str, size: tuple[int, int]) -> None:
    rois = np.array([[0, 0, 1, 1], [0.13, 0.22, 0.91, 0.77], [-0.3, 0.1, 0.6, 1.4], [0.9, 0.8, 0.1, 0.3]], np.float32)
    given = [normal(2, 3, 6, 7), rois, np.array([0, 1, 1, 0], np.int32), np.array(size, np.int32)]
    peer.compare("CropAndResize", given, 1, {"mode": mode, "extrapolation_value": 9.5})


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample(mode: str, padding: str, corners: int) -> None:
    x, grid = normal(2, 3, 5, 6), (RNG.random((2, 4, 7, 2)) * 3 - 1.5).astype(np.float32)
    peer.compare(
        "GridSample", [x, grid], 1, {"mode": mode, "padding_mode": padding, "align_corners": corners}, atol=1e-4
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [2, 3], "pads": [0, 1, 1, 0]},
    ],
)
def test_maxpool_with_mask(attributes: dict[str, Any]) -> None:
    mask = (RNG.random((2, 3, 8, 9)) < 0.7).astype(np.int32)
    peer.compare("MaxpoolWithMask", [normal(2, 3, 8, 9), mask], 1, attributes)


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 0, 1]])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("constants", [[], [2]])
def test_conv_transpose_with_dynamic_pads(pads: list[int], bias: bool, constants: list[int]) -> None:
    given = [normal(1, 4, 5, 6), normal(4, 3, 3, 2), np.array(pads, np.int64), normal(3) if bias else None]
    peer.compare("ConvTransposeWithDynamicPads", given, 1, {"strides": [2, 1]}, atol=1e-4, constants=constants)


def test_conv_transpose_without_pads() -> None:
    x, w = normal(1, 4, 5, 6), normal(4, 3, 3, 2)
    (found,) = peer.run("ConvTransposeWithDynamicPads", [x, w], 1, {"strides": [2, 1]})
    (plain,) = peer.run("ConvTranspose", [x, w], 1, {"strides": [2, 1]}, domain="")
    np.testing.assert_array_equal(found, plain)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances(metric: str, dtype: type) -> None:
    peer.compare("CDist", [normal(5, 4, dtype=dtype), normal(3, 4, dtype=dtype)], 1, {"metric": metric})


def test_a_row_is_not_far_from_itself() -> None:
    x = normal(4, 8) + 1000
    (found,) = peer.run("CDist", [x, x], 1, {"metric": "euclidean"})
    assert np.diag(found).max() < 1e-3


def test_an_unknown_metric_is_named() -> None:
    with pytest.raises(Exception, match="'metric' must be euclidean or sqeuclidean, not 'cityblock'"):
        peer.run("CDist", [normal(2, 2), normal(2, 2)], 1, {"metric": "cityblock"})
