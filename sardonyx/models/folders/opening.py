"""From what a caller names, a folder, a file or an id of the hub, to the files of a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sardonyx import errors
from sardonyx.graph.other_files import similar_names
from sardonyx.models.folders.model_files import ModelFiles


def open_files(model_id: str | os.PathLike[str], subfolder: str = "", **hub: Any) -> tuple[ModelFiles, str | None]:
    """The files of a model, and the name of its ONNX file where the caller named one.

    `hub` is what `hub.open_repository` takes. `errors.NoSuchFile` for a path where nothing is; `errors.InvalidArgument`
    for what is neither a path nor an id.
    """
    if not isinstance(model_id, (str, os.PathLike)):
        raise errors.InvalidArgument(
            f"A model is named by a path or an id of the hub, not by {type(model_id).__name__}"
        )
    name = os.fspath(model_id)
    if not name or "\0" in name:
        raise errors.InvalidArgument(f"{name!r} is neither a path nor an id of the hub")
    if not isinstance(subfolder, str):
        raise errors.InvalidArgument(f"subfolder is the name of a folder, and not {subfolder!r:.60}")
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            return ModelFiles.of_folder(path, subfolder), None
    except (OSError, RuntimeError) as error:  # too long a name, a home of nobody
        raise errors.InvalidArgument(f"{name:.60} is neither a path nor an id of the hub: {error!s:.200}") from None
    if path.is_file():
        if path.suffix == ".onnx":
            return ModelFiles.of_folder(path.parent, subfolder), path.name
        raise errors.InvalidArgument(f"{path} is a file and no ONNX model: name the folder that the model is in")
    if path.exists():
        raise errors.InvalidArgument(f"{path} is neither a folder nor a file: name the folder that the model is in")
    if not isinstance(model_id, str) or _is_path(name):
        raise errors.NoSuchFile(f"There is no folder {path}.{similar_names(os.fspath(path))}")
    from sardonyx.models.folders.hub import open_repository

    return open_repository(name, subfolder=subfolder, **hub), None


def _is_path(name: str) -> bool:
    """Whether a name can only be a path: ids of the hub have one slash at most, and no such beginnings."""
    return name.startswith((".", "/", "~", "\\")) or os.path.isabs(name) or name.count("/") > 1 or name.endswith("/")
