"""Files are opened and made so that names which somebody else planted do no harm."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sardonyx.runtime.files import opening
from sardonyx.runtime.files.opening import (
    ORDINARY,
    PRIVATE,
    READABLE,
    IrregularError,
    create,
    is_private,
    map_file,
    open_below,
    open_file,
    open_private,
    open_shared,
    read_file,
    replacing,
    scratch_folder,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links, pipes and modes are those of POSIX")

TEXT = b"of somebody else"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file of somebody else, a link to it, one that leads nowhere, a pipe, and a folder."""
    (tmp_path / "other").write_bytes(TEXT)
    (tmp_path / "other").chmod(0o644)
    os.symlink(tmp_path / "other", tmp_path / "link")
    os.symlink(tmp_path / "nothing", tmp_path / "dangling")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.fixture
def mask() -> Iterator[None]:
    """New files are for the group, too, as many systems have it."""
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.mark.parametrize("opened", [open_file, open_private, map_file, read_file])
@pytest.mark.parametrize("name", ["pipe", "folder"])
def test_what_is_no_file_is_refused_without_waiting(opened: object, name: str, folder: Path) -> None:
    with pytest.raises(IrregularError, match="not a regular file"):
        opened(folder / name)  # type: ignore[operator]


def test_links_are_followed_where_they_may_be(folder: Path) -> None:
    with open_file(folder / "link") as file:
        assert file.read() == TEXT
    assert bytes(map_file(folder / "link")) == bytes(read_file(folder / "link")) == TEXT
    for opened in (open_private, lambda path: open_file(path, follow=False)):
        with pytest.raises(IrregularError):
            opened(folder / "link")
    with pytest.raises(FileNotFoundError):
        open_file(folder / "dangling")


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_what_others_can_write_is_not_private(mode: int, folder: Path) -> None:
    with open_private(folder / "other") as file:
        assert file.read() == TEXT
    (folder / "other").chmod(mode)
    with pytest.raises(PermissionError, match="others"):
        open_private(folder / "other")


def test_what_belongs_to_another_user_is_not_private(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: os.stat(folder).st_uid + 1)
    with pytest.raises(PermissionError):
        open_private(folder / "other")
    assert not is_private(os.stat(folder / "other"))


def test_links_that_came_after_the_check_are_not_followed(folder: Path) -> None:
    (folder / "folder" / "deep").mkdir()
    path = folder / "folder" / "deep" / "file"
    path.write_bytes(b"inside")
    with open_below(str(folder), str(path)) as file:
        assert file.read() == b"inside"
    path.unlink()
    os.symlink(folder / "other", path)
    with pytest.raises(IrregularError):
        open_below(str(folder), str(path))
    path.unlink()
    path.parent.rmdir()
    os.symlink(folder, path.parent)
    (folder / "file").write_bytes(b"outside")
    with pytest.raises(IrregularError):
        open_below(str(folder), str(path))
    with pytest.raises(FileNotFoundError, match="none"):
        open_below(str(folder), str(folder / "folder" / "none"))
    with pytest.raises(ValueError, match="not below"):
        open_below(str(folder / "folder"), str(folder / "other"))


def test_handles_are_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a refusal, and where a step in between fails."""

    def handles() -> list[str]:
        return sorted(os.listdir("/dev/fd"))

    before = handles()
    for name in ("pipe", "folder", "link", "none", "other"):
        for opened in (open_private, open_file, open_shared, lambda path: open_below(str(folder), str(path))):
            with contextlib.suppress(OSError):
                opened(folder / name).close()
    (folder / "none").unlink()

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(opening, "FileIO", refuse)
    for opened in (open_private, open_file, open_shared):
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            opened(folder / "other")
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)), replacing(folder / "new"):
        pass
    assert handles() == before
    assert not list(folder.glob(".new-*"))


@pytest.mark.parametrize("name", ["link", "dangling", "new", "other"])
def test_a_new_file_takes_the_place_of_a_link(name: str, folder: Path) -> None:
    with replacing(folder / name) as file:
        file.write(b"ours")
        assert name == "new" or os.path.lexists(folder / name)
    assert (folder / name).read_bytes() == b"ours"
    assert not (folder / name).is_symlink()
    assert name == "other" or (folder / "other").read_bytes() == TEXT
    assert not (folder / "nothing").exists()
    assert not list(folder.glob(".new-*"))


@pytest.mark.parametrize("name", ["pipe", "folder"])
def test_nothing_takes_the_place_of_what_is_no_file(name: str, folder: Path) -> None:
    os.symlink(folder / name, folder / "to it")
    for path in (folder / name, folder / "to it"):
        before = os.lstat(path)
        with pytest.raises(IrregularError), replacing(path) as file:
            file.write(b"ours")
        assert os.lstat(path) == before
    assert not list(folder.glob(".new-*"))


def test_a_block_that_raises_leaves_the_older_file(folder: Path) -> None:
    def stop() -> None:
        with replacing(folder / "other") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert (folder / "other").read_bytes() == TEXT
    assert not list(folder.glob(".new-*"))


def test_drafts_have_names_that_nobody_foresees(folder: Path) -> None:
    names = set()
    for _ in range(5):
        with replacing(folder / "new"):
            (draft,) = folder.glob(".new-*")
            names.add(draft.name)
            assert len(draft.name) == len(opening.TEMPORARY) + 32
    assert len(names) == 5


@pytest.mark.usefixtures("mask")
@pytest.mark.parametrize(("mode", "found"), [(PRIVATE, 0o600), (READABLE, 0o644), (ORDINARY, 0o664)])
def test_modes_are_what_is_asked_for(mode: int, found: int, folder: Path) -> None:
    with replacing(folder / "new", mode):
        pass
    assert stat.S_IMODE(os.stat(folder / "new").st_mode) == found
    create(folder / "made", mode)
    assert stat.S_IMODE(os.stat(folder / "made").st_mode) == found
    (folder / "other").chmod(0o600)  # what was closed to others stays so
    with replacing(folder / "other", mode):
        pass
    assert stat.S_IMODE(os.stat(folder / "other").st_mode) == 0o600


@pytest.mark.parametrize("name", ["other", "link", "dangling", "pipe", "folder"])
def test_a_name_that_is_taken(name: str, folder: Path) -> None:
    with pytest.raises(FileExistsError):
        create(folder / name)
    assert not (folder / "nothing").exists()


def test_shared_files(folder: Path) -> None:
    for _ in range(2):
        with open_shared(folder / "shared") as file:
            file.write(b".")
    assert (folder / "shared").read_bytes() == b".."
    assert stat.S_IMODE(os.stat(folder / "shared").st_mode) == 0o600
    for name in ("link", "dangling", "pipe", "folder"):
        with pytest.raises(OSError, match=r".+"):
            open_shared(folder / name)
    assert not (folder / "nothing").exists()
    os.link(folder / "other", folder / "second name")
    (folder / "for all").write_bytes(b"")
    (folder / "for all").chmod(0o666)
    for name in ("second name", "for all"):
        with pytest.raises(PermissionError):
            open_shared(folder / name)
    assert (folder / "other").read_bytes() == TEXT


def test_scratch_folders_go(folder: Path) -> None:
    with scratch_folder(folder) as made:
        assert stat.S_IMODE(os.stat(made).st_mode) == 0o700
        (Path(made) / "file").write_bytes(b"")
        os.symlink(folder, Path(made) / "link")
    assert not os.path.exists(made)
    assert (folder / "other").read_bytes() == TEXT
