"""A folder with a model's files."""

from __future__ import annotations

from pathlib import Path


class ModelFiles:
    """The files of a model in a folder of this machine; `subfolder` is where its ONNX files are looked for."""

    def __init__(self, path: Path, subfolder: str = "") -> None:
        self.path = path
        self.subfolder = subfolder
