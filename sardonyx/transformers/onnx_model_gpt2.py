"""GPT-2 and other models with decoders alone."""

from __future__ import annotations

from typing import ClassVar

from sardonyx.transformers.onnx_model_bert import BertOnnxModel


class Gpt2OnnxModel(BertOnnxModel):
    """The rules are those of `BertOnnxModel`: the causal mask and the past belong to attention there, too."""

    model_type: ClassVar[str] = "gpt2"
