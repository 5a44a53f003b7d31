"""Region pooling against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx import errors
from tests.ops.single_node import assert_same, ours, theirs


def _regions(rng: np.random.Generator, count: int) -> np.ndarray:
    corner = rng.uniform(-2, 12, (count, 2))
    return np.concatenate([corner, corner + rng.uniform(0.2, 12, (count, 2))], axis=1).astype(np.float32)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize(("opset", "coordinates"), [(10, None), (16, "half_pixel"), (17, "output_half_pixel")])
def test_roi_align(mode: str, ratio: int, opset: int, coordinates: str | None) -> None:
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(ratio + opset)
    x = rng.random((2, 3, 12, 10)).astype(np.float32)
    inputs = (x, _regions(rng, 9), rng.integers(0, 2, 9).astype(np.int64))
    attributes = {"mode": mode, "output_height": 3, "output_width": 2, "sampling_ratio": ratio, "spatial_scale": 0.8}
    if coordinates:
        attributes["coordinate_transformation_mode"] = coordinates
    actual = ours("RoiAlign", *inputs, opset=opset, **attributes)
    assert_same(actual, theirs("RoiAlign", *inputs, opset=opset, **attributes), rtol=1e-4, atol=1e-5)


def test_max_roi_pool() -> None:
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 3, 12, 10)).astype(np.float32)
    items = rng.integers(0, 2, (9, 1)).astype(np.float32)
    regions = np.concatenate([items, np.round(_regions(rng, 9))], axis=1)
    attributes = {"pooled_shape": [3, 2], "spatial_scale": 0.5}
    actual = ours("MaxRoiPool", x, regions, opset=21, **attributes)
    assert_same(actual, theirs("MaxRoiPool", x, regions, opset=21, **attributes))


def test_an_item_outside_the_batch_is_an_error() -> None:
    x = np.zeros((1, 1, 4, 4), np.float32)
    with pytest.raises(Exception, match="a region is of item"):
        ours("RoiAlign", x, np.zeros((1, 4), np.float32), np.array([3], np.int64))


def test_endless_regions_and_sampling_end() -> None:
    maps = np.random.default_rng(9).random((1, 3, 8, 8), np.float32)
    regions = np.array([[0, 0, 1e30, 1e30], [np.nan, 0, 4, 4], [1, 1, 6, 6], [-1e30, 2, 5, 1e9]], np.float32)
    inputs = (maps, regions, np.zeros(4, np.int64))
    (y,) = ours("RoiAlign", *inputs, opset=16, output_height=2, output_width=2)
    assert np.isfinite(y[[0, 2, 3]]).all()
    assert (y[2] > 0).all()
    with pytest.raises(errors.OnnxRuntimeError, match="sampling_ratio 4294967296"):
        ours("RoiAlign", *inputs, opset=16, sampling_ratio=1 << 32)
