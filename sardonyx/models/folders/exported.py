"""A model without ONNX files: its PyTorch weights are exported."""

from __future__ import annotations

from pathlib import Path

from sardonyx.models.folders.companions import companions, copy_file
from sardonyx.models.folders.model_files import ModelFiles


def export_files(files: ModelFiles, destination: Path, task: str, *, trust_remote_code: bool = False) -> ModelFiles:
    """The files of the ONNX model that is made of the PyTorch weights among `files`, in an empty folder.

    `errors.NoSuchFile` where there are no such weights, `errors.Fail` where they are there by half, and what the export
    itself raises.
    """
    source = files.weights_folder()
    from sardonyx.models.export import export_model

    export_model(source, destination, task, trust_remote_code=trust_remote_code)
    for path, name in companions(files):
        copy_file(path, destination / name)
    return ModelFiles.of_folder(destination)
