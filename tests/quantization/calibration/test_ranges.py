"""Ranges as values: the mapping that callers use, their form in JSON, and the files of TensorRT."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime.quantization.calibrate as known_tool
import pytest
from onnxruntime.quantization.CalTableFlatBuffers.TrtTable import TrtTable

from sardonyx import errors
from sardonyx.quantization import write_calibration_table
from sardonyx.quantization.calibrate import (
    CalibrationMethod,
    TensorData,
    TensorsData,
    load_tensors_data,
    save_tensors_data,
)

F = np.float32


def data():
    return TensorsData(
        CalibrationMethod.MinMax,
        {
            "a": TensorData(lowest=np.array([-1.5], F), highest=np.array([0.1], F)),
            "half": TensorData(lowest=np.float16(0.1), highest=np.float16(2)),
            "b": (F(0), F(6.5)),
            "h": TensorData(lowest=F(-1), highest=F(1), hist=np.array([1, 2**40]), bins=np.array([-1, 0, 1], F)),
            "d": TensorData(avg=np.array(0.3, F), std=np.array(1.7, F)),
        },
    )


def test_the_mapping():
    ranges = data()
    assert list(ranges) == list(ranges.keys()) == ["a", "half", "b", "h", "d"]
    assert len(ranges) == 5
    assert "a" in ranges
    assert "z" not in ranges
    assert ranges["b"].range_value == (F(0), F(6.5))
    assert ranges.get("z") is None
    assert dict(ranges.items())["b"] is ranges["b"] is list(ranges.values())[2]
    assert ranges["d"].avg_std == (F(0.3), F(1.7))
    ranges["a"] = TensorData(lowest=F(-2), highest=F(2))
    ranges["b"] = (F(-1), F(3))
    assert ranges["a"].range_value == (F(-2), F(2))
    assert ranges["b"].range_value == (F(-1), F(3))


def test_what_is_no_data():
    ranges = data()
    with pytest.raises(RuntimeError, match="'z' is not"):
        ranges["z"] = TensorData(lowest=F(0), highest=F(1))
    with pytest.raises(KeyError):
        ranges["z"]
    with pytest.raises(TypeError, match="must be strings, not int"):
        TensorsData(CalibrationMethod.MinMax, {1: (F(0), F(1))})
    for method, value in ((CalibrationMethod.MinMax, 5), (CalibrationMethod.Entropy, (F(0), F(1)))):
        with pytest.raises(TypeError, match="The data of a must be a TensorData"):
            TensorsData(method, {"a": value})
    for values, said in (
        ({"foo": 1}, "no 'foo': the names are avg"),
        ({"lowest": 1.0}, "not float"),
        ({"lowest": np.float64(1)}, "not float64"),
    ):
        with pytest.raises(ValueError, match=said):
            TensorData(**values)
    with pytest.raises(AttributeError, match="lack highest: they hold lowest"):
        _ = TensorData(lowest=F(0)).range_value
    with pytest.raises(AttributeError, match="lack avg and std"):
        _ = TensorData(lowest=F(0)).avg_std


def same(one, other):
    assert list(one) == list(other)
    for name in one:
        left, right = one[name].to_dict(), other[name].to_dict()
        assert left.keys() == right.keys()
        for key in left.keys() - {"CLS"}:
            np.testing.assert_array_equal(left[key], right[key])
            if key in ("hist", "bins") or left[key].ndim:
                assert left[key].dtype == right[key].dtype


def test_saved_ranges_come_back_and_can_be_edited(tmp_path):
    path = tmp_path / "new" / "folder" / "ranges.json"
    save_tensors_data(data(), path)
    found = load_tensors_data(path)
    assert found.calibration_method is CalibrationMethod.MinMax
    wanted = data()
    wanted["half"] = TensorData(lowest=F(np.float16(0.1)), highest=F(2))  # plain numbers come back as float32
    same(found, wanted)
    content = json.loads(path.read_text())
    content["data"]["b"]["highest"] = 4.0
    path.write_text(json.dumps(content))
    assert load_tensors_data(path)["b"].range_value == (F(0), F(4))
    assert list(path.parent.iterdir()) == [path]


def test_files_are_those_of_the_known_tool(tmp_path):
    ours, theirs = tmp_path / "ours.json", tmp_path / "theirs.json"
    values = {"a": (np.array([-1.5], F), np.array([0.1], F)), "b": (F(0), F(6.5))}
    for smooth in (False, True):
        save_tensors_data(TensorsData(CalibrationMethod.MinMax, values), ours, smooth_quant=smooth)
        known = known_tool.TensorsData(known_tool.CalibrationMethod.MinMax, values)
        known_tool.save_tensors_data(known, theirs, smooth_quant=smooth)
        assert json.loads(ours.read_text()) == json.loads(theirs.read_text())
    same(load_tensors_data(theirs), TensorsData(CalibrationMethod.MinMax, values))
    assert known_tool.load_tensors_data(ours)["b"].range_value == (F(0), F(6.5))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"data": 5, "calibration_method": 1}', '{"data": {"a": {"z": 1}}}', "\x00\xff"]
)
def test_files_of_something_else(tmp_path, text):
    path = tmp_path / "ranges.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(errors.InvalidArgument, match=r"ranges.json holds no ranges of tensors") as caught:
        load_tensors_data(path)
    assert isinstance(caught.value, ValueError)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(errors.NoSuchFile, match=r"no file of ranges at .*none.json") as caught:
        load_tensors_data(tmp_path / "none.json")
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(errors.InvalidArgument, match="cannot be read"):
        load_tensors_data(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(errors.Fail, match="Saving the ranges"):
        save_tensors_data(data(), tmp_path / "file" / "ranges.json")


def test_tables_of_tensorrt(tmp_path):
    ranges = {
        "a": (F(-1.5), F(1)),
        "longer name": TensorData(lowest=np.array([0, -3], F), highest=np.array([0.1, 2], F)),
    }
    write_calibration_table(ranges, tmp_path / "tables")
    assert (tmp_path / "tables" / "calibration.cache").read_text() == "a 1.5\nlonger name 3.0\n"
    table = TrtTable.GetRootAs((tmp_path / "tables" / "calibration.flatbuffers").read_bytes(), 0)
    entries = [table.Dict(index) for index in range(table.DictLength())]
    assert {one.Key(): one.Value() for one in entries} == {b"a": b"1.5", b"longer name": b"3.0"}
    whole = TensorsData(CalibrationMethod.MinMax, ranges)
    write_calibration_table(whole, str(tmp_path))
    same(load_tensors_data(tmp_path / "calibration.json"), whole)
    with pytest.raises(errors.InvalidArgument, match="The range of 'a' is no pair of numbers"):
        write_calibration_table({"a": 5}, tmp_path)
    with pytest.raises(errors.Fail, match="Writing the ranges"):
        write_calibration_table(ranges, tmp_path / "calibration.json")
