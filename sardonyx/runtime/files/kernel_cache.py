"""Object code of kernels on disk, one file each, in a folder that only the user can write to.

An entry is trusted only if its checksum and its whole key agree with what is asked for, and if nobody else can have
written it; anything else counts as absent and is written anew. Files are replaced in one step, so that readers see
an old or a new entry, never half of one.

The folder does not grow without end: the first process that adds to it after it passed `MOST_BYTES` removes what was
used longest ago. Whoever uses such an entry meanwhile has it in memory already, or compiles it again.
"""

from __future__ import annotations

import contextlib
import os
import time

from sardonyx.runtime.files.cache_folder import prepare_folder
from sardonyx.runtime.files.digest import sha256
from sardonyx.runtime.files.opening import PRIVATE, StrPath, open_private, replacing
from sardonyx.runtime.files.own_files import KERNEL, KERNEL_HEAD, bound_folder, remove_own

_MAGIC = KERNEL_HEAD + b"1\n"
_DIGEST_BYTES = 32

MOST_BYTES = 512 << 20
_DAY = 86400.0


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
            with open_private(os.path.join(self.folder, _file_name(key))) as file:
                code = opened(file.read(), key)
                if code is not None:
                    _mark_used(file.fileno())
                return code
        except OSError:
            return None

    def store(self, key: str, code: bytes) -> None:
        """Keep object code; a disk that is full or read-only is no error, only no cache."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError), replacing(os.path.join(self.folder, _file_name(key)), PRIVATE) as file:
            file.write(sealed(key, code))
        if not self._is_bounded:
            self._is_bounded = True
            with contextlib.suppress(OSError):
                bound_folder(self.folder, KERNEL, MOST_BYTES)

    def drop(self, key: str) -> None:
        """Forget an entry, for example one that the linker refused."""
        if self.folder is not None:
            remove_own(os.path.join(self.folder, _file_name(key)))


def _mark_used(handle: int) -> None:
    """Let the time of an entry say when it was used, to the day."""
    if time.time() - os.fstat(handle).st_mtime > _DAY:
        with contextlib.suppress(OSError):
            os.utime(handle)


def sealed(key: str, code: bytes) -> bytes:
    """An entry: the code of a kernel with its whole key and a digest."""
    body = _start_of(key) + code
    return body + sha256(body).digest()


def opened(text: bytes, key: str) -> bytes | None:
    """The code inside an entry; None where a byte of it is wrong or it belongs to another key."""
    body, digest = text[:-_DIGEST_BYTES], text[-_DIGEST_BYTES:]
    if sha256(body).digest() != digest:
        return None
    start = _start_of(key)
    return body[len(start) :] if body.startswith(start) else None


def _start_of(key: str) -> bytes:
    """What the entry of a key begins with; its code follows."""
    text = key.encode()
    return _MAGIC + len(text).to_bytes(4, "little") + text


def _file_name(key: str) -> str:
    return short_digest(key).hex() + KERNEL


def short_digest(key: str) -> bytes:
    """What an entry is found by, 20 bytes."""
    return sha256(key.encode()).digest()[:20]
