"""TNLR, whose attention has relative positions."""

from __future__ import annotations

from typing import ClassVar

from sardonyx.transformers.onnx_model_bert import BertOnnxModel


class TnlrOnnxModel(BertOnnxModel):
    """The rules are those of `BertOnnxModel`; the defaults of the options are the family's."""

    model_type: ClassVar[str] = "tnlr"
