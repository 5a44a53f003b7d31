"""ScatterND and ScatterElements against the operators' own NumPy form, for every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx import errors
from sardonyx.compiler.box import Box, find_box
from sardonyx.compiler.native.movement.scatter import ScatterElements, ScatterND
from sardonyx.graph.types import element_type
from sardonyx.ops.framework.facts import tensor
from sardonyx.ops.gather_scatter import scatter
from tests.compiler.boxes import coordinates_of
from tests.compiler.steps import VARIANTS, bind, outputs_of

Array = np.ndarray[Any, Any]
REDUCTIONS = ["none", "add", "mul", "min", "max"]
DTYPES = [np.float32, np.float64, np.int8, np.uint16, np.int64]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "index_shape"),
    [
        ((9,), (30, 1)),
        ((5, 6), (2, 7, 2)),
        ((5, 37), (9, 1)),
        ((3, 4, 700), (40, 2)),
        ((4, 3), (2, 0)),
        ((4, 3), (0, 1)),
    ],
)
def test_scatter_nd(
    shape: tuple[int, ...], index_shape: tuple[int, ...], dtype: Any, reduction: str, variant: str
) -> None:
    rng, depth = np.random.default_rng(8), index_shape[-1]
    data = rng.integers(1, 4, shape).astype(dtype)
    bounds = np.array(shape[:depth], np.int64)
    indices = rng.integers(-bounds, bounds, index_shape)
    updates = rng.integers(1, 4, (*index_shape[:-1], *shape[depth:])).astype(dtype)
    (found,) = outputs_of(ScatterND({"reduction": reduction}), [data, indices, updates], variant, one_by_one=True)
    if depth:
        expected = scatter(data, tuple(indices[..., axis] for axis in range(depth)), updates, reduction)
    else:
        expected = data
        for update in updates.reshape(-1, *shape):
            expected = scatter(expected, (np.s_[...],), update, reduction)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "axis", "index_shape"),
    [((10,), 0, (40,)), ((5, 7), 0, (12, 7)), ((5, 7), -1, (4, 30)), ((4, 5, 6), 1, (3, 9, 2)), ((4, 5), 1, (4, 0))],
)
def test_scatter_elements(
    shape: tuple[int, ...], axis: int, index_shape: tuple[int, ...], dtype: Any, reduction: str, variant: str
) -> None:
    rng = np.random.default_rng(9)
    data, updates = rng.integers(1, 4, shape).astype(dtype), rng.integers(1, 4, index_shape).astype(dtype)
    indices = rng.integers(-shape[axis], shape[axis], index_shape).astype(np.int32)
    kernel = ScatterElements({"axis": axis, "reduction": reduction})
    (found,) = outputs_of(kernel, [data, indices, updates], variant, one_by_one=True)
    place = list(np.ogrid[tuple(slice(size) for size in index_shape)])
    place[axis] = indices
    np.testing.assert_array_equal(found, scatter(data, tuple(place), updates, reduction))


@pytest.mark.parametrize("variant", VARIANTS)
def test_not_a_number_stays_one(variant: str) -> None:
    data = np.array([1, np.nan, 3], np.float32)
    indices, updates = np.array([[0], [1], [2]]), np.array([np.nan, 5, 5], np.float32)
    for reduction in ("min", "max"):
        (found,) = outputs_of(ScatterND({"reduction": reduction}), [data, indices, updates], variant)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(found, scatter(data, (indices[:, 0],), updates, reduction))


BOXES = [
    ((5, 6), Box((5, 6), (0, 1), (1, 1), (0, 0))),
    ((5, 6), Box((2, 3), (0, 1), (1, -2), (1, 5))),
    ((5, 6, 3), Box((3, 2), (1, 0), (2, 1), (-2, 1))),
    ((4, 50_000), Box((2,), (0,), (1,), (1,))),
    ((4, 3, 5), Box((1, 4), (0, 2), (0, 1), (3, 1, 1))),
]


def _box_input(box: Box) -> Array:
    return np.array(box.numbers, np.int64)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
@pytest.mark.parametrize(("shape", "box"), BOXES)
def test_boxes_are_written_without_coordinates(shape: tuple[int, ...], box: Box, dtype: Any, variant: str) -> None:
    rng = np.random.default_rng(3)
    data, depth = rng.integers(1, 100, shape).astype(dtype), len(box.begins)
    updates = rng.integers(1, 100, (*box.sizes, *shape[depth:])).astype(dtype)
    coordinates = coordinates_of(box)
    assert find_box([coordinates[..., axis] for axis in range(depth)]) == box
    nothing = np.zeros((*box.sizes, 0), np.int64)
    binder, memory, (result,) = bind(
        ScatterND({"reduction": "none"}), [data, nothing, updates, _box_input(box)], variant, known=(3,)
    )
    memory.run(binder, one_by_one=True)
    assert result is not None
    expected = scatter(data, tuple(coordinates[..., axis] for axis in range(depth)), updates, "none")
    np.testing.assert_array_equal(memory.read(result), expected)


@pytest.mark.parametrize("begin", [-3, 1])
def test_boxes_that_reach_out_are_refused(begin: int) -> None:
    data, updates = np.zeros(2, np.float32), np.zeros(2, np.float32)
    box = _box_input(Box((2,), (0,), (1,), (begin,)))
    nothing = np.zeros((2, 0), np.int64)
    with pytest.raises(errors.InvalidArgument, match="indices element out of data bounds"):
        bind(ScatterND({"reduction": "none"}), [data, nothing, updates, box], known=(3,))


def test_large_updates_are_shared_and_in_order() -> None:
    data = np.zeros((4, 50_000), np.float32)
    updates = np.random.default_rng(1).random((6, 50_000), np.float32)
    indices = np.array([[1], [3], [1], [1], [0], [3]])
    binder, memory, (result,) = bind(ScatterND({"reduction": "none"}), [data, indices, updates])
    assert binder.steps[-1].chunks > 1
    memory.run(binder, one_by_one=True)
    assert result is not None
    np.testing.assert_array_equal(memory.read(result)[[0, 1, 3]], updates[[4, 3, 5]])


def test_indices_out_of_bounds_are_faults() -> None:
    data, updates = np.arange(6, dtype=np.float32).reshape(2, 3), np.full(2, 9, np.float32)
    binder, memory, (result,) = bind(ScatterND({"reduction": "none"}), [data, np.array([[0, 1], [1, 3]]), updates])
    assert memory.run(binder) == [
        "indices element out of data bounds, idx=3 must be within the inclusive range [-3,2] on axis 1"
    ]
    assert result is not None
    assert memory.read(result).tolist() == [[0, 9, 2], [3, 4, 5]]
    kernel = ScatterElements({"axis": 0, "reduction": "none"})
    binder, memory, _ = bind(kernel, [data, np.array([[5]]), np.ones((1, 1), np.float32)])
    assert len(memory.run(binder)) == 1


def test_wrong_shapes_are_refused() -> None:
    data, indices = np.zeros((2, 3), np.float32), np.zeros((4, 1), np.int64)
    with pytest.raises(ValueError, match=r"updates must have the shape \(4, 3\)"):
        bind(ScatterND({"reduction": "none"}), [data, indices, np.zeros((4, 2), np.float32)])
    kernel = ScatterElements({"axis": 1, "reduction": "none"})
    with pytest.raises(ValueError, match="must have one shape"):
        bind(kernel, [data, np.zeros((2, 1), np.int64), np.zeros((2, 2), np.float32)])


def test_what_is_declined() -> None:
    half, single = (tensor(element_type(np.dtype(dtype)), [3]) for dtype in (np.float16, np.float32))
    assert ScatterND({"reduction": "none"}).declines([half], [half]) is None
    assert ScatterND({"reduction": "add"}).declines([single], [single]) is None
    assert "by add" in str(ScatterND({"reduction": "add"}).declines([half], [half]))
    assert "unknown" in str(ScatterND({"reduction": "sum"}).declines([single], [single]))
