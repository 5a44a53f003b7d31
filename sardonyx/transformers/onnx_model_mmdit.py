"""Multimodal diffusion transformers: Stable Diffusion 3, Flux and models like them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sardonyx.transformers.onnx_model_bert import BertOnnxModel


class MmditOnnxModel(BertOnnxModel):
    """Normalisations, activations and MultiHeadAttention; residuals stay apart."""

    model_type: ClassVar[str] = "mmdit"
    left_out: ClassVar[frozenset[str]] = frozenset(
        {
            "AttentionProjectionFusion",
            "BiasGeluFusion",
            "BiasSkipLayerNormFusion",
            "EmbedLayerNormFusion",
            "SkipLayerNormFusion",
            "SkipSimplifiedLayerNormFusion",
        }
    )
    counted: ClassVar[Sequence[str]] = (
        "FastGelu",
        "MultiHeadAttention",
        "LayerNormalization",
        "SimplifiedLayerNormalization",
    )

    def fuse_multi_head_attention(self) -> None:
        """Make MultiHeadAttention."""
        self.fuse_attention()
