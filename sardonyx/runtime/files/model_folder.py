"""Which files a model may name: those in its folder, and where the model is a link, those that were stored with it.

Caches of downloads keep contents in a store and give them names by links. Those of the Hugging Face hub have the names
in `models--<name>/snapshots/<revision>`, and the store in `blobs` beside `snapshots`, or once for all models in `blobs`
of the cache itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import BufferedReader

from sardonyx.runtime.files.opening import StrPath, open_below
from sardonyx.runtime.forks import cached_property

_REPOSITORIES = ("models--", "datasets--", "spaces--")
_STORE = "blobs"
_MARKER = ".huggingface-shared-blobs"


class ModelFolder:
    """The folder of a model, of the model's file, where it has one, and those `others` that the caller allows."""

    def __init__(self, folder: StrPath, model: StrPath | None = None, others: Sequence[StrPath] = ()) -> None:
        self._folder, self._model, self._others = folder, model, others

    @cached_property
    def path(self) -> str:
        """The real path of the folder; OSError where the working directory counts and is gone."""
        return os.path.realpath(self._folder)

    @cached_property
    def stores(self) -> list[str]:
        """The folders into which links in this one may lead: that of the file which the model leads to, and of the
        cache that has both. Their paths are real ones."""
        if self._model is None:
            return []
        file = os.path.realpath(self._model)
        stores = _hub_stores(self.path)
        found = [os.path.dirname(file), *(stores if any(is_below(store, file) for store in stores) else ())]
        return [store for store in found if store != self.path]

    @property
    def is_of_cache(self) -> bool:
        """Whether the folder is in a snapshot of a cache of the Hugging Face hub."""
        return bool(_hub_stores(self.path))

    @cached_property
    def others(self) -> list[str]:
        """The real paths of the folders that the caller allows."""
        return [os.path.realpath(folder) for folder in self._others]

    def find(self, location: str) -> tuple[str, str] | None:
        """Of the file that a model calls `location`: the folder that holds it, and its real path there; None where the
        model may not name it. Whether there is such a file, does not matter.

        What leads out of the folder by itself, not by links in it, is not taken from a store, but from a folder that
        the caller allows. ValueError for what cannot be a path.
        """
        if os.path.isabs(location) or location.startswith(("/", "\\")):
            return None
        resolved = os.path.realpath(os.path.join(self.path, location))
        if is_below(self.path, resolved):
            return self.path, resolved
        climbs = os.path.normpath(location).split(os.sep)[0] == os.pardir
        places = self.others if climbs else [*self.stores, *self.others]
        return next(((place, resolved) for place in places if is_below(place, resolved)), None)

    def has(self, file: StrPath) -> bool:
        """Whether a file is really in the folder, or in a store of the hub's cache that the folder is in."""
        real = os.path.realpath(file)
        return any(is_below(place, real) for place in (self.path, *_hub_stores(self.path)))


def is_stored(file: str) -> bool:
    """Whether a file is in a store of a cache of the Hugging Face hub, by the names of the folders on its real path.

    The store of a whole cache has a file that marks it; the one of a repository is a folder of the repository's.
    """
    parts = file.split(os.sep)
    stores = [place for place, name in enumerate(parts[:-1]) if name == _STORE]
    return any(
        parts[place - 1].startswith(_REPOSITORIES) or os.path.exists(os.sep.join([*parts[: place + 1], _MARKER]))
        for place in stores
        if place
    )


def open_found(found: tuple[str, str]) -> BufferedReader:
    """The file that `ModelFolder.find` has found, open for reading; IrregularError, OSError."""
    return open_below(*found)


def is_below(folder: str, path: str) -> bool:
    """Whether a path is in a folder, both of them real ones."""
    try:
        return os.path.commonpath([folder, path]) == folder
    except ValueError:  # they are on two drives
        return False


def _hub_stores(folder: str) -> list[str]:
    """The stores of the cache of the Hugging Face hub in which a snapshot has this folder; none for other folders."""
    parts = folder.split(os.sep)
    for place in range(1, len(parts) - 2):
        if parts[place].startswith(_REPOSITORIES) and parts[place + 1] == "snapshots":
            cache = os.sep.join(parts[:place])
            return [os.path.join(cache, parts[place], _STORE), os.path.join(cache, _STORE)]
    return []
