"""Opens files, and makes new ones, so that a name which somebody else planted does no harm.

What a name leads to is looked at through the open handle, and used through the same one. Opening waits for nobody: a
pipe has no contents here. New files have names that nobody foresees, are made exclusively, and take their place in one
step, so that a link in that place goes and what it led to stays as it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from io import BufferedReader, BufferedWriter, FileIO

from sardonyx.runtime.memory.mapped_pages import map_open_file, read_open_file

StrPath = str | os.PathLike[str]

# What the names of files begin with that are not whole yet.
TEMPORARY = ".new-"

# Modes of new files, less what the user's mask takes away: for whom they are readable, and that others never write to
# what this process will trust.
PRIVATE, READABLE, ORDINARY = 0o600, 0o644, 0o666

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
# Python's own handles are not inherited by other programs; a terminal that is opened does not become this process's.
_ALWAYS = (
    getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)
# A folder, to open what is in it; on Linux no permission to list it is needed.
_FOLDER = os.O_RDONLY | getattr(os, "O_PATH", 0) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)


class IrregularError(OSError):
    """A name leads to a folder, a pipe, a device or a link where only a regular file is of use."""


def open_file(path: StrPath, *, follow: bool = True) -> BufferedReader:
    """A regular file, open for reading; IrregularError for anything else, without waiting, OSError.

    Without `follow` a link in its place is no regular file.
    """
    try:
        handle = os.open(path, os.O_RDONLY | _ALWAYS | (0 if follow else _NOFOLLOW))
    except OSError as error:
        if not follow and error.errno == errno.ELOOP:
            raise _irregular(path) from None
        if os.name == "nt" and os.path.isdir(path):
            raise _irregular(path) from None
        raise
    return _reader(handle, path)


def open_private(path: StrPath) -> BufferedReader:
    """A regular file that nobody but the owner of this process can have written, open for reading; PermissionError for
    another one, IrregularError, also for a link, OSError."""
    file = open_file(path, follow=False)
    if not is_private(os.fstat(file.fileno())):
        file.close()
        raise PermissionError(errno.EACCES, "others may have written it", os.fspath(path))
    return file


def open_installed(path: StrPath) -> BufferedReader:
    """A regular file that came with an installed distribution, open for reading; PermissionError for one that others
    can have written than those who could change this package itself, IrregularError, OSError."""
    file = open_file(path)
    if not _is_installed(os.fstat(file.fileno())):
        file.close()
        raise PermissionError(errno.EACCES, "others may have written it", os.fspath(path))
    return file


def open_below(folder: str, path: str) -> BufferedReader:
    """The regular file `path` below `folder`, both of them real paths, open for reading; IrregularError, OSError.

    Links that came into the way since the paths were resolved are not followed.
    """
    if os.open not in os.supports_dir_fd:
        return open_file(path)
    parts = os.path.relpath(path, folder).split(os.sep)
    if os.pardir in parts:
        raise ValueError(f"{path} is not below {folder}")
    handle = os.open(folder, _FOLDER)
    for place, part in enumerate(parts):
        kind = _FOLDER if place < len(parts) - 1 else os.O_RDONLY | _ALWAYS
        try:
            inner = os.open(part, kind | _NOFOLLOW, dir_fd=handle)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise _irregular(path) from None
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            os.close(handle)
        handle = inner
    return _reader(handle, path)


@contextlib.contextmanager
def open_folder(path: StrPath) -> Iterator[int]:
    """A handle of a folder, while the block lasts; OSError, also for a link."""
    handle = os.open(path, os.O_RDONLY | _NOFOLLOW | getattr(os, "O_DIRECTORY", 0) | _ALWAYS)
    try:
        yield handle
    finally:
        os.close(handle)


def open_shared(path: StrPath) -> FileIO:
    """The file of that name that processes of this user share, made where it is not there, to be locked or added to;
    PermissionError for one that others can have written or that has another name, too, IrregularError, OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _NOFOLLOW | _ALWAYS, PRIVATE)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _irregular(path)
        if not is_private(status) or status.st_nlink > 1:
            raise PermissionError(errno.EACCES, "it is not this user's alone", os.fspath(path))
        return FileIO(handle, "ab")
    except BaseException:
        os.close(handle)
        raise


