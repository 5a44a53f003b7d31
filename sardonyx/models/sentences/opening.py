"""Session and files of a model that makes vectors or scores: from a folder or the hub, exported if it must be."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sardonyx.log import Logger
from sardonyx.models.folders import layout
from sardonyx.models.folders.json_files import Section
from sardonyx.models.folders.model_files import ModelFiles
from sardonyx.models.folders.opening import open_files
from sardonyx.models.part import Part
from sardonyx.models.sessions import SessionSettings

_LOG = Logger("models")


@dataclass
class OpenedModel:
    """A model: its files, its session, and the folder that it was exported into, which goes with it."""

    files: ModelFiles
    part: Part
    temporary: TemporaryDirectory[str] | None = None


def open_model(
    model_id: str | os.PathLike[str],
    task: str,
    settings: SessionSettings,
    file_name: str | None,
    export: bool,
    subfolder: str,
    hub: dict[str, Any],
) -> OpenedModel:
    """The model of a folder or an id of the hub.

    Where there is no ONNX file, and with `export`, the PyTorch model is exported for a task. Errors as of
    `ORTModel.from_pretrained`.
    """
    files, named = open_files(model_id, subfolder, **hub)
    if not export and (files.onnx_names or files.weights_name is None):
        path = files.path(files.require(layout.MODEL, file_name or named))
        return OpenedModel(files, settings.open(path))
    if not export:
        _LOG.warning(f"There is no ONNX file in {files.where}: the PyTorch model is exported", "export")
    from sardonyx.models.folders.exported import export_files

    folder = TemporaryDirectory(prefix="sardonyx-model-")
    made = export_files(files, Path(folder.name), task)
    return OpenedModel(files, settings.open(made.path(made.require(layout.MODEL))), folder)


def read_config(files: ModelFiles, name: str) -> Section:
    """A small JSON file of a model; an empty object where there is no such file."""
    found = files.find_name(name)
    return Section({}, name) if found is None else files.read_json(found)
