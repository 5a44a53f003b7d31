"""Segment Anything 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sardonyx.transformers.onnx_model_bert import BertOnnxModel


class Sam2OnnxModel(BertOnnxModel):
    """Attention stays MultiHeadAttention, and activations have their bias outside."""

    model_type: ClassVar[str] = "sam2"
    left_out: ClassVar[frozenset[str]] = frozenset(
        {"AttentionProjectionFusion", "BiasGeluFusion", "EmbedLayerNormFusion"}
    )
    counted: ClassVar[Sequence[str]] = ("MultiHeadAttention", "LayerNormalization", "SkipLayerNormalization")

    def fuse_multi_head_attention(self) -> None:
        """Make MultiHeadAttention."""
        self.fuse_attention()
