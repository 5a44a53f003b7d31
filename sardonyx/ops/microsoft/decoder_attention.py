"""Attention of a decoder over its cache: of one new token with beams, and the older form for time-first tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx import errors
from sardonyx.ops.framework import dims
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
    split_heads,
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
        longest = dim(past_k, 2)
        if not self.past_present_share_buffer:
            longest = 1 if past_k is None else dims.add(longest, 1)
        total = unknown_dim() if self.past_present_share_buffer else longest
        present_k = like(query, (batch, self.num_heads, longest, size))
        present_v = like(query, (batch, self.num_heads, longest, width // self.num_heads))
        qk = like(query, (batch, self.num_heads, 1, total))
        return [like(query, (batch, 1, width)), present_k, present_v, qk]


@operator("DecoderMaskedSelfAttention", domain=DOMAIN)
class DecoderMaskedSelfAttention(Operator):
    """Attention for one token a sequence, with one merged projection and a cache (2, batch, heads, length, size).

    A shared buffer of the longest length holds keys as (batch, heads, size / x, longest, x), where x elements have 16
    bytes; values lie in the order of their shape.
    """

    inputs: ClassVar[str] = (
        "input, weights, bias, mask_index?, past, attention_bias?, past_sequence_length, beam_width?, "
        "cache_indirection?"
    )
    outputs: ClassVar[str] = "output, present"
    host_reason: ClassVar[str] = "attention with its projection"
    num_heads: int
    past_present_share_buffer: int | None = None
    do_rotary: int | None = None
    mask_filter_value: float | None = None
    scale: float | None = None

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, weights, bias, mask, past, added, past_length, _, indirection = padded(inputs, 9)
        if self.do_rotary:
            raise errors.NotImplemented("DecoderMaskedSelfAttention with do_rotary: apply RotaryEmbedding before")
        if x.ndim != 3 or x.shape[1] != 1:
            raise ValueError(f"input 'input' must hold one token a sequence, got shape {x.shape}")
        if past.ndim != 5 or past.shape[0] != 2:
            raise ValueError(f"input 'past' must be (2, batch, heads, length, size), got {past.shape}")
        width = self.num_heads * past.shape[-1]
        if weights.shape[1] != 3 * width:
            raise ValueError(f"input 'weights' must have {3 * width} columns for 'past' {past.shape}: {weights.shape}")
        projected = np.matmul(wide(x), wide(weights)) + wide(bias)
        parts = np.split(projected, 3, axis=-1)
        query, key, value = (split_heads(part, self.num_heads, "weights") for part in parts)
        new = key.astype(x.dtype), value.astype(x.dtype)
        if self.past_present_share_buffer:
            before = int(past_length.reshape(()))
            keys, values = written(plain_keys(past[0]), new[0], before), written(past[1], new[1], before)
            present = np.stack([blocked_keys(keys), values])
        else:
            before = past.shape[3]
            keys, values = appended(past[0], new[0]), appended(past[1], new[1])
            present = np.stack([keys, values])
        k, v = (wide(reordered(cache[:, :, : before + 1], indirection, before)) for cache in (keys, values))
        filter_value = MASK_FILTER_VALUE if self.mask_filter_value is None else self.mask_filter_value
        attended = attend(
            query,
            k,
            v,
            default_scale(self.scale, query.shape[-1]),
            bias=(padding_mask(mask, len(x), 1, before + 1, filter_value, "mask_index"), added),
        )
        return merge_heads(attended.output).astype(x.dtype), present

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, past = inputs[0], inputs[4]
        longest = dim(past, 3) if self.past_present_share_buffer else dims.add(dim(past, 3), 1)
        present = like(x, (2, dim(x, 0), self.num_heads, longest, dim(past, 4)))
        return [like(x, (dim(x, 0), 1, dim(past, 4) * self.num_heads)), present]


def plain_keys(buffer: Array) -> Array:
    """Keys (batch, heads, longest, size) of a buffer whose memory is (batch, heads, size / x, longest, x)."""
    batch, heads, longest, size = buffer.shape
    x = key_block(buffer)
    return buffer.reshape(batch, heads, size // x, longest, x).transpose(0, 1, 3, 2, 4).reshape(buffer.shape)


def blocked_keys(keys: Array) -> Array:
    """The inverse of `plain_keys`."""
    batch, heads, longest, size = keys.shape
    x = key_block(keys)
    return keys.reshape(batch, heads, longest, size // x, x).transpose(0, 1, 3, 2, 4).reshape(keys.shape)


def key_block(keys: Array) -> int:
    """How many elements have 16 bytes; the head size must be a multiple."""
    x = int(16 // keys.dtype.itemsize)
    if keys.shape[-1] % x:
        raise ValueError(f"a shared buffer needs a head size that is a multiple of {x}, got {keys.shape[-1]}")
    return x


@operator("DecoderAttention", domain=DOMAIN)
class DecoderAttention(Operator):
    """Self-attention of `query`, or with `static_kv` attention to `key`, both (length, batch, width).

    With `use_past` and `has_layer_state` self-attention goes on from the caches, and cross-attention reads them alone.
    `key_padding_mask` is true where a key is masked. The new caches are (batch, heads, length, size).
    """

    inputs: ClassVar[str] = (
        "query, key, q_weight, kv_weight, bias, key_padding_mask?, key_cache?, value_cache?, static_kv, use_past, "
        "has_layer_state, has_key_padding_mask"
    )
    outputs: ClassVar[str] = "output, new_key_cache?, new_value_cache?"
    host_reason: ClassVar[str] = "attention with its projection"
    num_heads: int
    mask_filter_value: float | None = None

    def run(self, *inputs: Any) -> Sequence[Array]:
        query, key, q_weight, kv_weight, bias, mask, key_cache, value_cache, *flags = inputs
        static, use_past, has_state, has_mask = (bool(flag.reshape(())) for flag in flags)
        if query.ndim != 3 or key.ndim != 3:
            raise ValueError(f"inputs 'query' {query.shape} and 'key' {key.shape} must be (length, batch, width)")
        width, cached = query.shape[2], use_past and has_state
        if cached and (key_cache is None or value_cache is None):
            raise ValueError("'use_past' with 'has_layer_state' needs inputs 'key_cache' and 'value_cache'")
        q = self.heads(wide(query) @ wide(q_weight) + wide(bias[:width]))
        if cached and static:
            k, v = wide(key_cache), wide(value_cache)
        else:
            new = wide(key if static else query) @ wide(kv_weight) + wide(bias[width:])
            k, v = self.heads(new[..., :width]), self.heads(new[..., width:])
            if cached:
                k, v = appended(wide(key_cache), k), appended(wide(value_cache), v)
        hidden = None
        if has_mask:
            if mask is None:
                raise ValueError("'has_key_padding_mask' needs input 'key_padding_mask'")
            value = MASK_FILTER_VALUE if self.mask_filter_value is None else self.mask_filter_value
            hidden = padding_mask(~mask, query.shape[1], query.shape[0], k.shape[2], value, "key_padding_mask")
        output = merge_heads(attend(q, k, v, default_scale(None, q.shape[-1]), bias=(hidden,)).output)
        kind = query.dtype
        return output.transpose(1, 0, 2).astype(kind), k.astype(kind), v.astype(kind)

    def heads(self, x: Array) -> Array:
        """(length, batch, width) as (batch, heads, length, size)."""
        return split_heads(np.swapaxes(x, 0, 1), self.num_heads)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        query = inputs[0]
        size = dim(query, 2) // self.num_heads
        caches = [like(query, (dim(query, 1), self.num_heads, unknown_dim(), size)) for _ in range(2)]
        return [like(query, None if query is None else query.shape), *caches]
