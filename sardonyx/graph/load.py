"""From a file, bytes or a ModelProto to a model whose weights stay where they are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from sardonyx import errors

Source = str | os.PathLike[str] | bytes | onnx.ModelProto


@dataclass(frozen=True)
class LoadedModel:
    """A model as it was written, before any rewrite."""

    model: ir.Model
    path: Path | None  # None for a model given as bytes or as a ModelProto


def load_model(source: Source) -> LoadedModel:
    """Load a model; see the errors that `sardonyx.errors` names."""
    if isinstance(source, onnx.ModelProto):
        return LoadedModel(ir.serde.deserialize_model(source), None)
    if isinstance(source, bytes):
        return LoadedModel(ir.serde.deserialize_model(onnx.ModelProto.FromString(source)), None)
    path = Path(source)
    if not path.exists():
        raise errors.NoSuchFile(f"Load model from {path} failed:Load model {path} failed. File doesn't exist")
    return LoadedModel(ir.load(path), path)
