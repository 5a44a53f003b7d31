"""The files that this package made in its cache folder: which they are, and how some of them go.

A file is one of them if its name and what it begins with say so, it is a regular one, and it belongs to the owner of
this process. Whatever else lies in the folder is not looked at and not touched.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from sardonyx.runtime.files.cache_folder import ENGINES, default_folder
from sardonyx.runtime.files.opening import TEMPORARY, StrPath, is_own, open_file

Kind = Literal["kernel", "engine", "trust_record", "misses", "machine", "draft", "lock"]

KERNEL_HEAD = b"SARDONYX KERNEL "
ENGINE_HEAD = b"SARDONYX ENGINE "
TRUST_RECORD_HEAD = b'{"digest": "'
MACHINE_HEAD = b'{\n "format": '
MISS = b"."

KERNEL, ENGINE, TRUST_RECORD, MISSES = ".o", ".engine", ".trust", ".missed"
LOCK = ".lock"

_KEPT_SHARE = 0.75  # of the most bytes, after a removal: room for a while
_DAY = 86400.0
_LOOKED_AT = 64

_KINDS: dict[str, tuple[Kind, bytes]] = {
    KERNEL: ("kernel", KERNEL_HEAD),
    ENGINE: ("engine", ENGINE_HEAD),
    TRUST_RECORD: ("trust_record", TRUST_RECORD_HEAD),
    MISSES: ("misses", MISS),
}
# Expressions that are compiled when a name is asked after, which few processes do.
_NAMED = r"[0-9a-f]{40}(\.[a-z]+)"
_MACHINE = r"machine-[0-9a-f]{16}\.json"
_LOCK_NAME = re.escape(TEMPORARY) + r"[0-9a-f]{40}" + re.escape(LOCK)
_DRAFT = re.escape(TEMPORARY) + r"[0-9a-z_]{8,32}"
_HEADS = (KERNEL_HEAD, ENGINE_HEAD, TRUST_RECORD_HEAD, MACHINE_HEAD)


class OwnFile(NamedTuple):
    """A file that this package made: its path, what it is, its bytes, and when it was used last in seconds since the
    epoch."""

    path: str
    kind: Kind
    nbytes: int
    used: float


def own_files(folder: StrPath | None = None) -> list[OwnFile]:
    """The files in the cache folder (None: the user's), in the order of their paths; none where there is no folder.

    Each is opened, and read as far as its beginning.
    """
    root = default_folder() if folder is None else os.fspath(folder)
    if root is None:
        return []
    found = []
    for place in (root, os.path.join(root, ENGINES)):
        found += [one for path, _ in _listed(place) if (one := own_file(path)) is not None]
    return sorted(found)


def remove_own_files(files: Iterable[OwnFile]) -> list[OwnFile]:
    """Remove these files, as far as they are still what they were listed as; those that were removed.

    Processes that use them go on: they have them in memory, or make them again.
    """
    return [one for one in files if remove_own(one.path)]


def own_file(path: str) -> OwnFile | None:
    """What this package made under that path; None where that is something else, or nothing."""
    kind = _kind_of(os.path.basename(path))
    if kind is None:
        return None
    with contextlib.suppress(OSError), open_file(path, follow=False) as file:
        status = os.fstat(file.fileno())
        if is_own(status) and _begins(os.path.basename(path), kind, file.read(_LOOKED_AT)):
            return OwnFile(path, kind, status.st_size, status.st_mtime)
    return None


def remove_own(path: str) -> bool:
    """Remove the file if this package made it; whether it did and that was possible."""
    if own_file(path) is None:
        return False
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def bound_folder(folder: str, suffix: str, most: int) -> None:
    """Remove what torn writes left, and of the files with this suffix those used longest ago where all of them take
    more than `most` bytes; OSError."""
    now = time.time()
    kind = _KINDS[suffix][0]
    entries: list[tuple[float, int, str]] = []
    for path, status in _listed(folder):
        found = _kind_of(os.path.basename(path))
        if found in ("draft", "lock"):
            if now - status.st_mtime > _DAY:
                remove_own(path)
        elif found == kind:
            entries.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    if total <= most:
        return
    for _, size, path in sorted(entries):
        if total <= most * _KEPT_SHARE:
            break
        if remove_own(path) or not os.path.lexists(path):  # another process was quicker
            total -= size


def _listed(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """The names of a folder that this package may have given; OSError."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as found:
        for item in found:
            if _kind_of(item.name) is not None:
                with contextlib.suppress(OSError):  # somebody else removed it
                    yield item.path, item.stat(follow_symlinks=False)


def _kind_of(name: str) -> Kind | None:
    """What a file of that name is if this package made it."""
    if (found := re.fullmatch(_NAMED, name)) is not None:
        return _KINDS[found[1]][0] if found[1] in _KINDS else None
    if re.fullmatch(_MACHINE, name):
        return "machine"
    if re.fullmatch(_LOCK_NAME, name):
        return "lock"
    return "draft" if re.fullmatch(_DRAFT, name) else None


def _begins(name: str, kind: Kind, text: bytes) -> bool:
    """Whether the contents of a file begin as those of its kind."""
    if kind == "lock":
        return not text
    if kind == "draft":  # which may have been torn anywhere, or not be on the disk yet
        return not any(text) or any(text.startswith(head) or head.startswith(text) for head in _HEADS)
    if kind == "machine":
        return text.startswith(MACHINE_HEAD)
    if kind == "misses":
        return not text.strip(MISS)
    if kind == "trust_record":
        return text.startswith(TRUST_RECORD_HEAD + name[:40].encode())
    return text.startswith(KERNEL_HEAD if kind == "kernel" else ENGINE_HEAD)
