"""Conformer encoders of speech models."""

from __future__ import annotations

from typing import ClassVar

from sardonyx.transformers.onnx_model_bert import BertOnnxModel


class ConformerOnnxModel(BertOnnxModel):
    """The rules are those of `BertOnnxModel`; the defaults of the options are the family's."""

    model_type: ClassVar[str] = "conformer"
