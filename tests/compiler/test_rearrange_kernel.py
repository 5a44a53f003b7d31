"""Tile, DepthToSpace and SpaceToDepth against NumPy, for every instruction set of this machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.native.movement.rearrange import DepthToSpace, SpaceToDepth, Tile
from tests.compiler.layouts import bound, is_channels_last, kernel_of, operator_of
from tests.compiler.steps import VARIANTS, bind, outputs_of


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.complex128])
@pytest.mark.parametrize(
    ("shape", "times"),
    [((3,), (4,)), ((), ()), ((2, 3), (1, 5)), ((2, 3), (3, 2)), ((2, 1, 3), (0, 2, 1)), ((1, 70), (40, 1))],
)
def test_tile(shape: tuple[int, ...], times: tuple[int, ...], dtype: Any, variant: str) -> None:
    data = np.random.default_rng(2).integers(0, 100, shape).astype(dtype)
    inputs = [data, np.array(times, np.int64)]
    (found,) = outputs_of(Tile({}), inputs, variant, known=[1], one_by_one=True)
    np.testing.assert_array_equal(found, np.tile(data, times))


def test_one_tile_is_the_data() -> None:
    binder, _, _ = bind(Tile({}), [np.zeros((2, 3), np.float32), np.array([1, 1])], known=[1])
    assert not binder.steps
    with pytest.raises(ValueError, match="one count for each of 2 axes"):
        bind(Tile({}), [np.zeros((2, 3), np.float32), np.array([1])], known=[1])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("block", [1, 2, 3])
def test_depth_and_space(block: int, mode: str, variant: str) -> None:
    n, depth, h, w = 2, 3, 5, 7
    image = np.arange(n * depth * h * block * w * block, dtype=np.float32).reshape(n, depth, h * block, w * block)
    pixels = image.reshape(n, depth, h, block, w, block)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    deep = np.ascontiguousarray(pixels.transpose(order)).reshape(n, depth * block * block, h, w)
    parameters = {"blocksize": block, "mode": mode}
    (found,) = outputs_of(SpaceToDepth(parameters), [image], variant)
    np.testing.assert_array_equal(found, deep)
    (found,) = outputs_of(DepthToSpace(parameters), [deep], variant)
    np.testing.assert_array_equal(found, image)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("name", ["DepthToSpace", "SpaceToDepth"])
def test_channels_last_stays_so_by_one_copy(name: str, mode: str, variant: str) -> None:
    operator = operator_of(name, 28, {"blocksize": 2, "mode": mode})
    data = np.arange(2 * 20 * 6 * 8, dtype=np.float32).reshape(2, 20, 6, 8)
    kernel = kernel_of(operator, [data])
    binder, memory, result = bound(kernel, [data], variant, last=True)
    assert len(binder.steps) == 1
    assert is_channels_last(result)
    memory.run(binder)
    np.testing.assert_array_equal(memory.read(result), operator.run(data)[0])


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="do not divide by the square"):
        bind(DepthToSpace({"blocksize": 2, "mode": "DCR"}), [np.zeros((1, 3, 2, 2), np.float32)])
    with pytest.raises(ValueError, match="does not divide into blocks"):
        bind(SpaceToDepth({"blocksize": 2, "mode": "DCR"}), [np.zeros((1, 3, 3, 2), np.float32)])
