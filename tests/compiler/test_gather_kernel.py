"""Gather, GatherElements and GatherND against NumPy, for every instruction set of this machine."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx import errors
from sardonyx.compiler.native.movement.gather import Gather, GatherElements, GatherND
from sardonyx.compiler.native.movement.slices import transposed
from tests.compiler.steps import VARIANTS, Memory, bind, new_binder, outputs_of

Array = np.ndarray[Any, Any]
DTYPES = [np.bool_, ml_dtypes.bfloat16, np.float32, np.int64, np.complex128]
INDEX_DTYPES = [np.int32, np.int64]


def numbers(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> Array:
    return rng.integers(0, 100, shape).astype(dtype)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize(
    ("shape", "axis", "index_shape"),
    [
        ((10,), 0, (4, 3)),
        ((10,), 0, ()),
        ((30, 768), 0, (2, 5)),
        ((7, 5), -1, (9,)),
        ((2, 9, 3), 1, (4,)),
        ((2, 9, 4), 1, (2, 2)),
        ((3, 9, 70), 1, (0,)),
        ((3, 4, 0), 1, (2,)),
        ((13, 6), 1, (5,)),
        ((2, 2, 5, 2), 2, (3, 2)),
        ((3000, 4), 1, (7,)),
        ((5, 9000), 1, (9000,)),
        ((3, 40_000), 0, (2,)),
        ((6000,), 0, (9000,)),
    ],
)
def test_gather(
    shape: tuple[int, ...], axis: int, index_shape: tuple[int, ...], index_dtype: Any, dtype: Any, variant: str
) -> None:
    rng = np.random.default_rng(5)
    data = numbers(rng, dtype, shape)
    size = shape[axis]
    indices = rng.integers(-size, size, index_shape).astype(index_dtype)
    (found,) = outputs_of(Gather({"axis": axis}), [data, indices], variant, one_by_one=True)
    np.testing.assert_array_equal(found, np.take(data, indices, axis))


@pytest.mark.parametrize(
    ("indices", "steps"), [([3], 0), ([1, 3, 5], 0), ([-1, -2], 0), ([4, 2, 0], 0), ([1, 1], 0), ([0, 1, 3], 1)]
)
def test_known_regular_indices_are_a_view(indices: list[int], steps: int) -> None:
    data = np.arange(42, dtype=np.float32).reshape(2, 7, 3)
    for places in (np.array(indices), np.array(indices[0])):
        binder, memory, (result,) = bind(Gather({"axis": 1}), [data, places], known=[1])
        assert result is not None
        assert len(binder.steps) == (steps if places.ndim else 0)
        memory.run(binder)
        np.testing.assert_array_equal(memory.read(result), np.take(data, places, 1))


@pytest.mark.parametrize(
    ("order", "axis", "copies"),
    [((1, 0, 2), 1, 0), ((1, 2, 0), 2, 0), ((0, 1, 2), 1, 0), ((1, 0, 2), 0, 1), ((0, 2, 1), 2, 1), ((2, 0, 1), 1, 1)],
)
def test_strided_data_is_copied_only_where_rows_are_torn(order: tuple[int, ...], axis: int, copies: int) -> None:
    base = np.arange(4 * 5 * 6, dtype=np.float32).reshape(4, 5, 6)
    indices = np.array([2, 0, -1])
    binder, memory = new_binder(), Memory()
    whole, places = binder.external(0, base.dtype, base.shape), binder.external(1, indices.dtype, indices.shape)
    memory.put(whole, base)
    memory.put(places, indices)
    (result,) = Gather({"axis": axis}).bind(binder, transposed(whole, order), places)
    assert not memory.run(binder)
    assert len(binder.steps) == 1 + copies
    np.testing.assert_array_equal(memory.read(result), np.take(base.transpose(order), indices, axis))


def test_known_indices_are_checked_while_binding() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"idx=7 must be within the inclusive range \[-7,6\]"):
        bind(Gather({"axis": 1}), [np.zeros((2, 7), np.float32), np.array([7])], known=[1])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("wrong", [-8, 7, 2**62, -(2**63)])
@pytest.mark.parametrize("shape", [(7, 1), (7, 300), (7,)])
def test_an_index_out_of_bounds_is_a_fault(shape: tuple[int, ...], wrong: int, variant: str) -> None:
    data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    binder, memory, _ = bind(Gather({"axis": 0}), [data, np.array([1, wrong, 2])], variant)
    assert memory.run(binder) == [
        f"indices element out of data bounds, idx={wrong} must be within the inclusive range [-7,6] on axis 0"
    ]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(8))
def test_short_rows_under_many_outer_places(seed: int, variant: str) -> None:
    rng = np.random.default_rng(seed)
    outer, size, count, inner = (int(rng.integers(1, most)) for most in (60, 20, 30, 4))
    data = rng.standard_normal((outer, size, inner)).astype(rng.choice([np.float16, np.float32, np.float64]))
    data[rng.random(data.shape) < 0.2] = np.nan
    indices = rng.integers(-size, size, count)
    for known in ([], [1]):
        binder, memory, (result,) = bind(Gather({"axis": 1}), [data, indices], variant, known=known)
        assert not memory.run(binder, one_by_one=True)
        assert result is not None
        np.testing.assert_array_equal(memory.read(result), np.take(data, indices, 1))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("wrong", [-8, 7, 2**62])
def test_a_wrong_index_of_short_rows_leaves_the_others(wrong: int, variant: str) -> None:
    data = np.arange(63, dtype=np.float32).reshape(9, 7)
    binder, memory, (result,) = bind(Gather({"axis": 1}), [data, np.array([1, wrong, -7])], variant)
    assert memory.run(binder) == [
        f"indices element out of data bounds, idx={wrong} must be within the inclusive range [-7,6] on axis 1"
    ]
    assert result is not None
    np.testing.assert_array_equal(memory.read(result)[:, [0, 2]], data[:, [1, 0]])


def test_nothing_can_be_gathered_from_nothing() -> None:
    binder, memory, _ = bind(Gather({"axis": 0}), [np.zeros((0, 3), np.float32), np.array([0, 0])])
    assert len(memory.run(binder)) == 1


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize(
    ("shape", "axis", "index_shape"),
    [
        ((10,), 0, (4,)),
        ((5, 7), 0, (3, 7)),
        ((5, 7), 1, (5, 20)),
        ((4, 5, 6), 1, (2, 9, 3)),
        ((4, 5, 6), -1, (4, 0, 6)),
        ((70, 80), 0, (90, 80)),
    ],
)
def test_gather_elements(
    shape: tuple[int, ...], axis: int, index_shape: tuple[int, ...], index_dtype: Any, dtype: Any, variant: str
) -> None:
    rng = np.random.default_rng(6)
    data = numbers(rng, dtype, shape)
    indices = rng.integers(-shape[axis], shape[axis], index_shape).astype(index_dtype)
    (found,) = outputs_of(GatherElements({"axis": axis}), [data, indices], variant, one_by_one=True)
    grid = list(np.ogrid[tuple(slice(size) for size in index_shape)])
    grid[axis] = indices
    np.testing.assert_array_equal(found, data[tuple(grid)])


def test_gather_elements_faults() -> None:
    kernel, data = GatherElements({"axis": 1}), np.zeros((2, 3), np.float32)
    binder, memory, _ = bind(kernel, [data, np.array([[0, 3], [1, 2]])])
    assert memory.run(binder) == [
        "indices element out of data bounds, idx=3 must be within the inclusive range [-3,2] on axis 1"
    ]
    with pytest.raises(ValueError, match="more than the data's 2"):
        bind(kernel, [data, np.zeros((3, 1), np.int64)])
    with pytest.raises(ValueError, match="2 dimensions and indices have 1"):
        bind(kernel, [data, np.zeros(3, np.int64)])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "batch", "index_shape"),
    [
        ((5, 6), 0, (4, 2)),
        ((5, 6), 0, (2, 3, 1)),
        ((5, 6, 40), 0, (7, 2)),
        ((3, 5, 6), 1, (3, 4, 1)),
        ((3, 5, 6), 1, (3, 4, 2)),
        ((2, 3, 5, 6), 2, (2, 3, 1)),
        ((2, 3), 0, (4, 0)),
        ((2, 3), 1, (2, 3, 0)),
        ((2, 3), 0, (0, 2)),
        ((3000, 2), 0, (5000, 2)),
    ],
)
def test_gather_nd(shape: tuple[int, ...], batch: int, index_shape: tuple[int, ...], dtype: Any, variant: str) -> None:
    rng = np.random.default_rng(7)
    data, depth = numbers(rng, dtype, shape), index_shape[-1]
    bounds = np.array(shape[batch : batch + depth], np.int64)
    indices = rng.integers(-bounds, bounds, index_shape)
    (found,) = outputs_of(GatherND({"batch_dims": batch}), [data, indices], variant, one_by_one=True)
    expected = np.empty((*index_shape[:-1], *shape[batch + depth :]), dtype)
    for place in np.ndindex(index_shape[:-1]):
        expected[place] = data[place[:batch]][tuple(indices[place])]
    np.testing.assert_array_equal(found, expected)


def test_gather_nd_faults_name_the_axis() -> None:
    data = np.zeros((2, 3, 4), np.float32)
    binder, memory, _ = bind(GatherND({"batch_dims": 0}), [data, np.array([[0, 2], [1, -4]])])
    assert memory.run(binder) == [
        "indices element out of data bounds, idx=-4 must be within the inclusive range [-3,2] on axis 1"
    ]
    with pytest.raises(ValueError, match="address 4 axes"):
        bind(GatherND({"batch_dims": 1}), [data, np.zeros((2, 3), np.int64)])
    with pytest.raises(ValueError, match="must be equal"):
        bind(GatherND({"batch_dims": 1}), [data, np.zeros((3, 1), np.int64)])
