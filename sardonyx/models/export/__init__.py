"""PyTorch models of transformers as ONNX files, by torch's exporter: `export_model`."""

from __future__ import annotations

from sardonyx.models.export.exporting import Exported, export_model

__all__ = ["Exported", "export_model"]
