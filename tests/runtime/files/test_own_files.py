"""In its cache folder the package knows its own files, and touches no others."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sardonyx.runtime.files import kernel_cache
from sardonyx.runtime.files.cache_folder import default_folder, prepare_folder
from sardonyx.runtime.files.engine_file import only_writer, write_engine
from sardonyx.runtime.files.kernel_cache import KernelCache
from sardonyx.runtime.files.machine_file import read_sections, write_section
from sardonyx.runtime.files.own_files import ENGINE, bound_folder, own_file, own_files, remove_own, remove_own_files
from sardonyx.runtime.files.trust_records import TrustRecords

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links, owners and modes are those of POSIX")

NAME = "0123456789" * 4
OLD = (1e9, 1e9)


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is used for something else, too, and that the user names for the cache."""
    folder = tmp_path / "given"
    folder.mkdir()
    for name in ("program.o", f"{NAME}.o", f".new-{'0' * 32}", f"{NAME}.engine"):
        (folder / name).write_bytes(b"of somebody else" * 1000)
        os.utime(folder / name, OLD)
    monkeypatch.setenv("SARDONYX_CACHE", str(folder))
    return folder


@pytest.fixture
def mask() -> Iterator[None]:
    before = os.umask(0o002)
    yield
    os.umask(before)


