"""Readers of folders, iterators and data sets, and the protocol that callers implement."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx import errors
from sardonyx.quantization.calibrate import (
    CalibrationDataReader,
    DatasetReader,
    IterableReader,
    NpzFolderReader,
    create_calibrator,
)
from tests.quantization.calibration.models import Feeds, samples, save_convolution


def all_of(reader):
    return list(iter(reader.get_next, None))


def test_the_protocol():
    class Plain:
        def get_next(self):
            return None

    assert issubclass(Plain, CalibrationDataReader)
    assert isinstance(Plain(), CalibrationDataReader)
    assert not isinstance([], CalibrationDataReader)
    with pytest.raises(TypeError):
        CalibrationDataReader()
    reader = Feeds([{"x": 1}, {"x": 2}])
    assert iter(reader) is reader
    assert (next(reader), next(reader), next(reader, None)) == ({"x": 1}, {"x": 2}, None)
    with pytest.raises(NotImplementedError):
        len(reader)
    with pytest.raises(NotImplementedError):
        reader.set_range(0, 1)


def test_any_source_calibrates(tmp_path):
    path, feeds = save_convolution(tmp_path / "m.onnx"), samples(3)
    for index, feed in enumerate(feeds):
        np.savez(tmp_path / f"{index}.npz", **feed)

    class Plain:
        def __init__(self):
            self.get_next = iter([*feeds, None]).__next__

    found = []
    for source in (feeds, (feed for feed in feeds), Feeds(feeds), Plain(), NpzFolderReader(tmp_path)):
        calibrator = create_calibrator(path, None, str(tmp_path / "a.onnx"))
        calibrator.collect_data(source)
        found.append({name: one.range_value for name, one in calibrator.compute_data().items()})
    assert all(one == found[0] for one in found)


def test_values_may_be_lists(tmp_path):
    calibrator = create_calibrator(save_convolution(tmp_path / "m.onnx"), None, str(tmp_path / "a.onnx"))
    (feed,) = samples(1)
    calibrator.collect_data([{"x": feed["x"].tolist()}])
    assert calibrator.compute_data()["x"].range_value == (feed["x"].min(), feed["x"].max())


def test_folders_of_npz_files(tmp_path):
    for index in range(5):
        np.savez(tmp_path / f"s{index}.npz", x=np.full(2, index), y=np.int64(index))
    (tmp_path / "notes.txt").write_text("not a sample")
    reader = NpzFolderReader(tmp_path)
    assert len(reader) == 5
    assert [int(one["y"]) for one in all_of(reader)] == [0, 1, 2, 3, 4]
    reader.rewind()
    assert len(all_of(reader)) == 5
    reader.set_range(1, 3)
    assert [one["x"].tolist() for one in all_of(reader)] == [[1, 1], [2, 2]]
    reader.set_range(4, 9)
    assert len(all_of(reader)) == 1
    assert len(all_of(NpzFolderReader(tmp_path, limit=2))) == 2
    with pytest.raises(errors.InvalidArgument, match="give 0 <= start <= end"):
        reader.set_range(3, 1)
    (tmp_path / "s9.npz").write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(errors.InvalidArgument, match=r"s9.npz is no file of arrays"):
        all_of(NpzFolderReader(tmp_path))
    np.savez(tmp_path / "s9.npz", x=np.array([object()], object))
    with pytest.raises(errors.InvalidArgument, match=r"s9.npz is no file of arrays"):
        all_of(NpzFolderReader(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.InvalidArgument, match=r"empty holds no .npz files: write each"):
        NpzFolderReader(tmp_path / "empty")


def test_iterables():
    numbers = range(5)
    reader = IterableReader(numbers, transform=lambda number: {"x": number}, limit=3)
    assert len(reader) == 3
    assert all_of(reader) == [{"x": 0}, {"x": 1}, {"x": 2}]
    assert all_of(IterableReader({"x": number} for number in numbers)) == [{"x": number} for number in numbers]
    with pytest.raises(TypeError):
        len(IterableReader(iter([])))


class Rows:
    """The two methods of a data set that a reader needs."""

    column_names = ["ids", "mask", "text"]

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError
        return {"ids": [index, index + 1], "mask": [1, 1], "text": f"row {index}"}


def test_rows_of_a_data_set():
    reader = DatasetReader(Rows(5), columns=["ids", "mask"], batch_size=2)
    assert len(reader) == 3
    found = all_of(reader)
    assert [one["ids"].tolist() for one in found] == [[[0, 1], [1, 2]], [[2, 3], [3, 4]], [[4, 5]]]
    assert all(set(one) == {"ids", "mask"} for one in found)
    renamed = DatasetReader(Rows(2), columns={"ids": "input_ids"}, limit=1)
    assert [one["input_ids"].tolist() for one in all_of(renamed)] == [[[0, 1]]]
    lengths = DatasetReader(Rows(2), transform=lambda row: {"n": np.float32(len(row["text"]))})
    assert [one["n"].tolist() for one in all_of(lengths)] == [[5.0], [5.0]]
    reader.set_range(2, 3)
    assert len(all_of(reader)) == 1


def test_rows_that_do_not_fit():
    with pytest.raises(errors.InvalidArgument, match="Row 0 of the data set has no label: it has ids, mask, text"):
        all_of(DatasetReader(Rows(2), columns=["label"]))
    ragged = DatasetReader(Rows(2), batch_size=2, transform=lambda row: {"x": [0] * (1 + row["ids"][0])})
    with pytest.raises(errors.InvalidArgument, match="rows 0 to 1 of the data set cannot be stacked"):
        all_of(ragged)
    with pytest.raises(errors.InvalidArgument, match="batch_size is 0"):
        DatasetReader(Rows(2), batch_size=0)


def test_data_sets_of_the_package_itself():
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"ids": [[1, 2], [3, 4], [5, 6]], "text": ["a", "b", "c"]})
    found = all_of(DatasetReader(rows, columns=["ids"], batch_size=2))
    assert [one["ids"].tolist() for one in found] == [[[1, 2], [3, 4]], [[5, 6]]]


def test_without_the_package_a_name_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(errors.InvalidArgument, match=r"needs the package datasets: pip install sardonyx\[datasets\]"):
        DatasetReader("some/name")
