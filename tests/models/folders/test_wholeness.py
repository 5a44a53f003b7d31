"""Files that are there by half are named as what they are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sardonyx import errors
from sardonyx.models.folders.wholeness import check_whole, unfinished_in, unfinished_note

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1234\n"


def safetensors(size: int, end: int, header: bytes | None = None) -> bytes:
    said = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, end]}}).encode()
    header = said if header is None else header
    return len(header).to_bytes(8, "little") + header + bytes(size)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.onnx", POINTER, "a pointer of Git LFS, not the file itself"),
        ("tokenizer.json", POINTER, "a pointer of Git LFS, not the file itself"),
        ("model.onnx", b"", "It is empty"),
        ("model.onnx", bytes(600), "begins with zeros, as where a download or a copy was cut off"),
        ("config.json", b"<!DOCTYPE html><title>Sign in</title>", "a web page, as where a download went wrong"),
        ("model.safetensors", safetensors(4, 8), r"is cut off: it has \d+ bytes, and its header says \d+"),
        ("model.safetensors", safetensors(8, 8)[:20], r"is cut off: it has 20 bytes, and its header alone takes \d+"),
        ("model.safetensors", b"\1\2\3", r"is cut off: it has 3 bytes"),
        ("model.safetensors", b"\xff" * 30, r"is cut off: it has 30 bytes"),
        ("model.safetensors", safetensors(8, 8, b'{"w": 3}'), "its header cannot be read"),
        ("model.safetensors", safetensors(8, 8, b"[1]"), "its header cannot be read"),
    ],
)
def test_halves(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(errors.Fail, match=said) as raised:
        check_whole(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [("model.safetensors", safetensors(8, 8)), ("model.onnx", b"\x08\x0a"), ("config.json", b"{}")],
)
def test_whole_files(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    check_whole(tmp_path / name)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "none", "."):
        with pytest.raises(errors.Fail, match="cannot be read"):
            check_whole(tmp_path / name)


@pytest.mark.parametrize(
    "place",
    [
        "snapshot.incomplete",
        "onnx/model.onnx.part",
        ".cache/huggingface/download/onnx/abc.incomplete",
        "../../blobs/0123.incomplete",
    ],
)
def test_downloads_that_have_not_ended(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "models--a--b" / "snapshots" / "0123"
    folder.mkdir(parents=True)
    assert unfinished_note(folder) == ""
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"0")
    assert [found.name for found in unfinished_in(folder)] == [path.name]
    assert path.name in unfinished_note(folder)
