"""Concat: copies into slices, parts that are computed in their place, and the barriers around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.binding import Bound
from sardonyx.compiler.native.movement.concat import Concat
from sardonyx.compiler.native.movement.copy import copy, copy_into
from sardonyx.compiler.native.movement.slices import part_of, transposed
from tests.compiler.steps import VARIANTS, Memory, new_binder, run_plan

F32 = np.dtype(np.float32)


def barriers(bound: Bound) -> list[bool]:
    return [bool(flags & 1) for flags in bound.plan.steps[:, 4]]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.int64])
@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize(
    ("axis", "shapes"),
    [
        (0, [(2, 3), (1, 3), (0, 3)]),
        (1, [(2, 3), (2, 65), (2, 1)]),
        (-1, [(5, 7, 1), (5, 7, 4)]),
        (2, [(1, 12, 100, 64), (1, 12, 1, 64)]),
        (1, [(1, 3, 4, 4)] * 5),
        (1, [(37, 1)] * 8),
        (-1, [(3, 70, 1)] * 3),
        (1, [(300, 2)] * 5),
        (1, [(9, 1, 2)] * 2),
        (1, [(20_000, 1)] * 3),
        (1, [(20_000, 1)] * 4),
        (1, [(20_000, 1)] * 7),
        (1, [(50, 1)] * 9),
    ],
)
def test_concat(axis: int, shapes: list[tuple[int, ...]], one_by_one: bool, dtype: Any, variant: str) -> None:
    binder, memory, rng = new_binder(variant), Memory(), np.random.default_rng(3)
    arrays = [rng.integers(0, 100, shape).astype(dtype) for shape in shapes]
    tensors = [binder.external(index, array.dtype, array.shape) for index, array in enumerate(arrays)]
    for tensor, array in zip(tensors, arrays, strict=True):
        memory.put(tensor, array)
    (result,) = Concat({"axis": axis}).bind(binder, *tensors)
    memory.run(binder, one_by_one=one_by_one)
    np.testing.assert_array_equal(memory.read(result), np.concatenate(arrays, axis))


def test_parts_are_computed_in_their_place() -> None:
    """Two copies stand for producers; nothing is copied for the concatenation itself."""
    binder = new_binder()
    x = binder.external(0, F32, (1, 4, 512))
    y = binder.external(1, F32, (1, 2, 512))
    parts = [copy(binder, x), copy(binder, y)]
    (result,) = Concat({"axis": 1}).bind(binder, *parts)
    assert len(binder.steps) == 2
    (again,) = Concat({"axis": 0}).bind(binder, result, result)
    assert len(binder.steps) == 3  # the second of the same value is a copy
    bound = binder.finish([again], 2, copy)
    rng = np.random.default_rng(1)
    a, b = rng.random((1, 4, 512), np.float32), rng.random((1, 2, 512), np.float32)
    (found,) = run_plan(bound, [a, b])
    joined = np.concatenate([a, b], 1)
    np.testing.assert_array_equal(found, np.concatenate([joined, joined]))
    assert barriers(bound) == [False, False, False]  # each step has one chunk: they run in order on one thread


def test_small_parts_are_copied() -> None:
    binder = new_binder()
    x = binder.external(0, F32, (1, 4, 16))
    Concat({"axis": 1}).bind(binder, copy(binder, x), copy(binder, x))
    assert len(binder.steps) == 4


def test_an_output_that_is_a_part_is_copied() -> None:
    binder = new_binder()
    x = binder.external(0, F32, (4, 16))
    part = copy(binder, x)
    (result,) = Concat({"axis": 0}).bind(binder, part, copy(binder, x))
    bound = binder.finish([part, result], 1, copy)
    a = np.random.default_rng(1).random((4, 16), np.float32)
    found = run_plan(bound, [a])
    np.testing.assert_array_equal(found[0], a)
    np.testing.assert_array_equal(found[1], np.concatenate([a, a]))


def test_parts_off_the_alignment_are_copied() -> None:
    binder = new_binder()
    x = binder.external(0, F32, (3, 501))
    Concat({"axis": 0}).bind(binder, copy(binder, x), copy(binder, x))
    assert len(binder.steps) == 3


@pytest.mark.parametrize(
    ("shape", "count", "axis", "steps"), [((90, 1), 8, 1, 1), ((90, 1), 9, 1, 9), ((1, 4), 3, 0, 3)]
)
def test_columns_of_single_elements_are_one_step(shape: tuple[int, ...], count: int, axis: int, steps: int) -> None:
    binder = new_binder()
    Concat({"axis": axis}).bind(binder, *[binder.external(index, F32, shape) for index in range(count)])
    assert len(binder.steps) == steps


def test_parts_wait_for_each_other_only_where_they_must() -> None:
    binder = new_binder()
    x = binder.external(0, F32, (2, 40_000))
    y = binder.external(1, F32, (2, 50_000))
    (result,) = Concat({"axis": 1}).bind(binder, x, y)
    assert [step.chunks > 1 for step in binder.steps] == [True, True]
    turned = copy(binder, result.reshaped((90_000, 2), (1, 90_000)))
    bound = binder.finish([turned], 2, copy)
    assert barriers(bound) == [False, False, True]
    rng = np.random.default_rng(1)
    a, b = rng.random((2, 40_000), np.float32), rng.random((2, 50_000), np.float32)
    np.testing.assert_array_equal(run_plan(bound, [a, b])[0], np.concatenate([a, b], 1).T)


def test_different_shapes_are_refused() -> None:
    binder = new_binder()
    with pytest.raises(ValueError, match="except on axis 1"):
        Concat({"axis": 1}).bind(binder, binder.new(F32, (2, 3)), binder.new(F32, (3, 3)))


def test_faults_are_notes_behind_the_outputs() -> None:
    binder = new_binder()
    x = binder.external(0, F32, (3,))
    binder.origin = "a node"
    binder.fault(lambda number: ValueError(f"{number} is bad"))
    bound = binder.finish([copy(binder, x)], 1, copy)
    assert bound.faults[0].origin == "a node"
    assert str(bound.faults[0].describe(7)) == "7 is bad"
    assert bound.plan.base_count == 4
    _, notes = run_plan(bound, [np.ones(3, np.float32)])
    assert notes.tolist() == [0, 0]


@pytest.mark.parametrize("axis", [1, 2])
def test_parts_with_channels_last_stay_so(axis: int) -> None:
    binder, memory, rng = new_binder(), Memory(), np.random.default_rng(5)
    shapes = [(2, 6, 3, 5), (2, 4, 3, 5)] if axis == 1 else [(2, 6, 3, 5), (2, 6, 1, 5)]
    arrays = [rng.random(shape, np.float32) for shape in shapes]
    tensors = []
    for index, array in enumerate(arrays):
        last = binder.external(index, F32, array.transpose(0, 2, 3, 1).shape)
        memory.put(last, array.transpose(0, 2, 3, 1))
        tensors.append(transposed(last, (0, 3, 1, 2)))
    (result,) = Concat({"axis": axis}).bind(binder, *tensors)
    assert result.strides[1] == 1
    memory.run(binder)
    np.testing.assert_array_equal(memory.read(result), np.concatenate(arrays, axis))


def test_what_a_part_is_made_of_is_waited_for() -> None:
    """Steps that were put together for they write to different places, some of which make what others read: the second
    copy lies where the first one was."""
    binder = new_binder()
    given = [binder.external(index, F32, (40_000, 2)) for index in range(2)]
    result = binder.new(F32, (2, 2, 40_000))
    with binder.together():
        for index, x in enumerate(given):
            turned = copy(binder, x.reshaped((2, 40_000), (1, 2)))
            copy_into(binder, turned, part_of(result, 0, index, 1).reshaped((2, 40_000), (40_000, 1)))
    assert all(step.chunks > 1 for step in binder.steps)
    bound = binder.finish([result], 2, copy)
    assert barriers(bound) == [False, True, True, True]
    a, b = np.random.default_rng(1).random((2, 40_000, 2), np.float32)
    for _ in range(20):
        np.testing.assert_array_equal(run_plan(bound, [a, b], 2)[0], np.stack([a.T, b.T]))
