"""Attention of a decoder's one new token, over a cache shared by beams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from sardonyx.ops.framework.facts import Fact, unknown_dim
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.attention import MASK_FILTER_VALUE
from sardonyx.ops.microsoft.attention_core import (
    appended,
    attend,
    default_scale,
    merge_heads,
    padding_mask,
    reordered,
    visible_scores,
    written,
)
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.multi_head_attention import separated
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, like, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


@operator("DecoderMaskedMultiHeadAttention", domain=DOMAIN)
class DecoderMaskedMultiHeadAttention(Operator):
    """MultiHeadAttention for one query a sequence, with its key and value appended to the cache or written into it.

    Keys and values of rank 4 are the cache of another sequence, of which nothing is added.
    """

    inputs: ClassVar[str] = (
        "query, key?, value?, mask_index?, attention_bias?, past_key?, past_value?, past_sequence_length?, "
        "beam_width?, cache_indirection?, bias?"
    )
    outputs: ClassVar[str] = "output, present_key?, present_value?, qk?"
    host_reason: ClassVar[str] = "attention"
    num_heads: int
    past_present_share_buffer: int = 0
    scale: float | None = None
    mask_filter_value: float | None = None
    output_qk: int = 0

    def run(self, *inputs: Any) -> Sequence[Array]:
        query, key, value, mask, added, past_k, past_v, past_length, _, indirection, bias = padded(inputs, 11)
        if query.ndim != 3 or query.shape[1] != 1:
            raise ValueError(f"input 'query' must hold one token a sequence, got shape {query.shape}")
        heads = separated(query, key, value, bias, self.num_heads)
        present_k, present_v = heads.key.astype(query.dtype), heads.value.astype(query.dtype)
        k, v = heads.key, heads.value
        if past_k is not None and not heads.from_cache:
            if self.past_present_share_buffer:
                if past_length is None:
                    raise ValueError("'past_present_share_buffer' needs input 'past_sequence_length'")
                before = int(past_length.reshape(()))
                present_k, present_v = written(past_k, present_k, before), written(past_v, present_v, before)
            else:
                before = past_k.shape[2]
                present_k, present_v = appended(past_k, present_k), appended(past_v, present_v)
            k, v = (wide(reordered(x[:, :, : before + 1], indirection, before)) for x in (present_k, present_v))
        filter_value = MASK_FILTER_VALUE if self.mask_filter_value is None else self.mask_filter_value
        attended = attend(
            heads.query,
            k,
            v,
            default_scale(self.scale, heads.query.shape[-1]),
            bias=(padding_mask(mask, len(query), 1, k.shape[2], filter_value, "mask_index"), added),
        )
        output = merge_heads(attended.output).astype(query.dtype)
        return output, present_k, present_v, visible_scores(attended.scores).astype(query.dtype)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        query, key, value, _, _, past_k, *_ = padded(inputs, 11)
        batch = dim(query, 0)
        if key is not None and key.rank is None:
            return [like(query, None)] * 4
        if key is not None and key.rank == 4:
            width = dim(value, 3) * self.num_heads
            total = dim(key, 2)
            return [like(query, (batch, 1, width)), key, value or key, like(query, (batch, self.num_heads, 1, total))]
        width = dim(value, 2) if value is not None else dim(query, 2) // 3
        size = (dim(key, 2) if key is not None else dim(query, 2) // 3) // self.num_heads
        longest = dim(past_k, 2) if self.past_present_share_buffer else dim(past_k, 2) + 1 if past_k is not None else 1
        total = unknown_dim() if self.past_present_share_buffer else longest
        present_k = like(query, (batch, self.num_heads, longest, size))
        present_v = like(query, (batch, self.num_heads, longest, width // self.num_heads))
        qk = like(query, (batch, self.num_heads, 1, total))
        return [like(query, (batch, 1, width)), present_k, present_v, qk]