def state(folder: Path, *left_out: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """What lies in a folder, with modes, times and contents."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        if not any(path == one or one in path.parents for one in left_out):
            status = os.lstat(path)
            text = path.read_bytes() if path.is_file() else b""
            when = status.st_mtime_ns if path.is_file() else 0
            found[str(path)] = status.st_mode, when, status.st_ino, text
    return found


@pytest.mark.parametrize("mode", [0o1777, 0o775, 0o755])
def test_the_folder_that_is_given_stays_as_it_is(mode: int, given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given.chmod(mode)
    before = state(given)
    monkeypatch.setattr(kernel_cache, "MOST_BYTES", 1)
    folder = default_folder()
    assert folder == str(given / "sardonyx" / "kernels")
    cache = KernelCache(folder)
    for key in "abc":
        cache.store(key, bytes(1000))
    assert not cache.problem
    bound_folder(folder, ".o", 1)
    bound_folder(str(given), ".o", 1)  # even if it were asked to
    remove_own_files([*own_files(), *own_files(given)])
    assert state(given, given / "sardonyx") == before


def test_others_in_the_own_folder_stay(given: Path) -> None:
    folder = default_folder()
    assert folder is not None
    cache = KernelCache(folder)
    others = [
        Path(folder) / name
        for name in (
            "program.o",
            f"{NAME}.o",
            f".new-{'0' * 32}",
            "machine-1234.json",
            "deep/x.o",
            f"{NAME}.trust record",
        )
    ]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"of somebody else" * 1000)
        os.utime(path, OLD)
    os.symlink(given / "program.o", Path(folder) / f"{'1' * 40}.o")
    os.mkfifo(Path(folder) / f"{'2' * 40}.o")
    (Path(folder) / f"{'3' * 40}.o").mkdir()
    before = state(Path(folder))
    cache.store("ours", bytes(1000))
    (ours,) = own_files()
    assert (ours.kind, os.path.dirname(ours.path)) == ("kernel", folder)
    bound_folder(folder, ".o", 1)
    assert own_files() == []
    assert state(Path(folder)) == before


def test_each_kind_is_known(given: Path) -> None:
    folder = default_folder()
    assert folder is not None
    assert own_files() == []
    engines = Path(folder) / "engines"
    KernelCache(folder).store("key", b"code")
    write_section("machine", "one", {"a": 1}, folder)
    TrustRecords(folder).note_made(NAME + "f" * 24)
    assert write_engine(engines / f"{NAME}{ENGINE}", {}, {})
    (engines / f"{NAME}.missed").write_bytes(b"...")
    (engines / f".new-{'a' * 32}").write_bytes(b"SARDONYX ENG")
    with only_writer(engines / f"{NAME}{ENGINE}") as alone:
        assert alone
        found = own_files()
        kinds = {"kernel", "machine", "trust_record", "engine", "misses", "draft", "lock"}
        assert {one.kind for one in found} == kinds
    assert all(one.nbytes == os.path.getsize(one.path) for one in found if one.kind != "lock")
    assert all(abs(one.used - time.time()) < 3600 for one in found)
    assert len(remove_own_files(found)) == len(found) - 1  # the lock has gone
    assert own_files() == []
    assert sorted(os.listdir(folder)) == ["CACHEDIR.TAG", "engines"]


def test_what_was_exchanged_since_stays(given: Path) -> None:
    folder = default_folder()
    KernelCache(folder).store("key", b"code")
    (ours,) = own_files()
    Path(ours.path).write_bytes(b"of somebody else")
    assert remove_own_files([ours]) == []
    assert not remove_own(ours.path)
    assert own_file(ours.path) is None
    assert Path(ours.path).read_bytes() == b"of somebody else"


def test_files_of_another_user_stay(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KernelCache(default_folder()).store("key", b"code")
    (ours,) = own_files()
    monkeypatch.setattr(os, "getuid", lambda: os.stat(given).st_uid + 1)
    assert own_files() == []
    assert not remove_own(ours.path)


def test_drafts_that_were_left_go_after_a_day(given: Path) -> None:
    folder = default_folder()
    assert folder is not None
    cache = KernelCache(folder)
    texts = {"1": b"SARDONYX KERNEL 1\nhalf", "2": b"SARD", "3": b"", "4": bytes(100)}
    for digit, text in texts.items():
        for age, letter in ((1e6, "a"), (10, "b")):
            path = Path(folder) / f".new-{digit * 31}{letter}"
            path.write_bytes(text)
            os.utime(path, (time.time() - age,) * 2)
    cache.store("key", b"code")
    assert {name[-1] for name in os.listdir(folder) if name.startswith(".new-")} == {"b"}


# The folder


@pytest.mark.usefixtures("mask")
def test_modes_of_new_folders_and_files(given: Path) -> None:
    """Where the user's mask lets the group write, what is made here is not for the group, so that it is trusted."""
    folder = default_folder()
    assert folder is not None
    KernelCache(folder).store("key", b"code")
    write_section("machine", "one", {"a": 1}, folder)
    TrustRecords(folder).note_made(NAME)
    for path in [Path(folder).parent, *Path(folder).parent.rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o022, path
        assert path.is_dir() or stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert KernelCache(folder).find("key") == b"code"
    assert read_sections("machine", folder) == {"one": {"a": 1}}
    assert TrustRecords(folder).find(NAME).made


def test_a_folder_that_was_made_elsewhere_is_not_changed(tmp_path: Path) -> None:
    for mode in (0o777, 0o775, 0o1777):
        folder = tmp_path / f"{mode}"
        folder.mkdir()
        folder.chmod(mode)
        assert "others can write" in prepare_folder(str(folder))
        assert KernelCache(folder).folder is None
        assert stat.S_IMODE(folder.stat().st_mode) == mode
        assert list(folder.iterdir()) == []
    folder = tmp_path / "older"  # as earlier caches are: closed, but without a tag
    folder.mkdir(mode=0o700)
    KernelCache(folder).store("key", b"code")
    assert KernelCache(folder).find("key") == b"code"


def test_a_folder_that_was_made_here_is_closed_again(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    engines = folder / "engines"
    assert not prepare_folder(str(engines))
    for place in (folder, engines):
        place.chmod(0o2775)
    assert not prepare_folder(str(engines))
    assert [stat.S_IMODE(place.stat().st_mode) for place in (folder, engines)] == [0o700, 0o700]


@pytest.mark.parametrize("where", ["sardonyx", "sardonyx/kernels"])
def test_links_and_folders_of_others_in_the_way(where: str, given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user put a link to a folder of this one where the cache would be."""
    target = given.parent / "of this user"
    target.mkdir()
    place = given / where
    place.parent.mkdir(exist_ok=True)
    os.symlink(target, place)
    real = os.lstat

    def planted(path: str) -> os.stat_result:
        status = real(path)
        if str(path) == str(place):
            return os.stat_result([*status[:4], status.st_uid + 1, *status[5:10]])
        return status

    monkeypatch.setattr(os, "lstat", planted)
    cache = KernelCache(default_folder())
    cache.store("key", b"code")
    assert "belongs to another user" in cache.problem
    assert [path for path in target.rglob("*") if path.is_file()] == []


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("where", ["sardonyx", "sardonyx/kernels", "sardonyx/kernels/engines"])
def test_folders_and_files_of_another_user(where: str, given: Path) -> None:
    folder = default_folder()
    assert folder is not None
    KernelCache(folder).store("key", b"code")
    TrustRecords(folder).note_made(NAME)
    assert len(own_files()) == 2
    for one in own_files():
        os.chown(one.path, 65534, -1)
    assert own_files() == []
    assert KernelCache(folder).find("key") is None
    assert not TrustRecords(folder).find(NAME).made
    os.chown(given / where, 65534, -1)
    before = state(given)
    assert "belongs to another user" in prepare_folder(os.path.join(folder, "engines"))
    KernelCache(folder).store("another", b"code")
    TrustRecords(folder).note_made(NAME[::-1])
    assert write_section("machine", "one", {}, folder) is None or where.endswith("engines")
    changed = {path for path, one in state(given).items() if before.get(path) != one}
    assert all(where.endswith("engines") and f"{os.sep}engines{os.sep}" not in path for path in changed)
