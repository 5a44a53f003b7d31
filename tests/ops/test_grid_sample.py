"""GridSample and DeformConv against onnxruntime and ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.ops.single_node import assert_same, compiled, feeds_of, make_model, ours, theirs

RNG = np.random.default_rng(5)


def real(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


IMAGES, VOLUMES = real(2, 3, 6, 5), real(1, 2, 4, 5, 3)
GRID = RNG.uniform(-1.6, 1.6, (2, 4, 7, 2)).astype(np.float32)
VOLUME_GRID = RNG.uniform(-1.6, 1.6, (1, 3, 2, 4, 3)).astype(np.float32)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_images(mode: str, padding: str, corners: int) -> None:
    pytest.importorskip("onnxruntime")
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    expected = theirs("GridSample", IMAGES, GRID, opset=20, **attributes)
    assert_same(ours("GridSample", IMAGES, GRID, opset=20, **attributes), expected, 1e-4, 1e-5)
    older = {**attributes, "mode": {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)}
    assert_same(ours("GridSample", IMAGES, GRID, opset=16, **older), expected, 1e-4, 1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_volumes(mode: str, padding: str, corners: int) -> None:
    pytest.importorskip("onnxruntime")
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    expected = theirs("GridSample", VOLUMES, VOLUME_GRID, opset=20, **attributes)
    assert_same(ours("GridSample", VOLUMES, VOLUME_GRID, opset=20, **attributes), expected, 1e-4, 1e-5)


def test_cubic_volumes_against_reference() -> None:
    model = make_model("GridSample", (VOLUMES, VOLUME_GRID), {"mode": "cubic", "align_corners": 1}, 20)
    expected = ReferenceEvaluator(model).run(None, feeds_of((VOLUMES, VOLUME_GRID)))
    actual = ours("GridSample", VOLUMES, VOLUME_GRID, opset=20, mode="cubic", align_corners=1)
    assert_same(actual, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_places_that_are_no_numbers_read_something_in_bounds(mode: str, padding: str) -> None:
    grid = GRID.copy()
    grid[0, 0, :3] = [[np.nan, 0], [np.inf, 0], [0, -1e30]]
    (found,) = ours("GridSample", IMAGES, grid, opset=20, mode=mode, padding_mode=padding)
    (clean,) = ours("GridSample", IMAGES, GRID, opset=20, mode=mode, padding_mode=padding)
    np.testing.assert_array_equal(found[1], clean[1])


def test_symbols_of_the_grid_are_kept() -> None:
    model = make_model("GridSample", (IMAGES, GRID), {}, 20)
    for name, dims in (("x0", ("batch", 3, 6, 5)), ("x1", ("batch", "height", "width", 2))):
        info = next(value for value in model.graph.input if value.name == name)
        info.CopyFrom(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims))
    (output,) = compiled(model).model.graph.outputs
    assert [str(dim) for dim in output.shape or ()] == ["batch", "3", "height", "width"]


def test_grid_of_another_batch_is_an_error() -> None:
    with pytest.raises(Exception, match="does not fit X"):
        ours("GridSample", IMAGES, GRID[:1], opset=20)


CONVOLUTIONS = [
    ({}, 1, False),
    ({"strides": [2, 1], "pads": [1, 0, 2, 1]}, 1, True),
    ({"dilations": [2, 1], "pads": [1, 1, 1, 1], "offset_group": 2}, 2, True),
    ({"group": 2, "offset_group": 2}, 2, False),
]


@pytest.mark.parametrize(("attributes", "offset_groups", "masked"), CONVOLUTIONS)
def test_deformable_convolution(attributes: dict[str, Any], offset_groups: int, masked: bool) -> None:
    pytest.importorskip("onnxruntime")
    x, w, bias = real(2, 4, 7, 6), real(6, 4 // attributes.get("group", 1), 3, 2), real(6)
    plain = {key: value for key, value in attributes.items() if key != "offset_group"}
    (shape,) = (value.shape for value in ours("Conv", x, w, **plain))
    offset = real(2, offset_groups * 12, *shape[2:])
    mask = real(2, offset_groups * 6, *shape[2:]) if masked else None
    inputs = (x, w, offset, bias, mask) if masked else (x, w, offset, bias)
    for opset in (19, 22):
        expected = theirs("DeformConv", *inputs, opset=opset, **attributes)
        assert_same(ours("DeformConv", *inputs, opset=opset, **attributes), expected, 1e-4, 1e-5)


def test_deformable_convolution_without_offsets_is_a_convolution() -> None:
    x, w = real(1, 4, 7, 6), real(6, 2, 3, 2)
    (expected,) = ours("Conv", x, w, group=2)
    offset = np.zeros((1, 12, *expected.shape[2:]), np.float32)
    (found,) = ours("DeformConv", x, w, offset, group=2, opset=22)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_offsets_of_another_size_are_an_error() -> None:
    with pytest.raises(Exception, match="the offset has shape"):
        ours("DeformConv", real(1, 4, 7, 6), real(6, 4, 3, 2), real(1, 12, 4, 4), opset=22)
