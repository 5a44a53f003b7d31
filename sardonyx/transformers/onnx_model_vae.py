"""The decoder from latent images to images of diffusion models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sardonyx.transformers.onnx_model_unet import UnetOnnxModel


class VaeOnnxModel(UnetOnnxModel):
    """As `UnetOnnxModel`, but with Attention that holds its projections."""

    model_type: ClassVar[str] = "vae"
    left_out: ClassVar[frozenset[str]] = frozenset({"EmbedLayerNormFusion"})
    counted: ClassVar[Sequence[str]] = ("Attention", "GroupNorm", "SkipGroupNorm", "NhwcConv")
