"""BART and models like it, with an encoder and a decoder."""

from __future__ import annotations

from typing import ClassVar

from sardonyx.transformers.onnx_model_bert import BertOnnxModel


class BartOnnxModel(BertOnnxModel):
    """The rules are those of `BertOnnxModel`; the defaults of the options are the family's."""

    model_type: ClassVar[str] = "bart"
