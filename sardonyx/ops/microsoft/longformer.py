"""LongformerAttention: a sliding window of local attention, and a few tokens that attend globally."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from sardonyx.ops.framework.operator import operator
from sardonyx.ops.microsoft.attention_core import attend, default_scale, merge_heads, split_heads
from sardonyx.ops.microsoft.rules import DOMAIN, Array, SameAsFirst, wide


@operator("LongformerAttention", domain=DOMAIN)
class LongformerAttention(SameAsFirst):
    """Self-attention of Longformer (Beltagy, Peters and Cohan 2020) over (batch, length, width).

    A local token attends to the `window` tokens before and behind it and to all global tokens; a global one attends to
    all tokens, with a projection of its own. Tokens with a negative mask are attended by none, and give zeros. Both
    weights are (width, 3 * width): queries, keys, values.
    """

    inputs: ClassVar[str] = "input, weight, bias, mask, global_weight, global_bias, global"
    outputs: ClassVar[str] = "output"
    host_reason: ClassVar[str] = "attention with its projection"
    num_heads: int
    window: int

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, weight, bias, mask, global_weight, global_bias, chosen = inputs
        if x.ndim != 3 or mask.shape != x.shape[:2] or chosen.shape != x.shape[:2]:
            raise ValueError(
                f"inputs 'mask' {mask.shape} and 'global' {chosen.shape} must be (batch, length) of 'input' {x.shape}"
            )
        if self.window < 0:
            raise ValueError(f"attribute 'window' must not be negative, got {self.window}")
        seen, everywhere = wide(mask) >= 0, chosen > 0
        place = np.arange(x.shape[1])
        near = np.abs(place[:, None] - place) <= self.window
        local = self.attended(x, weight, bias, (near | everywhere[:, None, :]) & seen[:, None, :])
        result = np.where(seen[..., None], local, np.float32(0))
        rows = everywhere & seen
        if rows.any():
            result[rows] = self.attended(x, global_weight, global_bias, seen[:, None, :])[rows]
        return (result.astype(x.dtype),)

    def attended(self, x: Array, weight: Array, bias: Array, keep: Array) -> Array:
        """Attention of every token to the keys that `keep` (batch, queries or 1, keys) allows."""
        projected = np.split(wide(x) @ wide(weight) + wide(bias), 3, axis=-1)
        query, key, value = (split_heads(part, self.num_heads, "weight") for part in projected)
        found = attend(query, key, value, default_scale(None, query.shape[-1]), keep=keep[:, None])
        return merge_heads(found.output)
