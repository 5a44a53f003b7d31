"""Object code of kernels on disk, one file each, in a directory that only the user can read.

An entry is trusted only if its checksum and its whole key agree with what is asked for, and if nobody else can have
written it; anything else counts as absent and is written anew. Files are replaced in one step, so that readers see
an old or a new entry, never half of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import tempfile
from pathlib import Path

_MAGIC = b"SARDONYX KERNEL 1\n"
_DIGEST_BYTES = 32


def default_folder() -> Path:
    """Where the user's caches live: ``SARDONYX_CACHE``, else the system's place for caches."""
    chosen = os.environ.get("SARDONYX_CACHE")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "sardonyx" / "kernels"


class KernelCache:
    """A folder of compiled kernels. Without a folder that can be used, it keeps nothing and finds nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.problem = ""  # why the folder is not used
        if folder is not None:
            self.problem = _prepare(folder)
            if self.problem:
                self.folder = None

    def find(self, key: str) -> bytes | None:
        """The object code stored for `key`, or None."""
        if self.folder is None:
            return None
        try:
            with (self.folder / _file_name(key)).open("rb") as file:
                if not is_private(os.fstat(file.fileno())):
                    return None
                text = file.read()
        except OSError:
            return None
        return _checked(text, key)

    def store(self, key: str, code: bytes) -> None:
        """Keep object code; a disk that is full or read-only is no error, only no cache."""
        if self.folder is None:
            return
        body = _MAGIC + len(key.encode()).to_bytes(4, "little") + key.encode() + code
        with contextlib.suppress(OSError):
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(body + hashlib.sha256(body).digest())
                os.replace(temporary, self.folder / _file_name(key))
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise

    def drop(self, key: str) -> None:
        """Forget an entry, for example one that the linker refused."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                (self.folder / _file_name(key)).unlink()


def _checked(text: bytes, key: str) -> bytes | None:
    """The code inside an entry; None where a byte of it is wrong or it belongs to another key."""
    body, digest = text[:-_DIGEST_BYTES], text[-_DIGEST_BYTES:]
    if not body.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
        return None
    start = len(_MAGIC) + 4
    length = int.from_bytes(body[len(_MAGIC) : start], "little")
    if body[start : start + length] != key.encode():
        return None
    return body[start + length :]


def _file_name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:40] + ".o"


def _prepare(folder: Path) -> str:
    """Make the folder, readable by its owner alone; the reason where it cannot be used."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if not _is_own(status):
            return f"{folder} belongs to another user"
        if os.name == "posix" and status.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        return f"{folder} cannot be used: {error}"
    return ""


def _is_own(status: os.stat_result) -> bool:
    return os.name != "posix" or status.st_uid == os.getuid()


def is_private(status: os.stat_result) -> bool:
    """Whether only the owner of this process can have written the file."""
    if os.name != "posix":
        return True
    return status.st_uid == os.getuid() and not status.st_mode & 0o022 and stat.S_ISREG(status.st_mode)
