"""External data: read in place, and only from the model's folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import sardonyx as ort
from sardonyx import errors
from sardonyx.graph.load import external_locations, load_model
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


def test_hard_links_are_refused(folder: Path) -> None:
    """As ONNX's own loader does: nobody can tell where the other name lies."""
    os.link(folder / "w.bin", folder.parent / "second name")
    path = folder / "model.onnx"
    onnx.save(reading("w.bin"), path)
    with pytest.raises(errors.Fail, match=r"another name as well \(a hard link\).*copy"):
        load_model(path)
    with pytest.raises(onnx.checker.ValidationError, match="hard link"):
        onnx.load(path)
    assert run(load_model(path, hard_links=True), x=X)[0].tolist() == [1, 2]
    options = ort.SessionOptions()
    options.add_session_config_entry("sardonyx.external_hard_links", "1")
    assert ort.InferenceSession(str(path), options).run(None, {"x": X})[0].tolist() == [1, 2]
    with pytest.raises(errors.Fail, match="hard link"):  # by onnx
        ort.ModelCompiler(options, str(path)).compile_to_bytes()
    (folder.parent / "second name").unlink()
    assert run(path, x=X)[0].tolist() == [1, 2]


@pytest.mark.parametrize("config", ["external", "ort_config"])
def test_a_pipe_in_place_of_the_model(config: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the message itself is read for the caller's initializers, or for its options."""
    options = ort.SessionOptions()
    if config == "external":
        options.add_external_initializers(["w"], [ort.OrtValue.ortvalue_from_numpy(np.ones(2, np.float32))])
    with pytest.raises(errors.InvalidProtobuf, match="not a file"):
        ort.InferenceSession(str(folder / "pipe"), options, read_config_from_model=int(config == "ort_config"))


def hub(root: Path, *, stores: tuple[str, str], inner: str = "") -> Path:
    """A model and its weights in a snapshot of a hub's cache, linked into these stores; the model's path."""
    snapshot = root / "models--some--model" / "snapshots" / "0123" / inner
    snapshot.mkdir(parents=True)
    contents = reading("w.bin", offset="4").SerializeToString(), np.array([1, 2, 3], np.float32).tobytes()
    for name, store, content in zip(("model.onnx", "w.bin"), stores, contents, strict=True):
        blob = root / store / name.replace(".", "")
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        os.symlink(os.path.relpath(blob, snapshot), snapshot / name)
    return snapshot / "model.onnx"


OWN = "models--some--model/blobs"


@pytest.mark.parametrize("inner", ["", "onnx"])
@pytest.mark.parametrize(
    "stores", [("blobs/aa", "blobs/bb"), (OWN, OWN), (OWN, "blobs/bb"), ("blobs/aa", OWN), (f"{OWN}/aa", f"{OWN}/bb")]
)
def test_a_model_and_its_weights_in_the_store_of_a_cache(stores: tuple[str, str], inner: str, tmp_path: Path) -> None:
    path = hub(tmp_path.resolve() / "cache", stores=stores, inner=inner)
    loaded = load_model(path)
    assert run(loaded, x=X)[0].tolist() == [2, 3]
    assert set(loaded.files) == {
        str(one) for name in ("model.onnx", "w.bin") for one in (path.with_name(name), path.with_name(name).resolve())
    }


@pytest.mark.parametrize(
    "stores",
    [
        ("blobs/aa", "other"),  # another folder of the cache
        ("blobs/aa", "../outside"),
        ("blobs/aa", "models--another--model/blobs"),
        ("other/aa", "blobs/bb"),  # a model that is not from the store
    ],
)
def test_what_is_not_in_the_store_of_the_model_is_refused(stores: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(errors.Fail, match="escapes model directory"):
        load_model(hub(tmp_path / "cache", stores=stores))


def test_stores_that_lead_out_of_the_cache_are_none(tmp_path: Path) -> None:
    """A link in the place of a store, as an archive may hold one."""
    path = hub(tmp_path / "cache", stores=("blobs/aa", "blobs/bb"))
    os.rename(tmp_path / "cache" / "blobs", tmp_path / "outside")
    os.symlink(tmp_path / "outside", tmp_path / "cache" / "blobs")
    with pytest.raises(errors.Fail, match="escapes model directory"):
        load_model(path)


def test_locations_that_climb_to_a_store_are_refused(tmp_path: Path) -> None:
    path = hub(tmp_path / "cache", stores=("blobs/aa", "blobs/bb"))
    climbing = reading(os.path.relpath(path.with_name("w.bin").resolve(), path.parent.resolve()))
    path.resolve().write_bytes(climbing.SerializeToString())
    with pytest.raises(errors.Fail, match="escapes model directory"):
        load_model(path)


@pytest.mark.parametrize("change", [str.lower, str.upper, "{} ".format])
def test_checksums(folder: Path, change: Callable[[str], str]) -> None:
    path = folder / "model.onnx"
    onnx.save(reading("w.bin", checksum=change(hashlib.sha1((folder / "w.bin").read_bytes()).hexdigest())), path)
    assert run(path, x=X)[0].tolist() == [1, 2]
    with open(folder / "w.bin", "r+b") as file:
        file.seek(11)
        file.write(b"!")  # behind what the tensor reads
    with pytest.raises(errors.Fail, match=r"SHA-1 digest of 'w\.bin' is [0-9a-f]{40}, and its 'checksum' is"):
        load_model(path)


@pytest.mark.parametrize("checksum", ["0", "f" * 64, "sha1:" + "0" * 40])
def test_checksums_of_another_form(folder: Path, checksum: str) -> None:
    with pytest.raises(errors.Fail, match="SHA-1"):
        load_model(reading("w.bin", checksum=checksum), external_folder=folder)


def test_checksums_of_buffers_and_empty_ones() -> None:
    buffer = np.array([5, 6], np.float32).tobytes()
    digest = hashlib.sha1(buffer).hexdigest()
    for checksum in (digest, ""):
        loaded = load_model(reading("w", checksum=checksum), external_buffers={"w": buffer})
        assert run(loaded, x=X)[0].tolist() == [5, 6]
    with pytest.raises(errors.Fail, match="SHA-1"):
        load_model(reading("w", checksum=digest), external_buffers={"w": buffer[::-1]})


def test_the_checksum_of_a_constant(folder: Path) -> None:
    model = reading("w.bin", checksum="0" * 40)
    constant = onnx.helper.make_node("Constant", [], ["w"], value=model.graph.initializer[0])
    model.graph.node.insert(0, constant)
    del model.graph.initializer[:]
    with pytest.raises(errors.Fail, match="SHA-1"):
        load_model(model, external_folder=folder)


def test_a_file_is_hashed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = reading("w.bin", checksum=hashlib.sha1((folder / "w.bin").read_bytes()).hexdigest())
    second = model.graph.initializer.add()
    second.CopyFrom(model.graph.initializer[0])
    second.name = "v"
    made: list[Any] = []
    real = hashlib.sha1
    monkeypatch.setattr(hashlib, "sha1", lambda *given, **named: made.append(given) or real(*given, **named))
    load_model(model, external_folder=folder)
    assert len(made) == 1


def test_a_store_by_way_of_the_repository(tmp_path: Path) -> None:
    """As huggingface_hub links what repositories of a cache share: snapshot, blobs of the repository, store."""
    path = hub(tmp_path / "cache", stores=("blobs/aa", "blobs/bb"))
    (tmp_path / "cache" / "blobs" / ".huggingface-shared-blobs").write_text("1")
    own = tmp_path / "cache" / OWN
    own.mkdir()
    for link in (path, path.with_name("w.bin")):
        os.symlink(os.path.relpath(link.resolve(), own), own / link.name)
        link.unlink()
        os.symlink(os.path.relpath(own / link.name, path.parent), link)
    assert run(path, x=X)[0].tolist() == [2, 3]


def test_links_that_are_swapped(tmp_path: Path) -> None:
    path = hub(tmp_path / "cache", stores=("blobs/aa", "blobs/bb"))
    ends = [os.readlink(link) for link in (path, path.with_name("w.bin"))]
    for link, end in zip((path.with_name("w.bin"), path), ends, strict=True):
        link.unlink()
        os.symlink(end, link)
    with pytest.raises(errors.InvalidProtobuf):
        load_model(path)


@pytest.mark.parametrize("through", ["store", "folder"])
def test_a_folder_in_the_place_of_a_store(tmp_path: Path, through: str) -> None:
    """A link on the way into the store, or in place of the folder of the snapshot."""
    path = hub(tmp_path / "cache", stores=("blobs/aa", "blobs/bb"))
    place = tmp_path / "cache" / "blobs" / "bb" if through == "store" else path.parent
    os.rename(place, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", place)
    with pytest.raises((errors.Fail, errors.NoSuchFile)):
        load_model(path)


@pytest.mark.parametrize(
    ("stores", "said"),
    [
        (("blobs/aa", "models--another--model/blobs"), r"HF_HUB_DISABLE_SHARED_BLOBS=1.*external_data_folders"),
        (("blobs/aa", "../outside"), r"snapshot_download\(local_dir=.*external_data_folders"),
    ],
)
def test_errors_say_what_helps_with_a_cache(stores: tuple[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(errors.Fail, match=said):
        load_model(hub(tmp_path / "cache", stores=stores))


@pytest.mark.parametrize("location", ["link.bin", "linked/w.bin", "../outside/w.bin"])
def test_folders_that_the_caller_allows(folder: Path, location: str) -> None:
    path, outside = folder / "model.onnx", folder.parent / "outside"
    path.write_bytes(reading(location, offset="4").SerializeToString())
    with pytest.raises(errors.Fail, match=rf"Put the data beside .*'sardonyx.external_data_folders' = '{outside}'"):
        load_model(path)
    options = ort.SessionOptions()
    options.add_session_config_entry("sardonyx.external_data_folders", os.pathsep.join(map(str, (folder, outside))))
    assert ort.InferenceSession(str(path), options).run(None, {"x": X})[0].tolist() == [2, 3]
    with pytest.raises(errors.Fail, match="escapes model directory"):  # without the entry, as before
        ort.InferenceSession(str(path))


@pytest.mark.parametrize("listed", ["outside", "/none/of/this", "{folder}/w.bin"])
def test_allowed_folders_are_folders(folder: Path, listed: str) -> None:
    path = folder / "model.onnx"
    onnx.save(reading("w.bin"), path)
    options = ort.SessionOptions()
    options.add_session_config_entry("sardonyx.external_data_folders", listed.format(folder=folder))
    with pytest.raises(
        errors.InvalidArgument, match=r"external_data_folders' is (not there|relative): give full paths"
    ):
        ort.InferenceSession(str(path), options)


def test_absolute_locations_are_refused_whatever_is_allowed(folder: Path) -> None:
    path = folder / "model.onnx"
    path.write_bytes(reading(str(folder.parent / "outside" / "w.bin")).SerializeToString())
    with pytest.raises(errors.Fail, match="Absolute path"):
        load_model(path, other_folders=["/"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"[:7], "a text file"),
        (b"\0" * 7, "cut off"),
        (b"", "is empty"),
        (np.ones(1, np.float32).tobytes(), "may have been cut off: get the model and its data again"),
    ],
)
def test_short_files_are_told_by_what_they_are(folder: Path, content: bytes, said: str) -> None:
    path = folder / "model.onnx"
    onnx.save(reading("w.bin"), path)
    (folder / "w.bin").write_bytes(content)
    with pytest.raises(errors.Fail, match=said):
        load_model(path)


def test_locations_without_loading(folder: Path) -> None:
    path = folder / "model.onnx"
    onnx.save(reading("../none.bin"), path)
    assert external_locations(path) == ["../none.bin"]
    path.write_bytes(b"no model")
    with pytest.raises(errors.InvalidProtobuf, match="a text file"):
        external_locations(path)
