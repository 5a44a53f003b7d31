"""Saves the files of a model's parts, with the files that hold their weights."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from sardonyx import errors
from sardonyx.graph.load import external_locations
from sardonyx.models.folders.companions import copy_file
from sardonyx.models.folders.staging import final_place


def save_parts(paths: Iterable[Path], folder: Path) -> None:
    """Copy ONNX files into a folder, and beside them what they have their weights in, where the models look for that.

    In the stage of a folder, a file that lies in its final place already is not copied.
    `errors.InvalidArgument` for a model whose weights are not below its folder, and for two files of one name.
    """
    sources: dict[Path, Path] = {}
    for path in dict.fromkeys(paths):
        for source, name in _files(path, folder):
            target = folder / name
            other = sources.setdefault(target, source)
            if not other.samefile(source):
                raise errors.InvalidArgument(
                    f"{other} and {source} cannot be saved into one folder: both would be {name}. Give one of them "
                    "another name first"
                )
    for target, source in sources.items():
        place = final_place(target)
        if not (place.exists() and place.samefile(source)):
            copy_file(source, target)


def _files(path: Path, folder: Path) -> Iterator[tuple[Path, str]]:
    """A model and what it has its weights in: each with its name in the folder."""
    for location in external_locations(path):
        place = os.path.normpath(location)
        if os.path.isabs(place) or place.startswith(os.pardir):
            raise errors.InvalidArgument(
                f"{path} has its weights in {location}, which is not below its folder: they would be written outside "
                f"of {final_place(folder)}. Save the model with its weights in one file beside it first"
            )
        yield path.parent / place, place
    yield path, path.name
