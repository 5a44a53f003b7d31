"""The text encoder of CLIP, as diffusion models have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sardonyx.transformers.onnx_model_bert import BertOnnxModel


class ClipOnnxModel(BertOnnxModel):
    """Without fused embeddings."""

    model_type: ClassVar[str] = "clip"
    counted: ClassVar[Sequence[str]] = (
        "Attention",
        "FastGelu",
        "Gelu",
        "LayerNormalization",
        "QuickGelu",
        "BiasGelu",
        "SkipLayerNormalization",
    )
