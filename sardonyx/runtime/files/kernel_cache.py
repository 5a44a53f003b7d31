"""Object code of kernels on disk, one file each, in a directory that only the user can read.

An entry is trusted only if its checksum and its whole key agree with what is asked for, and if nobody else can have
written it; anything else counts as absent and is written anew. Files are replaced in one step, so that readers see
an old or a new entry, never half of one.

The folder does not grow without end: the first process that adds to it after it passed `MOST_BYTES` removes what was
used longest ago. Whoever uses such an entry meanwhile has it in memory already, or compiles it again.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time

from sardonyx.runtime.files.digest import sha256

StrPath = str | os.PathLike[str]

_MAGIC = b"SARDONYX KERNEL 1\n"
_DIGEST_BYTES = 32

MOST_BYTES = 512 << 20
_KEPT_SHARE = 0.75  # of the bytes above, after the removal: room for a while
_DAY = 86400.0
TEMPORARY = ".new-"

OFF = "off"


def default_folder() -> str | None:
    """Where the user's caches live: ``SARDONYX_CACHE``, else the system's place for caches.

    None where ``SARDONYX_CACHE`` is ``off`` or empty, or where the user has no home: nothing is kept.
    """
    chosen = os.environ.get("SARDONYX_CACHE")
    if chosen is not None:
        return None if chosen.strip().lower() in ("", OFF) else chosen
    base = _base()
    return None if base is None else os.path.join(base, "sardonyx", "kernels")


def _base() -> str | None:
    """The system's place for caches; None where it lies in a home that does not exist, as in some containers."""
    if sys.platform == "win32":
        return os.environ.get("LOCALAPPDATA") or _in_home(os.path.join("AppData", "Local"))
    if sys.platform == "darwin":
        return _in_home("Library/Caches")
    return os.environ.get("XDG_CACHE_HOME") or _in_home(".cache")


def _in_home(path: str) -> str | None:
    found = os.path.expanduser(os.path.join("~", path))
    return None if found.startswith("~") else found


class KernelCache:
    """A folder of compiled kernels. Without a folder that can be used, it keeps nothing and finds nothing."""

    def __init__(self, folder: StrPath | None) -> None:
        self.folder = None if folder is None else os.fspath(folder)
        self.problem = "the cache is off"  # why the folder is not used; empty where it is
        self._is_bounded = False
        if self.folder is not None:
            self.problem = prepare_folder(self.folder)
            if self.problem:
                self.folder = None

    def find(self, key: str) -> bytes | None:
        """The object code stored for `key`, or None."""
        if self.folder is None:
            return None
        try:
            with open(os.path.join(self.folder, _file_name(key)), "rb") as file:
                status = os.fstat(file.fileno())
                if not is_private(status):
                    return None
                text = file.read()
                _mark_used(file.name, status)
        except OSError:
            return None
        return _checked(text, key)

    def store(self, key: str, code: bytes) -> None:
        """Keep object code; a disk that is full or read-only is no error, only no cache."""
        if self.folder is None:
            return
        import tempfile  # which takes a while, and few processes write

        body = _MAGIC + len(key.encode()).to_bytes(4, "little") + key.encode() + code
        with contextlib.suppress(OSError):
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=TEMPORARY)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(body + sha256(body).digest())
                os.replace(temporary, os.path.join(self.folder, _file_name(key)))
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        if not self._is_bounded:
            self._is_bounded = True
            with contextlib.suppress(OSError):
                bound_folder(self.folder, ".o", MOST_BYTES)

    def drop(self, key: str) -> None:
        """Forget an entry, for example one that the linker refused."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.folder, _file_name(key)))


def _mark_used(path: str, status: os.stat_result) -> None:
    """Let the time of an entry say when it was used, to the day."""
    if time.time() - status.st_mtime > _DAY:
        with contextlib.suppress(OSError):
            os.utime(path)


def bound_folder(folder: str, suffix: str, most: int) -> None:
    """Remove what torn writes left, and of the files with this suffix those used longest ago where all of them take
    more than `most` bytes."""
    entries: list[tuple[float, int, str]] = []
    now = time.time()
    with os.scandir(folder) as found:
        for item in found:
            try:
                status = item.stat(follow_symlinks=False)
            except OSError:  # somebody else removed it
                continue
            if item.name.startswith(TEMPORARY):
                if now - status.st_mtime > _DAY:
                    _remove(item.path)
            elif item.name.endswith(suffix):
                entries.append((status.st_mtime, status.st_size, item.path))
    total = sum(size for _, size, _ in entries)
    if total <= most:
        return
    for _, size, path in sorted(entries):
        if total <= most * _KEPT_SHARE:
            break
        _remove(path)
        total -= size


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _checked(text: bytes, key: str) -> bytes | None:
    """The code inside an entry; None where a byte of it is wrong or it belongs to another key."""
    body, digest = text[:-_DIGEST_BYTES], text[-_DIGEST_BYTES:]
    if not body.startswith(_MAGIC) or sha256(body).digest() != digest:
        return None
    start = len(_MAGIC) + 4
    length = int.from_bytes(body[len(_MAGIC) : start], "little")
    if body[start : start + length] != key.encode():
        return None
    return body[start + length :]


def _file_name(key: str) -> str:
    return sha256(key.encode()).hexdigest()[:40] + ".o"


def prepare_folder(folder: str) -> str:
    """Make the folder, readable by its owner alone; the reason where it cannot be used."""
    try:
        make_folder(folder)
        status = os.stat(folder)
        if not _is_own(status):
            return f"{folder} belongs to another user"
        if os.name == "posix" and status.st_mode & 0o077:
            os.chmod(folder, 0o700)
    except OSError as error:
        return f"{folder} cannot be used: {error}"
    return ""


def make_folder(folder: str) -> None:
    """Make a folder that is its owner's alone, in one that is made as any other; OSError."""
    try:
        try:
            os.mkdir(folder, 0o700)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(folder), exist_ok=True)
            os.mkdir(folder, 0o700)  # once: in some places, as below /proc, there is never such a file
    except OSError:  # the system may have another reason to complain first, as in `os.makedirs`
        if not os.path.isdir(folder):
            raise


def _is_own(status: os.stat_result) -> bool:
    return os.name != "posix" or status.st_uid == os.getuid()


def is_private(status: os.stat_result) -> bool:
    """Whether only the owner of this process can have written the file."""
    if os.name != "posix":
        return True
    return status.st_uid == os.getuid() and not status.st_mode & 0o022 and stat.S_ISREG(status.st_mode)
