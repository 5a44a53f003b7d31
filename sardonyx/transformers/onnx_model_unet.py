"""The denoising network of diffusion models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sardonyx.transformers.onnx_model_bert import BertOnnxModel


class UnetOnnxModel(BertOnnxModel):
    """Attention stays MultiHeadAttention, between images and texts as within either.

    GroupNorm, SkipGroupNorm, BiasSplitGelu, BiasAdd and NhwcConv, which onnxruntime has for GPUs alone, are not made.
    """

    model_type: ClassVar[str] = "unet"
    left_out: ClassVar[frozenset[str]] = frozenset({"AttentionProjectionFusion", "EmbedLayerNormFusion"})
    counted: ClassVar[Sequence[str]] = (
        "Attention",
        "MultiHeadAttention",
        "LayerNormalization",
        "SkipLayerNormalization",
        "BiasSplitGelu",
        "GroupNorm",
        "SkipGroupNorm",
        "NhwcConv",
        "BiasAdd",
    )

    def fuse_multi_head_attention(self) -> None:
        """Make MultiHeadAttention."""
        self.fuse_attention()
