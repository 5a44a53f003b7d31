"""External data: read in place, and only from the model's folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from sardonyx import errors
from sardonyx.graph.load import load_model
from tests.graph.models import adding, run

X = np.zeros(2, np.float32)


def reading(location: str | None, **entries: str) -> onnx.ModelProto:
    proto = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    if location is not None:
        entries = {"location": location, **entries}
    for key, value in entries.items():
        proto.external_data.add(key=key, value=value)
    return adding(proto)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with a weights file, links out of it, and a file outside."""
    outside, inside = tmp_path / "outside", tmp_path / "model"
    outside.mkdir()
    (inside / "sub").mkdir(parents=True)
    for place in (outside, inside):
        (place / "w.bin").write_bytes(np.array([1, 2, 3], np.float32).tobytes())
    os.symlink(outside / "w.bin", inside / "link.bin")
    os.symlink(outside, inside / "linked")
    os.symlink(inside / "w.bin", inside / "inner.bin")
    os.mkfifo(inside / "pipe")
    return inside


@pytest.mark.parametrize("location", ["w.bin", "./w.bin", "sub/../w.bin", "../model/w.bin", "inner.bin"])
def test_places_inside_the_folder(folder: Path, location: str) -> None:
    path = folder / "model.onnx"
    onnx.save(reading(location, offset="4"), path)
    assert run(path, x=X)[0].tolist() == [2, 3]


@pytest.mark.parametrize(
    ("location", "entries", "text"),
    [
        ("../outside/w.bin", {}, "External data path escapes model directory"),
        ("link.bin", {}, "External data path escapes model directory"),
        ("linked/w.bin", {}, "External data path escapes model directory"),
        ("/etc/passwd", {}, "Absolute path not allowed for external data location"),
        ("none.bin", {}, "External data path does not exist"),
        ("sub", {}, "Random-access reads require a regular file"),
        ("", {}, "External data location cannot be empty"),
        (None, {"offset": "0"}, "Missing 'location'"),
        ("w.bin", {"offset": "8"}, "offset: 8 size to read: 8 given file_length: 12 are out of bounds"),
        ("w.bin", {"offset": "-4"}, "offset: -4 is out of bounds"),
        ("w.bin", {"offset": "x"}, "Failed to parse value"),
        ("w.bin", {"length": "4"}, "external data size mismatch. Computed size: 8, external_data.length: 4"),
        ("w.bin", {"length": "-1"}, "Failed to parse value"),
        ("w.bin", {"length": "9" * 23}, "Failed to parse value"),
        ("w.bin", {"foo": "1"}, "model format error!"),
    ],
)
def test_refused_as_onnxruntime_does(folder: Path, location: str | None, entries: dict[str, str], text: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    path = folder / "model.onnx"
    path.write_bytes(reading(location, **entries).SerializeToString())
    with pytest.raises(errors.Fail) as ours:
        load_model(path)
    assert text in str(ours.value)
    with pytest.raises(Exception, match="FAIL") as theirs:
        ort.InferenceSession(str(path))
    assert type(theirs.value).__name__ == "Fail"


def test_a_pipe_does_not_block(folder: Path) -> None:
    with pytest.raises(errors.Fail, match="regular file"):
        load_model(reading("pipe"), external_folder=folder)


def test_folder_for_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = reading("w.bin").SerializeToString()
    assert run(load_model(data, external_folder=folder), x=X)[0].tolist() == [1, 2]
    monkeypatch.chdir(folder)
    assert run(load_model(data), x=X)[0].tolist() == [1, 2]
    monkeypatch.chdir(folder / "sub")
    with pytest.raises(errors.Fail, match="model loaded from bytes escapes working directory"):
        load_model(reading("../w.bin"))


def test_buffers_stand_for_files() -> None:
    buffer = bytearray(np.array([5, 6, 7], np.float32).tobytes())
    loaded = load_model(reading("weights", offset="4"), external_buffers={"weights": buffer})
    tensor = loaded.model.graph.initializers["w"].const_value
    assert np.shares_memory(tensor.numpy(), np.frombuffer(buffer, np.uint8))
    assert run(loaded, x=X)[0].tolist() == [6, 7]


@pytest.mark.parametrize("key", ["location", "offset"])
def test_a_key_twice(folder: Path, key: str) -> None:
    model = reading("w.bin", offset="0")
    model.graph.initializer[0].external_data.add(key=key, value="4" if key == "offset" else "sub/../w.bin")
    with pytest.raises(errors.Fail, match=f"duplicate '{key}' entries"):
        load_model(model, external_folder=folder)


@pytest.mark.filterwarnings("error")
def test_what_onnxruntime_says_of_packed_weights_is_left_out(folder: Path) -> None:
    model = reading("w.bin", offset="4", prepacked_0="key|0;64;0", prepacked_1="key|64;64;0")
    assert run(load_model(model.SerializeToString(), external_folder=folder), x=X)[0].tolist() == [2, 3]
    assert len(model.graph.initializer[0].external_data) == 4  # the caller's


@pytest.mark.parametrize("part", [b"length", b"w.bin"])
def test_text_that_is_not_utf_8(folder: Path, part: bytes) -> None:
    """Protobuf gives such a key or value as bytes."""
    data = reading("w.bin", length="8").SerializeToString()
    assert part in data
    with pytest.raises(errors.Fail, match=r"Unknown key|does not exist"):
        load_model(data.replace(part, b"\xff" + part[1:]), external_folder=folder)


@pytest.mark.parametrize(("weights", "is_allowed"), [("blobs", True), ("blobs/deep", True), ("elsewhere", False)])
def test_links_of_models_and_their_data(tmp_path: Path, weights: str, is_allowed: bool) -> None:
    """A snapshot of links, as in the cache of the Hugging Face hub: into the folder of the real model, or not."""
    ort = pytest.importorskip("onnxruntime")
    for name in ("blobs", weights, "snapshot"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "blobs" / "1").write_bytes(reading("w.bin").SerializeToString())
    (tmp_path / weights / "2").write_bytes(np.array([1, 2], np.float32).tobytes())
    path = tmp_path / "snapshot" / "model.onnx"
    os.symlink(tmp_path / "blobs" / "1", path)
    os.symlink(tmp_path / weights / "2", path.with_name("w.bin"))
    if is_allowed:
        assert run(path, x=X)[0].tolist() == [1, 2]
        assert set(load_model(path).files) == {
            *map(os.path.realpath, (path, path.with_name("w.bin"))),
            *map(str, (path, path.with_name("w.bin"))),
        }
        ort.InferenceSession(str(path))
        return
    with pytest.raises(errors.Fail, match=r'escapes model directory.* allowed directory: ".*blobs"'):
        load_model(path)
    with pytest.raises(Exception, match=r'escapes model directory.* allowed directory: ".*blobs"'):
        ort.InferenceSession(str(path))
