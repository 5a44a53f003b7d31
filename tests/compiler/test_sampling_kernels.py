"""GridSample, AffineGrid, RoiAlign and MaxRoiPool against their meaning in NumPy, for every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.layouts import bound, is_channels_last, kernel_of, operator_of, result_of
from tests.compiler.steps import VARIANTS

Array = np.ndarray[Any, Any]

variants = pytest.mark.parametrize("variant", VARIANTS)
# The shape of the maps, the places, whether they lie channels-last.
MAPS = [
    ((2, 3, 5, 7), (4, 9), False),
    ((2, 3, 1, 7), (3, 5), False),
    ((1, 20, 5, 7), (6, 5), True),
    ((1, 40, 5, 7), (6, 5), False),
    ((2, 3, 9), (21,), False),
    ((1, 3, 4, 5, 6), (2, 3, 7), False),
    ((1, 18, 4, 5, 6), (2, 3, 2), True),
]


def grid_of(shape: tuple[int, ...], places: tuple[int, ...], dtype: Any) -> Array:
    """Places inside and outside; none of them so near to the middle between two elements that rounding decides."""
    grid = np.random.default_rng(3).uniform(-1.6, 1.6, (shape[0], *places, len(shape) - 2))
    return (np.round(grid * 64) / 64 + 0.003).astype(dtype)


@variants
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize(("shape", "places", "last"), MAPS, ids=str)
def test_grids(
    shape: tuple[int, ...],
    places: tuple[int, ...],
    last: bool,
    aligned: int,
    padding: str,
    mode: str,
    variant: str,
) -> None:
    operator = operator_of("GridSample", 20, {"mode": mode, "padding_mode": padding, "align_corners": aligned})
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    inputs = [x, grid_of(shape, places, np.float32)]
    (expected,) = operator.run(*inputs)
    found = result_of(kernel_of(operator, inputs), inputs, variant, last=last)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(np.float16, 3e-3), (np.float64, 1e-12), (np.uint8, 0.0), (np.int32, 0.0)]
)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_grids_of_other_types(mode: str, dtype: Any, tolerance: float) -> None:
    operator = operator_of("GridSample", 20, {"mode": mode, "padding_mode": "border"})
    x = np.random.default_rng(2).integers(0, 100, (1, 3, 6, 7)).astype(dtype)
    inputs = [x, grid_of(x.shape, (5, 8), np.float64 if dtype == np.float64 else np.float32)]
    (expected,) = operator.run(*inputs)
    found = result_of(kernel_of(operator, inputs), inputs)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=0, atol=tolerance * 100)


@variants
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_places_that_are_no_places(padding: str, variant: str) -> None:
    """They read something inside the maps, or nothing; an element outside of which a place lies is not multiplied."""
    operator = operator_of("GridSample", 20, {"padding_mode": padding})
    x = np.ones((1, 2, 4, 5), np.float32)
    x[:, :, 0, 0] = np.inf
    grid = np.full((1, 3, 3, 2), 0.5, np.float32)
    grid[0, 0] = [[np.nan, 0], [np.inf, -np.inf], [1e30, -1e30]]
    inputs = [x, grid]
    found = result_of(kernel_of(operator, inputs), inputs, variant)
    np.testing.assert_array_equal(found[:, :, 1:], np.ones((1, 2, 2, 3)))
    if padding == "zeros":
        np.testing.assert_array_equal(found[:, :, 0], np.zeros((1, 2, 3)))


def test_maps_channels_last_stay_so() -> None:
    operator = operator_of("GridSample", 20, {})
    inputs = [np.ones((2, 24, 5, 6), np.float32), np.zeros((2, 4, 4, 2), np.float32)]
    binder, _, result = bound(kernel_of(operator, inputs), inputs, last=True)
    assert is_channels_last(result)
    assert len(binder.steps) == 1


def test_grids_that_do_not_fit() -> None:
    operator = operator_of("GridSample", 20, {})
    for shape in [(2, 4, 4, 3), (1, 4, 4, 2), (2, 4, 2)]:
        inputs = [np.ones((2, 3, 5, 6), np.float32), np.zeros(shape, np.float32)]
        with pytest.raises(ValueError, match="does not fit X"):
            bound(kernel_of(operator, inputs), inputs)
    inputs = [np.ones((2, 3, 0, 6), np.float32), np.zeros((2, 4, 4, 2), np.float32)]
    with pytest.raises(ValueError, match="no elements to sample"):
        bound(kernel_of(operator, inputs), inputs)


@variants
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize(("theta", "size"), [((2, 2, 3), [2, 3, 5, 21]), ((1, 3, 4), [1, 3, 4, 1, 6])])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_affine_grids(theta: tuple[int, ...], size: list[int], aligned: int, dtype: Any, variant: str) -> None:
    operator = operator_of("AffineGrid", 20, {"align_corners": aligned})
    inputs = [np.random.default_rng(1).standard_normal(theta).astype(dtype), np.array(size)]
    (expected,) = operator.run(*inputs)
    found = result_of(kernel_of(operator, inputs), inputs, variant)
    tolerance = {np.float16: 4e-3, np.float32: 2e-6, np.float64: 1e-14}[dtype]
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def test_affine_grids_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    theta = np.random.default_rng(1).standard_normal((2, 2, 3)).astype(np.float32)
    for aligned in (False, True):
        operator = operator_of("AffineGrid", 20, {"align_corners": int(aligned)})
        for size in ([2, 3, 5, 6], [2, 3, 2, 4]):
            expected = torch.nn.functional.affine_grid(torch.from_numpy(theta), size, align_corners=aligned).numpy()
            np.testing.assert_allclose(operator.run(theta, np.array(size))[0], expected, rtol=0, atol=1e-6)
    inputs = [theta, np.array([2, 3, 5])]
    with pytest.raises(ValueError, match="do not fit"):
        bound(kernel_of(operator, inputs), inputs)


def regions(count: int, dtype: Any) -> Array:
    """Regions of all kinds: inside, reaching out, turned around."""
    rng = np.random.default_rng(4)
    start = rng.uniform(-4, 22, (count, 2))
    return np.concatenate([start, start + rng.uniform(-2, 14, (count, 2))], axis=1).astype(dtype)


@variants
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("samples", [0, 1, 3])
@pytest.mark.parametrize(("shape", "last"), [((2, 3, 9, 11), False), ((2, 150, 9, 11), True), ((1, 20, 1, 7), False)])
def test_aligned_regions(
    shape: tuple[int, ...], last: bool, samples: int, coordinates: str, mode: str, variant: str
) -> None:
    attributes = {"mode": mode, "output_height": 3, "output_width": 2, "sampling_ratio": samples, "spatial_scale": 0.5}
    operator = operator_of("RoiAlign", 16, {**attributes, "coordinate_transformation_mode": coordinates})
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    inputs = [x, regions(7, np.float32), np.arange(7) % shape[0]]
    (expected,) = operator.run(*inputs)
    found = result_of(kernel_of(operator, inputs), inputs, variant, last=last)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def boxes(count: int, dtype: Any) -> Array:
    """Boxes in fractions: the whole map, inside, reaching out, turned around, no numbers."""
    rng = np.random.default_rng(6)
    found = np.concatenate([[[0, 0, 1, 1], [1, 1, 0, 0]], rng.uniform(-0.3, 1.3, (count - 2, 4))])
    return found.astype(dtype)


@variants
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float16, 2e-3), (np.float64, 1e-12)])
def test_crops(mode: str, dtype: Any, tolerance: float, variant: str) -> None:
    operator = operator_of("CropAndResize", 1, {"mode": mode, "extrapolation_value": 9.5}, "com.microsoft")
    for shape, size, last in (
        ((2, 3, 9, 11), (4, 7), False),
        ((2, 70, 5, 6), (1, 3), True),
        ((1, 5, 1, 1), (2, 2), False),
    ):
        x = np.random.default_rng(2).standard_normal(shape).astype(dtype)
        kind = np.int64 if last else np.int32
        inputs = [x, boxes(9, dtype), (np.arange(9) % shape[0]).astype(kind), np.array(size, np.int32)]
        (expected,) = operator.run(*inputs)
        found = result_of(kernel_of(operator, inputs), inputs, variant, last=last)
        np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=0, atol=tolerance)


def test_crops_of_wrong_indices_and_sizes() -> None:
    operator = operator_of("CropAndResize", 1, {}, "com.microsoft")
    x, size = np.ones((2, 3, 5, 6), np.float32), np.array([2, 2])
    for wrong in (2, -1, 1 << 40):
        inputs = [x, boxes(3, np.float32), np.array([0, wrong, 1]), size]
        binder, memory, _ = bound(kernel_of(operator, inputs), inputs, "")
        assert memory.run(binder) == [f"a region is of item {wrong}, but the batch has 2"]
    for bad in ([0, 2], [3, -1], [1, 2, 3]):
        with pytest.raises(ValueError, match="crop_size"):
            bound(kernel_of(operator, inputs), [x, boxes(3, np.float32), np.zeros(3, np.int64), np.array(bad)], "")


@variants
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(2, 3, 9, 11), (2, 70, 1, 7)])
def test_maxima_of_regions(shape: tuple[int, ...], dtype: Any, variant: str) -> None:
    operator = operator_of("MaxRoiPool", 1, {"pooled_shape": (3, 4), "spatial_scale": 0.5})
    x = np.random.default_rng(2).standard_normal(shape).astype(dtype)
    x[0, 0, 0, 0] = np.nan
    items = (np.arange(9) % shape[0])[:, None]
    inputs = [x, np.concatenate([items, regions(9, dtype)], axis=1).astype(dtype)]
    (expected,) = operator.run(*inputs)
    np.testing.assert_array_equal(result_of(kernel_of(operator, inputs), inputs, variant), expected)


def test_no_regions() -> None:
    """As where no box is of the size that a level of a pyramid of maps is for."""
    x = np.ones((1, 20, 5, 6), np.float32)
    align = operator_of("RoiAlign", 16, {"output_height": 7, "output_width": 7})
    inputs = [x, np.zeros((0, 4), np.float32), np.zeros(0, np.int64)]
    assert result_of(kernel_of(align, inputs), inputs, "").shape == (0, 20, 7, 7)
    pool = operator_of("MaxRoiPool", 1, {"pooled_shape": (3, 4)})
    inputs = [x, np.zeros((0, 5), np.float32)]
    assert result_of(kernel_of(pool, inputs), inputs, "").shape == (0, 20, 3, 4)


@variants
def test_regions_of_items_that_are_not_there(variant: str) -> None:
    x = np.ones((2, 20, 5, 6), np.float32)
    operator = operator_of("RoiAlign", 16, {})
    for wrong in (2, -1, 1 << 40):
        inputs = [x, regions(3, np.float32), np.array([0, wrong, 1])]
        binder, memory, _ = bound(kernel_of(operator, inputs), inputs, variant)
        assert memory.run(binder) == [f"a region is of item {wrong}, but the batch has 2"]
    pool = operator_of("MaxRoiPool", 1, {"pooled_shape": (1, 1)})
    inputs = [x, np.array([[5, 0, 0, 3, 3]], np.float32)]
    binder, memory, _ = bound(kernel_of(pool, inputs), inputs, variant)
    assert memory.run(binder) == ["a region is of item 5, but the batch has 2"]
    with pytest.raises(ValueError, match="are not"):
        bound(kernel_of(operator, inputs), [x, regions(3, np.float32), np.zeros(2, np.int64)])


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_grids_of_onnxruntime(aligned: int, padding: str, mode: str) -> None:
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    operator = operator_of("GridSample", 1, attributes, "com.microsoft")
    x = np.random.default_rng(2).standard_normal((2, 3, 5, 7)).astype(np.float32)
    inputs = [x, grid_of(x.shape, (4, 9), np.float32)]
    (expected,) = operator.run(*inputs)
    np.testing.assert_allclose(result_of(kernel_of(operator, inputs), inputs), expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel", "align_corners"])
def test_upsampling_of_blocked_channels(coordinates: str, mode: str) -> None:
    attributes = {"scales": (1, 1, 2, 3), "mode": mode, "coordinate_transformation_mode": coordinates}
    operator = operator_of("Upsample", 1, attributes, "com.microsoft.nchwc")
    inputs = [np.random.default_rng(2).standard_normal((2, 3, 5, 7)).astype(np.float32)]
    (expected,) = operator.run(*inputs)
    np.testing.assert_allclose(result_of(kernel_of(operator, inputs), inputs), expected, rtol=0, atol=3e-6)
