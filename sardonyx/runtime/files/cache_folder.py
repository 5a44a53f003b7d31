"""The folder of this package's own in which it keeps kernels, engines and figures of the machine.

It lies below the folder that the user names, which may hold anything else and stays as it is. Only its owner may write
to it, or nothing is kept there. Folders that are made carry the tag by which backups know caches.
"""

from __future__ import annotations

import contextlib
import os
import sys

from sardonyx.runtime.files.opening import PRIVATE, is_own, open_file, open_folder, replacing

VARIABLE = "SARDONYX_CACHE"
OFF = "off"
ENGINES = "engines"  # the folder below it that engines are kept in

_OWN = os.path.join("sardonyx", "kernels")
# https://bford.info/cachedir/
_TAG = "CACHEDIR.TAG"
_TAG_TEXT = b"Signature: 8a477f597d28d172789f06886806bc55\n# What sardonyx has compiled: it can go.\n"


def default_folder() -> str | None:
    """The package's own folder: below ``SARDONYX_CACHE``, else below the system's place for caches.

    None where ``SARDONYX_CACHE`` is ``off`` or empty, or where the user has no home: nothing is kept.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return None if chosen.strip().lower() in ("", OFF) else os.path.join(chosen, _OWN)
    base = _base()
    return None if base is None else os.path.join(base, _OWN)


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


def prepare_folder(folder: str) -> str:
    """Make the cache folder, or that of engines in it, for its owner alone; the reason where it cannot be used.

    A cache folder that was there stays as it is, unless it was made here: its tag says so, and it is closed again.
    """
    cache = os.path.dirname(folder) if os.path.basename(folder) == ENGINES else folder
    try:
        return _prepare(cache, cache) or (_prepare(folder, cache) if folder != cache else "")
    except OSError as error:
        return f"{folder} cannot be used: {error}"


def _prepare(folder: str, cache: str) -> str:
    """The same for a folder that is the cache or lies in it; OSError."""
    above = os.path.dirname(folder) or os.curdir
    _make_all(above)
    # Who may write beside a folder of this user can put another one, or a link, in its place.
    if not is_own(status := os.lstat(above)) and status.st_uid != 0:
        return f"{above} belongs to another user"
    try:
        os.mkdir(folder, 0o700)
        if folder == cache:
            with contextlib.suppress(OSError), replacing(os.path.join(folder, _TAG), PRIVATE) as file:
                file.write(_TAG_TEXT)
    except OSError:  # the system may have another reason to complain first than that it is there
        if not os.path.isdir(folder):
            raise
    status = os.stat(folder)
    if not is_own(status) or not is_own(os.lstat(folder)):
        return f"{folder} belongs to another user"
    if os.name == "posix" and status.st_mode & 0o022:
        if not _is_tagged(cache):
            return f"others can write to {folder}: take that permission from them, or remove it"
        with open_folder(folder) as handle:
            os.fchmod(handle, 0o700)
    return ""


def _make_all(folder: str) -> None:
    """Make a folder and those above it, as far as they are missing; OSError."""
    if not os.path.isdir(folder):
        if above := os.path.dirname(folder):
            _make_all(above)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o755)


def _is_tagged(folder: str) -> bool:
    """Whether a folder was made here."""
    with contextlib.suppress(OSError), open_file(os.path.join(folder, _TAG), follow=False) as file:
        return is_own(os.fstat(file.fileno())) and file.read(len(_TAG_TEXT)) == _TAG_TEXT
    return False