def create(path: StrPath, mode: int = ORDINARY) -> None:
    """Make an empty file; FileExistsError where the name is taken, be it by a link that leads nowhere, OSError."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _ALWAYS, mode))


@contextlib.contextmanager
def replacing(path: StrPath, mode: int = ORDINARY, *, durable: bool = False) -> Iterator[BufferedWriter]:
    """A new file for the block to write, which takes the place of `path` as a whole once the block has ended.

    An older file stays as it is for whoever maps it; where the block or the system raises, also in its place, and
    nothing is left. What has that name already gives its restrictions: nobody may read or write the new file who might
    not the older one. `durable` waits for the disk. IrregularError for a name that leads to a folder, pipe or device,
    OSError.
    """
    target = os.fspath(path)
    mode = _no_wider(target, mode)
    draft = os.path.join(os.path.dirname(target), TEMPORARY + os.urandom(16).hex())
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _ALWAYS, mode)
    try:
        with _writer(handle) as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(draft, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


@contextlib.contextmanager
def scratch_folder(folder: StrPath) -> Iterator[str]:
    """A new folder of this user alone in another one, by its real path, which goes with what is in it when the block
    ends; OSError."""
    import shutil
    import tempfile  # which take a while, and few sessions write

    made = tempfile.mkdtemp(dir=folder, prefix=TEMPORARY)
    try:
        yield os.path.realpath(made)
    finally:
        for _ in range(2):  # the system may have lacked something just now, such as handles
            with contextlib.suppress(OSError):  # which comes from there even where it is asked to ignore errors
                shutil.rmtree(made)


def map_file(path: StrPath) -> memoryview:
    """The bytes of a regular file, mapped read-only; IrregularError, OSError."""
    with open_file(path) as file:
        return map_open_file(file.fileno(), path)


def read_file(path: StrPath) -> memoryview:
    """The bytes of a regular file, in memory; IrregularError, OSError."""
    with open_file(path) as file:
        return read_open_file(file)


def is_own(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to the owner of this process."""
    return os.name != "posix" or status.st_uid == os.getuid()


def is_private(status: os.stat_result) -> bool:
    """Whether only the owner of this process can have written the regular file."""
    return stat.S_ISREG(status.st_mode) and is_own(status) and (os.name != "posix" or not status.st_mode & 0o022)


def _is_installed(status: os.stat_result) -> bool:
    """Whether only this user, the system's, or who may write this package's own modules can have written a file.

    Where the user's mask lets groups write, installers make all files so.
    """
    if os.name != "posix":
        return True
    owners, groups = {os.getuid(), 0}, set()
    with contextlib.suppress(OSError):  # a program in one file has no modules on the disk
        own = os.stat(__file__)
        owners.add(own.st_uid)
        if own.st_mode & stat.S_IWGRP:
            groups.add(own.st_gid)
    by_group = bool(status.st_mode & stat.S_IWGRP) and status.st_gid not in groups
    return status.st_uid in owners and not by_group and not status.st_mode & stat.S_IWOTH


def _no_wider(target: str, mode: int) -> int:
    """The mode, less what the file of that name withholds, if there is one."""
    try:
        status = os.stat(target)
    except OSError:
        return mode
    except ValueError as error:  # a name with a null byte
        raise OSError(errno.EINVAL, str(error), target) from None
    if not stat.S_ISREG(status.st_mode):
        raise _irregular(target)
    return mode & (status.st_mode | PRIVATE)


def _reader(handle: int, path: StrPath) -> BufferedReader:
    """The file of a handle, which is closed where it is no regular one."""
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _irregular(path)
        return BufferedReader(FileIO(handle, "rb"))
    except BaseException:
        os.close(handle)
        raise


def _writer(handle: int) -> BufferedWriter:
    try:
        return BufferedWriter(FileIO(handle, "wb"))
    except BaseException:
        os.close(handle)
        raise


def _irregular(path: StrPath) -> IrregularError:
    return IrregularError(errno.EINVAL, "it is not a regular file", os.fspath(path))
