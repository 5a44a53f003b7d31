"""Tests of what tells contents from each other."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from sardonyx.runtime.files.content_identity import InFile, OfDigest, content_identity
from sardonyx.runtime.files.opening import map_file, read_file
from sardonyx.runtime.memory.mapped_pages import release_pages, resident_bytes, root_of


def _file(path: Path, values: np.ndarray, *, age: float = 100.0) -> Path:
    path.write_bytes(values.tobytes())
    os.utime(path, (time.time() - age,) * 2)
    return path


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as unchanged for long: the time of the change of a file's own record cannot be set back."""
    monkeypatch.setattr("sardonyx.runtime.file_state.SETTLED_SECONDS", -3600.0)


def _array(view: memoryview, start: int = 0, shape: tuple[int, ...] = (4, 4)) -> np.ndarray:
    return np.frombuffer(view, np.float32, offset=start, count=shape[0] * shape[1]).reshape(shape)


VALUES = np.arange(32, dtype=np.float32)


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("opened", [map_file, read_file])
def test_a_place_in_a_file_is_the_same_wherever_it_is_opened(tmp_path: Path, opened) -> None:
    path = _file(tmp_path / "weights", VALUES)
    first, second = opened(path), opened(path)
    assert content_identity(_array(first)) == content_identity(_array(second))
    assert isinstance(content_identity(_array(first)), InFile)
    others = (_array(first, 64), _array(first, 0, (2, 8)), _array(first).T, _array(first).view(np.int32))
    for other in others:
        assert content_identity(other) != content_identity(_array(first))
    os.utime(path)
    assert content_identity(_array(opened(path))) != content_identity(_array(first))


@pytest.mark.parametrize("opened", [map_file, read_file])
def test_a_file_that_has_just_changed_is_told_by_its_contents(tmp_path: Path, opened) -> None:
    path = _file(tmp_path / "weights", VALUES)
    first = opened(path)
    identity = content_identity(_array(first))
    assert isinstance(identity, OfDigest)
    assert content_identity(_array(opened(path))) == identity
    path.write_bytes((VALUES + 1).tobytes())
    assert content_identity(_array(opened(path))) != identity


def test_arrays_are_told_by_their_contents_and_bytes_by_themselves() -> None:
    array = VALUES.reshape(4, 8).copy()
    identity = content_identity(array)
    assert content_identity(array.copy()) == identity
    array[0, 0] = 7
    assert content_identity(array) != identity
    given = VALUES.tobytes()
    same, equal = _array(memoryview(given)), _array(memoryview(bytearray(given)))
    assert content_identity(same) == content_identity(_array(memoryview(given)))
    assert hash(content_identity(same)) == hash(content_identity(_array(memoryview(given))))
    assert content_identity(same) != content_identity(equal)
    assert content_identity(same) != content_identity(_array(memoryview(bytes(bytearray(given)))))
    whole, other = (np.frombuffer(bytes(bytearray(given)), np.float32) for _ in range(2))
    assert content_identity(whole) == content_identity(other)


def test_what_has_the_memory_of_an_array(tmp_path: Path) -> None:
    path = _file(tmp_path / "weights", VALUES)
    mapped, read = map_file(path), read_file(path)
    assert root_of(_array(mapped)[1:]) is mapped.obj
    assert root_of(_array(read)[1:]) is read.obj
    own = VALUES.copy()
    assert root_of(own[3:].reshape(1, -1)) is own
    np.testing.assert_array_equal(np.frombuffer(read, np.float32), VALUES)
    assert read.readonly


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="Linux tells what is in memory")
def test_pages_of_mapped_files_that_are_in_memory(tmp_path: Path) -> None:
    path = _file(tmp_path / "large", np.ones(1 << 20, np.float32))
    mapped = map_file(path)
    array = np.frombuffer(mapped, np.float32)
    again = np.frombuffer(map_file(path), np.float32)  # the same file elsewhere
    start = array.__array_interface__["data"][0]
    whole = (start, start + array.nbytes)
    before = resident_bytes([whole])
    assert array.sum() == again.sum() == 1 << 20
    assert before <= resident_bytes([whole]) == array.nbytes
    assert resident_bytes([whole, (start + 5, start + 9), (start, start + 4096)]) == array.nbytes
    assert resident_bytes([(start + 5, start + 9), (start + 4090, start + 4100)]) == 14
    release_pages(array)
    assert resident_bytes([whole]) < 1 << 20
    assert resident_bytes([]) == 0
