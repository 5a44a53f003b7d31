"""A folder gets all files of a model, or none."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from sardonyx import errors
from sardonyx.models.folders.staging import final_place, publish, publish_all, staged


def test_files_come_when_all_are_whole(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("old")
    with staged(tmp_path) as stage:
        (stage / "model.onnx").write_text("new")
        (stage / "1_Pooling").mkdir()
        (stage / "1_Pooling" / "config.json").write_text("{}")
        assert (tmp_path / "model.onnx").read_text() == "old"
        moved = publish([stage / "model.onnx", stage / "1_Pooling" / "config.json"], stage, tmp_path)
    assert moved == [tmp_path / "model.onnx", tmp_path / "1_Pooling" / "config.json"]
    assert (tmp_path / "model.onnx").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1_Pooling", "model.onnx"]


def _write(folder: Path, content: str, raised: BaseException | type[BaseException] | None = None) -> None:
    with staged(folder) as stage:
        (stage / "model.onnx").write_text(content)
        if raised is not None:
            raise raised
        publish([stage / "model.onnx"], stage, folder)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, errors.Fail("differs")])
def test_what_was_there_stays_when_it_ends_early(tmp_path: Path, raised: BaseException | type[BaseException]) -> None:
    (tmp_path / "model.onnx").write_text("old")
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises((KeyboardInterrupt, errors.Fail)):
            _write(folder, "half", raised)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert (tmp_path / "model.onnx").read_text() == "old"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.Fail, match=r"file.inside cannot be written: Not a directory"):
        _write(tmp_path / "file" / "inside", "new")
    (tmp_path / "model.onnx").mkdir()
    (tmp_path / "model.onnx" / "kept").write_text("")
    with pytest.raises(errors.Fail, match=r"model.onnx cannot be written"):
        _write(tmp_path, "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model.onnx"]


@pytest.mark.usefixtures("interruptible")
def test_interruptions_wait_until_all_files_are_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["config.json", "model.onnx", "model.onnx_data"]
    for name in names:
        (tmp_path / name).write_text("old")
    order = []
    real = os.replace

    def interrupted(source: Path, target: Path) -> None:
        order.append(Path(target).name)
        os.kill(os.getpid(), signal.SIGINT)
        real(source, target)

    monkeypatch.setattr(os, "replace", interrupted)

    def save() -> None:
        with staged(tmp_path) as stage:
            for name in names:
                (stage / name).write_text("new")
            publish_all(stage, tmp_path)

    with pytest.raises(KeyboardInterrupt):
        save()
    assert order == ["model.onnx_data", "model.onnx", "config.json"]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(names, "new")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_final_places(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        assert final_place(stage / "onnx" / "model.onnx") == tmp_path.resolve() / "onnx" / "model.onnx"
    assert final_place(tmp_path / "model.onnx") == tmp_path / "model.onnx"
