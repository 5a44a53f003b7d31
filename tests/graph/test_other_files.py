"""Errors for files that are no models, and for names that no file has."""

from __future__ import annotations

import io
import os
import pickle
import traceback
import zipfile
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

import sardonyx as ort
from sardonyx import errors
from sardonyx.graph.load import load_model
from tests.graph.models import adding


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.ones(3))
    return file.getvalue()


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.pkl", b"x")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (_npy(), "It is a NumPy array (.npy)"),
        (_zip(), "It is a zip archive, as files of PyTorch"),
        (pickle.dumps({"a": 1}, protocol=2), "It is a Python pickle"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "`git lfs pull` fetches that"),
        (b"<!DOCTYPE html><html></html>", "It is a web page"),
        (b"# A title\n\nSome words, and \xc3\xbcmlauts.\n", "It is a text file."),
        (b"\x1c\x00\x00\x00TFL3" + bytes(40), "It is a TensorFlow Lite model"),
        (b"\x1c\x00\x00\x00ORTM" + bytes(40), "It is a model in ORT format"),
        ((20).to_bytes(8, "little") + b'{"a":{"dtype":"F32"}}', "It is a safetensors file"),
        (b"", "It is empty."),
        (bytes(4096), "It begins with zeros"),
    ],
)
def test_files_of_other_kinds_are_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    for source in (path, content):
        with pytest.raises((errors.InvalidProtobuf, errors.InvalidArgument)) as raised:
            load_model(source)
        assert said in raised.value.message
        assert raised.value.message.count("failed") <= 2


def test_models_that_were_cut_off() -> None:
    """Wherever that was within the graph; what a model begins with says what it would need."""
    model = adding(TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], float_data=[1, 2])).SerializeToString()
    for size in range(len(model) // 4, len(model) - 8, 7):
        with pytest.raises(errors.InvalidProtobuf, match=rf"cut off: the file has {size} bytes, of at least \d+"):
            load_model(model[:size])
    with pytest.raises(errors.OnnxRuntimeError) as raised:
        load_model(b"\x08\x0a" * 1_000_000 + b"\x3a\x7f")  # more fields than are looked at
    assert "cut off" not in raised.value.message


def test_what_is_unknown_is_called_nothing(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidProtobuf, match=r"protobuf parsing failed\.$"):
        load_model(b"\xff\x00\x13\x99" * 30)


def test_similar_names_in_the_folder_are_given(tmp_path: Path) -> None:
    (tmp_path / "encoder.onnx").touch()
    (tmp_path / "other.txt").touch()
    for name in ("encodr.onnx", "Encoder.onnx", "encoder.onx"):
        with pytest.raises(errors.NoSuchFile) as raised:
            load_model(tmp_path / name)
        path = tmp_path / name
        assert raised.value.message == (
            f"Load model from {path} failed. File doesn't exist. Did you mean encoder.onnx?"
        )
    with pytest.raises(errors.NoSuchFile, match=r"File doesn't exist\.$"):
        load_model(tmp_path / "xyz")
    with pytest.raises(errors.NoSuchFile, match="There is no folder"):
        load_model(tmp_path / "absent" / "encoder.onnx")


def test_the_models_of_a_folder_are_given(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    with pytest.raises(errors.InvalidProtobuf) as raised:
        load_model(tmp_path)
    assert f"It is a folder. Did you mean {tmp_path / 'model.onnx'}?" in raised.value.message


@pytest.mark.skipif(os.name != "posix", reason="makes a pipe")
def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(errors.InvalidProtobuf, match="It is not a file"):
        load_model(tmp_path / "pipe")


@pytest.mark.parametrize("content", [None, b"not a model"])
def test_the_trace_of_a_session_is_short(tmp_path: Path, content: bytes | None) -> None:
    """The caller's line and that of the class: no causes, and nothing of how the file was read."""
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((errors.NoSuchFile, errors.InvalidProtobuf, errors.InvalidArgument)) as raised:
        ort.InferenceSession(path)
    lines = traceback.format_exception(raised.value)
    assert sum(line.startswith('  File "') for line in lines) == 2
    assert sum("Traceback" in line for line in lines) == 1
