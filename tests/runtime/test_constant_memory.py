"""Memory of constants: aligned, apart from each other, and gone with the last of them."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

from sardonyx.runtime.memory.constant_memory import LEAST, MOST, PIECE, constant_empty, passing, passing_empty

F32 = np.dtype(np.float32)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("nbytes", [4, LEAST - 4, LEAST, LEAST + 4, 1 << 20, MOST - 4, MOST, MOST + 4, PIECE + 4])
def test_arrays_are_aligned_and_of_their_size(nbytes: int) -> None:
    array = constant_empty(nbytes // 4, F32)
    assert (array.nbytes, array.dtype, array.flags.writeable) == (nbytes, F32, True)
    assert address(array) % 128 == 0


def test_an_array_may_be_empty() -> None:
    assert constant_empty(0, F32).shape == (0,)


def test_arrays_lie_apart() -> None:
    rng = np.random.default_rng(0)
    sizes = [*rng.integers(LEAST // 4, MOST // 16, 60).tolist(), MOST // 4 - 1, MOST // 4 - 1, LEAST // 4]
    arrays = [constant_empty(size, F32) for size in sizes]
    for number, array in enumerate(arrays):
        array[...] = number
    for number, array in enumerate(arrays):
        assert (array == number).all()
    assert len({id(array.base) for array in arrays}) < len(arrays) // 4


def test_a_piece_goes_with_its_last_array() -> None:
    first, second = constant_empty(LEAST, F32), constant_empty(LEAST, F32)
    piece = weakref.ref(first.base)
    assert piece() is not None
    del second
    del first
    assert piece() is None
    again = constant_empty(LEAST, F32)
    again[...] = 3
    assert (again == 3).all()


def test_threads_cut_pieces_of_their_own() -> None:
    mine = constant_empty(LEAST, F32)
    found: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: found.append(constant_empty(LEAST, F32)))
    thread.start()
    thread.join()
    assert found[0].base is not mine.base


def test_passing_memory_serves_again_when_it_is_free() -> None:
    with passing():
        first = passing_empty((LEAST, 2), F32)
        place, view = address(first), first[1:]
        second = passing_empty((LEAST, 2), F32)
        assert (first.shape, first.dtype, first.flags.writeable) == ((LEAST, 2), F32, True)
        assert address(second) != place
        del first
        assert address(passing_empty((LEAST,), F32)) != place  # somebody looks at a part of it
        del view
        third = passing_empty((LEAST,), F32)
        assert address(third) == place
        assert third.shape == (LEAST,)
        larger = passing_empty((LEAST, 3), F32)
        larger[...], third[...] = 1, 2
        assert (larger == 1).all()
    outside = passing_empty((LEAST, 3), F32)
    outside[...] = 4
    assert (larger == 1).all()
    assert (third == 2).all()
    del third, larger
    assert (outside == 4).all()


def test_passing_memory_of_few_bytes() -> None:
    with passing():
        for shape in [(0,), (3, 0), (), (5,)]:
            array = passing_empty(shape, F32)
            array[...] = 1
            assert array.shape == shape


def test_passing_memory_goes_back_from_other_threads() -> None:
    with passing():
        held = [passing_empty((LEAST,), F32)]
        place = address(held[0])
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        assert address(passing_empty((LEAST,), F32)) == place
