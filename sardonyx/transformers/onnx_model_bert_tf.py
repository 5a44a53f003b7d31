"""BERT as tf2onnx writes it."""

from __future__ import annotations

from typing import ClassVar

from sardonyx.transformers.onnx_model_bert import BertOnnxModel


class BertOnnxModelTF(BertOnnxModel):
    """The rules are those of `BertOnnxModel`, which do not look at who exported a model."""

    model_type: ClassVar[str] = "bert_tf"
