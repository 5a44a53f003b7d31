"""Phi-2."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar

from sardonyx.transformers.onnx_model_bert import BertOnnxModel

logger = logging.getLogger(__name__)


class PhiOnnxModel(BertOnnxModel):
    """One normalisation in a layer, whose result attention and activation both read."""

    model_type: ClassVar[str] = "phi"
    counted: ClassVar[Sequence[str]] = (
        "Attention",
        "MultiHeadAttention",
        "GroupQueryAttention",
        "PagedAttention",
        "Gelu",
        "BiasGelu",
        "FastGelu",
        "LayerNormalization",
        "SkipLayerNormalization",
    )

    def is_fully_optimized(self, fused_op_count: Mapping[str, int] | None = None) -> bool:
        """Whether every layer has attention, an activation and a normalisation."""
        counts = self.get_fused_operator_statistics() if fused_op_count is None else fused_op_count
        attention = sum(count for name, count in counts.items() if name.endswith("Attention"))
        activations = sum(count for name, count in counts.items() if name.endswith("Gelu"))
        normalised = sum(count for name, count in counts.items() if name.endswith("LayerNormalization"))
        if attention == 0:
            logger.warning("Attention (or MultiHeadAttention) not fused")
        return attention > 0 and attention == activations and normalised >= attention
