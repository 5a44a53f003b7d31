"""PyTorch models of transformers as ONNX files, by torch's exporter: `export_model`."""

from __future__ import annotations

from sardonyx.models.export.exporting import Exported, export_model
from sardonyx.models.export.loading import DTYPES
from sardonyx.models.export.tasks import AUTO_CLASSES

TASKS = tuple(AUTO_CLASSES)

__all__ = ["DTYPES", "Exported", "TASKS", "export_model"]
