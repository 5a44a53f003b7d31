"""Saves the file of a part of a model, with the files that hold its weights."""

from __future__ import annotations

import os
from pathlib import Path

from sardonyx import errors
from sardonyx.graph.load import external_locations
from sardonyx.models.folders.companions import copy_file


def save_part(path: Path, folder: Path) -> None:
    """Copy an ONNX file into a folder, and beside it what it has its weights in, where the model looks for that.

    `errors.InvalidArgument` for a model whose weights are not below its folder.
    """
    for location in external_locations(path):
        place = os.path.normpath(location)
        if os.path.isabs(place) or place.startswith(os.pardir):
            raise errors.InvalidArgument(
                f"{path} has its weights in {location}, which is not below its folder: they would be written outside "
                f"of {folder}. Save the model with its weights in one file beside it first"
            )
        copy_file(path.parent / place, folder / place)
    copy_file(path, folder / path.name)
