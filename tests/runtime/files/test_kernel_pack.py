"""Packs of kernels: what is in them is found by its whole key, and nothing else is, whatever the file holds."""

from __future__ import annotations

import os
import struct
import sys
import zlib
from pathlib import Path

import pytest

from sardonyx.runtime.files import kernel_pack, opening
from sardonyx.runtime.files.kernel_pack import KernelPack, write_pack

POSIX = pytest.mark.skipif(os.name != "posix", reason="owners and modes are those of POSIX")
KERNELS = {f"key {number}": bytes([number]) * (number + 1) * 50 for number in range(7)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A pack of the kernels above."""
    file = tmp_path / "some.pack"
    assert write_pack(file, KERNELS, {"made": "for a test"}) == file.stat().st_size
    return file


def test_every_kernel_is_found_and_no_other(path: Path) -> None:
    pack = KernelPack(path)
    assert len(pack) == len(KERNELS)
    assert {key: pack.find(key) for key in KERNELS} == KERNELS
    assert pack.find("another") is pack.find("") is None
    assert pack.problem == ""


def test_how_it_was_made_can_be_read(path: Path, tmp_path: Path) -> None:
    assert KernelPack(path).note == {"made": "for a test"}
    text = path.read_bytes()
    path.write_bytes(text.replace(b'{"made"', b'["made"'))
    assert KernelPack(path).note == {}
    assert KernelPack(tmp_path / "nothing").note == {}
    assert KernelPack(path).find("key 1") == KERNELS["key 1"]


def test_a_pack_may_be_empty(tmp_path: Path) -> None:
    write_pack(tmp_path / "none.pack", {}, {})
    assert (len(KernelPack(tmp_path / "none.pack")), KernelPack(tmp_path / "none.pack").find("key 1")) == (0, None)


def test_the_same_kernels_make_the_same_file(path: Path, tmp_path: Path) -> None:
    write_pack(tmp_path / "again.pack", dict(reversed(KERNELS.items())), {"made": "for a test"})
    assert (tmp_path / "again.pack").read_bytes() == path.read_bytes()


def test_a_changed_byte_never_gives_other_code(path: Path) -> None:
    """Where it is in the note, nothing is lost; anywhere else a kernel, or all of them, count as absent."""
    text, lost = path.read_bytes(), 0
    for place in range(len(text)):
        path.write_bytes(text[:place] + bytes([text[place] ^ 0x41]) + text[place + 1 :])
        pack = KernelPack(path)
        found = {key: pack.find(key) for key in KERNELS}
        assert all(code in (None, KERNELS[key]) for key, code in found.items())
        lost += None in found.values()
    assert lost > 0.7 * len(text)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 23, 24, 60, 300])
def test_a_pack_that_was_cut_short(size: int, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:size])
    pack = KernelPack(path)
    assert [pack.find(key) for key in KERNELS] == [None] * len(KERNELS)
    assert ("no pack of kernels" in pack.problem) == (size < 300)


def test_an_entry_under_another_digest_is_not_taken(path: Path) -> None:
    """Two lines of the table change places of what they tell, so that each leads to a whole entry of the other."""
    text = bytearray(path.read_bytes())
    table = kernel_pack._HEAD.size + struct.unpack_from("<I", text, 20)[0]
    first, second = slice(table + 20, table + 32), slice(table + 52, table + 64)
    text[first], text[second] = text[second], text[first]
    path.write_bytes(text)
    assert sum(KernelPack(path).find(key) is None for key in KERNELS) == 2


def test_what_expands_beyond_any_kernel_is_not_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_pack, "_MOST_BYTES", 1000)
    path = tmp_path / "large.pack"
    write_pack(path, {"large": b"0" * 5000, "small": b"1" * 500}, {})
    assert (KernelPack(path).find("large"), KernelPack(path).find("small")) == (None, b"1" * 500)
    assert kernel_pack._inflated(memoryview(zlib.compress(bytes(10_000)))) is None


def test_a_python_without_compression_finds_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zlib", None)
    assert KernelPack(path).find("key 1") is None


def test_what_is_not_there_or_no_file(tmp_path: Path) -> None:
    for place in (tmp_path / "nothing", tmp_path):
        pack = KernelPack(place)
        assert pack.find("key 1") is None
        assert str(place) in pack.problem


@POSIX
def test_a_pack_of_the_system_or_of_who_owns_this_package(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root installs it for others, or as a container's build copies it with another owner."""
    monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
    assert path.stat().st_uid in (0, Path(opening.__file__).stat().st_uid)
    assert KernelPack(path).find("key 1") == KERNELS["key 1"]


@POSIX
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives a file to another user")
def test_a_pack_of_another_user_is_not_taken(path: Path) -> None:
    os.chown(path, 12345, -1)
    pack = KernelPack(path)
    assert pack.find("key 1") is None
    assert "others may have written it" in pack.problem


@POSIX
@pytest.mark.parametrize("mode", [0o646, 0o666, 0o602])
def test_a_pack_that_everybody_may_write_is_not_taken(mode: int, path: Path) -> None:
    path.chmod(mode)
    assert KernelPack(path).find("key 1") is None


@POSIX
def test_a_group_may_write_it_that_may_write_this_package(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installers make files so where the user's mask is 002."""
    own = tmp_path / "module.py"
    own.write_text("")
    monkeypatch.setattr(opening, "__file__", str(own))
    path.chmod(0o664)
    own.chmod(0o644)
    assert KernelPack(path).find("key 1") is None
    own.chmod(0o664)
    assert KernelPack(path).find("key 1") == KERNELS["key 1"]


@POSIX
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pack")
    assert KernelPack(tmp_path / "pipe.pack").find("key 1") is None
