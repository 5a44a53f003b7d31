"""Copies of strided values against NumPy, for every instruction set of this machine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.binding import Binder, Buffer, Tensor
from sardonyx.compiler.native.movement.copy import contiguous, copy, copy_into
from tests.compiler.steps import POISON, VARIANTS, Memory, new_binder

DTYPES = [np.uint8, np.int16, np.float32, np.float64, np.complex128]
Array = np.ndarray[Any, Any]


def strided(dtype: Any, base: tuple[int, ...], index: Any, order: tuple[int, ...] | None = None) -> Tensor:
    """The value that `base[index].transpose(order)` is, over a buffer that holds all of `base`."""
    model = np.empty(base, dtype)
    view = model[index] if base else model
    view = view if order is None else view.transpose(order)
    item = np.dtype(dtype).itemsize
    offset = view.__array_interface__["data"][0] - model.__array_interface__["data"][0]
    buffer = Buffer(math.prod(base) * item)
    return Tensor(np.dtype(dtype), view.shape, tuple(stride // item for stride in view.strides), buffer, offset)


def check(source: Tensor, variant: str, destination: Tensor | None = None, *, one_by_one: bool = False) -> Binder:
    binder, memory, rng = new_binder(variant), Memory(), np.random.default_rng(7)
    room = memory.place(source.buffer)
    room[...] = rng.integers(1, 120, room.size, np.uint8)
    expected = memory.read(source).copy()
    if destination is None:
        result = copy(binder, source)
        assert result.is_contiguous
    else:
        result = destination
        copy_into(binder, source, destination)
        holes = np.ones(destination.buffer.nbytes, bool)
        item = destination.dtype.itemsize
        shadow = np.ndarray(
            (*destination.shape, item), bool, holes, destination.offset, (*(s * item for s in destination.strides), 1)
        )
        shadow[...] = False
    memory.run(binder, one_by_one=one_by_one)
    np.testing.assert_array_equal(memory.read(result), expected)
    if destination is not None:
        assert (memory.place(destination.buffer)[holes] == POISON).all(), "the copy wrote between the elements"
    return binder


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("base", "index", "order"),
    [
        ((), (), None),
        ((0, 3), np.s_[:], None),
        ((1, 1), np.s_[:], None),
        ((3, 5, 7), np.s_[:], None),
        ((50_000,), np.s_[:], None),
        ((40, 700), np.s_[:, :650], None),
        ((3, 9000), np.s_[:, 5:8900], None),
        ((33, 10), np.s_[::2, 1:9], None),
        ((33, 10), np.s_[:, ::3], None),
        ((33, 10), np.s_[::-1, ::-1], None),
        ((100,), np.s_[::-1], None),
        ((100,), np.s_[90:3:-4], None),
        ((37, 65), np.s_[:], (1, 0)),
        ((130, 70), np.s_[:], (1, 0)),
        ((1024, 1200), np.s_[:], (1, 0)),
        ((1100, 1), np.s_[:], (1, 0)),
        ((70, 37, 2), np.s_[:], (2, 0, 1)),
        ((5, 37, 3), np.s_[:], (0, 2, 1)),
        ((5, 37, 4), np.s_[:], (2, 0, 1)),
        ((2, 300, 5), np.s_[:], (2, 1, 0)),
        ((3, 40, 5), np.s_[:], (1, 2, 0)),
        ((4, 300), np.s_[:], (1, 0)),
        ((9, 133), np.s_[:, 132:1:-1], None),
        ((9, 133), np.s_[:, 1::2], None),
        ((9, 133), np.s_[:, ::4], None),
        ((9, 133), np.s_[:, 2::7], None),
        ((300, 5), np.s_[:, 4], None),
        ((300, 8), np.s_[:, 3], None),
        ((8, 300), np.s_[:, 1::8], None),
        ((16, 16), np.s_[:], (1, 0)),
        ((19, 3), np.s_[:], (1, 0)),
        ((3, 19), np.s_[:], (1, 0)),
        ((2, 21, 4, 16), np.s_[:], (0, 2, 1, 3)),
        ((2, 21, 4, 16), np.s_[:], (0, 2, 3, 1)),
        ((2, 21, 4, 17), np.s_[:], (0, 2, 3, 1)),
        ((2, 3, 4, 5), np.s_[:], (3, 2, 1, 0)),
        ((2, 3, 4, 5, 2, 3), np.s_[:, ::-1, 1:, ::2], (4, 0, 5, 2, 1, 3)),
        ((6, 40, 34), np.s_[1:5, 2:39, 3:31], (2, 0, 1)),
        ((6, 40, 34), np.s_[::-1, ::-1, ::-1], (0, 2, 1)),
        ((5, 2, 3, 2), np.s_[1:4], (2, 0, 1, 3)),
    ],
)
def test_copy(dtype: Any, base: tuple[int, ...], index: Any, order: tuple[int, ...] | None, variant: str) -> None:
    check(strided(dtype, base, index, order), variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(300,), (7, 3), (5, 1, 9), (1, 66), (3, 40_000), (4, 5, 6, 3)])
def test_broadcast_strides(shape: tuple[int, ...], dtype: Any, variant: str) -> None:
    item = np.dtype(dtype).itemsize
    for kept in range(1 << len(shape)):
        strides = tuple(1 if kept >> axis & 1 else 0 for axis in range(len(shape)))
        source = Tensor(np.dtype(dtype), shape, strides, Buffer(item * (1 + sum(shape))))
        check(source, variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_random_layouts(variant: str) -> None:
    rng = np.random.default_rng(11)
    for trial in range(150):
        dtype = DTYPES[rng.integers(len(DTYPES))]
        ends = []
        rank = int(rng.integers(1, 5))
        shape = [int(size) for size in rng.choice([0, 1, 2, 3, 4, 5, 8, 16, 17, 31, 33], rank)]
        while math.prod(shape) > 40_000:
            shape[int(rng.integers(rank))] = 2
        for _ in range(2):
            order = tuple(int(axis) for axis in rng.permutation(rank))
            base, index = [], []
            for axis in np.argsort(order):
                step = int(rng.choice([1, 1, 1, 2, -1, 3]))
                before, room = int(rng.integers(0, 3)), max(1, shape[axis]) * abs(step)
                base.append(before + room)
                if step > 0:
                    index.append(slice(before, before + shape[axis] * step, step))
                else:
                    last = before + room - 1
                    index.append(slice(last, last - shape[axis] if shape[axis] <= last else None, step))
            inner = np.argsort(order)
            assert [shape[axis] for axis in inner] == [
                len(range(*one.indices(size))) for one, size in zip(index, base, strict=True)
            ]
            ends.append(strided(dtype, tuple(base), tuple(index), order))
        assert ends[0].shape == tuple(shape)
        check(ends[0], variant, ends[1], one_by_one=bool(trial % 2))


def test_chunks_in_any_order() -> None:
    for index, order in [(np.s_[:], (1, 0)), (np.s_[:, :700], None), (np.s_[:, ::2], None), (np.s_[:], None)]:
        binder = check(strided(np.float32, (600, 701), index, order), "", one_by_one=True)
        assert binder.steps[0].chunks > 1


def test_a_contiguous_value_is_left_alone() -> None:
    binder = new_binder()
    tensor = binder.new(np.dtype(np.float32), (3, 4))
    assert contiguous(binder, tensor) is tensor
    assert contiguous(binder, tensor.reshaped((4, 3), (1, 4))) is not tensor
    assert len(binder.steps) == 1


def test_different_shapes_are_refused() -> None:
    binder = new_binder()
    one, other = binder.new(np.dtype(np.float32), (3, 4)), binder.new(np.dtype(np.float32), (4, 3))
    with pytest.raises(ValueError, match="cannot be copied onto"):
        copy_into(binder, one, other)


def test_nothing_is_copied_of_no_elements() -> None:
    binder = new_binder()
    copy(binder, binder.new(np.dtype(np.float32), (3, 0)))
    assert not binder.steps
