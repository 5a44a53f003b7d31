"""MultiHeadAttention: attention after the projections, in all its layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx.kernel.program import Kernel, Template
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import Dim, Fact, unknown_dim
from sardonyx.ops.framework.operator import Cost, Operator, operator
from sardonyx.ops.microsoft.attention import MASK_FILTER_VALUE
from sardonyx.ops.microsoft.attention_core import (
    appended,
    attend,
    attention_cost,
    causal,
    default_scale,
    merge_heads,
    padding_mask,
    reordered,
    split_heads,
    visible_scores,
    written,
)
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, expect_rank, like, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


@dataclass(frozen=True)
class Heads:
    """Queries, keys and values as (batch, heads, length, size); whether keys and values come from another sequence."""

    query: Array
    key: Array
    value: Array
    from_cache: bool = False  # the key input already is a cache


def separated(query: Array, key: Array | None, value: Array | None, bias: Array | None, heads: int) -> Heads:
    """The heads of any of the layouts: three tensors, packed QKV, packed KV, or a cache given as key and value.

    A bias covers queries, keys and values; a cache has had its bias already.
    """
    if query.ndim == 5:
        q, k, v = (wide(query[:, :, :, index].transpose(0, 2, 1, 3)) for index in range(3))
        from_cache = False
    elif key is None:
        q, k, v = (split_heads(part, heads) for part in _thirds(wide(query), heads))
        from_cache = False
    elif key.ndim == 5:
        q = split_heads(wide(query), heads)
        k, v = (wide(key[:, :, :, index].transpose(0, 2, 1, 3)) for index in range(2))
        from_cache = False
    else:
        if value is None:
            raise ValueError("input 'value' is required with an unpacked 'key'")
        q = split_heads(wide(query), heads)
        from_cache = key.ndim == 4
        k = wide(key) if from_cache else split_heads(wide(key), heads, "key")
        v = wide(value) if from_cache else split_heads(wide(value), heads, "value")
    if bias is None:
        return Heads(q, k, v, from_cache)
    sizes = [tensor.shape[-1] for tensor in (q, k, v)]
    if bias.size != heads * sum(sizes):
        raise ValueError(f"input 'bias' is expected to have {heads * sum(sizes)} elements, got {bias.size}")
    ends = [heads * sizes[0], heads * (sizes[0] + sizes[1])]
    parts = [part.reshape(heads, 1, size) for part, size in zip(np.split(wide(bias), ends), sizes, strict=True)]
    if from_cache:
        return Heads(q + parts[0], k, v, from_cache)
    return Heads(q + parts[0], k + parts[1], v + parts[2], from_cache)


def _thirds(packed: Array, heads: int) -> list[Array]:
    width = packed.shape[-1] // 3
    if packed.shape[-1] % (3 * heads):
        raise ValueError(f"packed 'query' of width {packed.shape[-1]} does not hold three times {heads} heads")
    return [packed[..., index * width : (index + 1) * width] for index in range(3)]


@operator("MultiHeadAttention", domain=DOMAIN)
class MultiHeadAttention(Operator):
    """softmax(Q K^T * scale + mask + bias) V over given queries, keys and values.

    Layouts: query, key, value of (batch, length, heads * size); query as packed QKV (batch, length, heads, 3, size);
    key as packed KV (batch, length, heads, 2, size); key and value as caches (batch, heads, length, size). With
    `past_sequence_length` the past is a buffer of the longest length, else it grows. The fourth output holds the
    scores that the softmax reads.
    """

    inputs: ClassVar[str] = (
        "query, key?, value?, bias?, key_padding_mask?, attention_bias?, past_key?, past_value?, "
        "past_sequence_length?, cache_indirection?"
    )
    outputs: ClassVar[str] = "output, present_key?, present_value?, qk?"
    host_reason: ClassVar[str] = "attention"
    num_heads: int
    unidirectional: int = 0
    mask_filter_value: float | None = None
    scale: float | None = None

    def run(self, *inputs: Any) -> Sequence[Array]:
        query, key, value, bias, mask, added, past_k, past_v, past_length, indirection = padded(inputs, 10)
        heads = separated(query, key, value, bias, self.num_heads)
        present_k, present_v = heads.key.astype(query.dtype), heads.value.astype(query.dtype)
        k, v, before = heads.key, heads.value, 0
        if past_k is not None and not heads.from_cache:
            if past_length is not None:
                before = int(past_length.reshape(()))
                present_k, present_v = written(past_k, present_k, before), written(past_v, present_v, before)
                used = before + k.shape[2]
                k, v = wide(present_k[:, :, :used]), wide(present_v[:, :, :used])
            else:
                before = past_k.shape[2]
                present_k, present_v = appended(past_k, present_k), appended(past_v, present_v)
                k, v = wide(present_k), wide(present_v)
            k, v = reordered(k, indirection, before), reordered(v, indirection, before)
        batch, _, length, size = heads.query.shape
        total = k.shape[2]
        filter_value = MASK_FILTER_VALUE if self.mask_filter_value is None else self.mask_filter_value
        attended = attend(
            heads.query,
            k,
            v,
            default_scale(self.scale, size),
            bias=(padding_mask(mask, batch, length, total, filter_value, "key_padding_mask"), added),
            keep=causal(length, total, before) if self.unidirectional else None,
        )
        output = merge_heads(attended.output).astype(query.dtype)
        if not self.has_output(3):
            return output, present_k, present_v
        return output, present_k, present_v, visible_scores(attended.scores).astype(query.dtype)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        filter_value = MASK_FILTER_VALUE if self.mask_filter_value is None else self.mask_filter_value
        parameters = {
            "num_heads": self.num_heads,
            "scale": self.scale or 0.0,
            "mask_filter_value": filter_value,
            "unidirectional": self.unidirectional,
            "presents": (self.has_output(1), self.has_output(2)),
        }
        return Template("multi_head_attention", parameters, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        query, key, value, _, _, _, past_k, past_v, past_length, _ = padded(inputs, 10)
        expect_rank(query, (3, 5), "query")
        expect_rank(key, (3, 4, 5), "key")
        if query is None or query.rank is None or (key is not None and key.rank is None):
            return [like(query, None)] * 4
        batch, length = dim(query, 0), dim(query, 1)
        new, size, value_size = self.sizes(query, key, value)
        output = like(query, (batch, length, self.num_heads * value_size))
        total = new if past_k is None else dims.add(dim(past_k, 2), new)
        longest = dim(past_k, 2) if past_length is not None else total
        if past_length is not None:
            total = unknown_dim()
        present_k = like(query, (batch, self.num_heads, longest, size))
        present_v = like(query if past_v is None else past_v, (batch, self.num_heads, longest, value_size))
        return [output, present_k, present_v, like(query, (batch, self.num_heads, length, total))]

    def sizes(self, query: Fact, key: Fact | None, value: Fact | None) -> tuple[Dim, Dim, Dim]:
        """How many new keys there are, and the sizes of a head of the keys and of the values."""
        if query.rank == 5:
            return dim(query, 1), dim(query, 4), dim(query, 4)
        if key is None:
            width = dim(query, 2) // (3 * self.num_heads)
            return dim(query, 1), width, width
        if key.rank == 5:
            return dim(key, 1), dim(key, 4), dim(key, 4)
        if key.rank == 4:
            return dim(key, 2), dim(key, 3), dim(value, 3)
        return dim(key, 1), dim(key, 2) // self.num_heads, dim(value, 2) // self.num_heads

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        query, key, value, _, _, _, past_k, *_ = padded(inputs, 10)
        if query is None or query.rank is None or (key is not None and key.rank is None):
            return Cost(None, None)
        new, size, value_size = self.sizes(query, key, value)
        total = new if past_k is None else dims.add(dim(past_k, 2), new)
        flops = attention_cost(dim(query, 0), self.num_heads, dim(query, 1), total, size, value_size).flops
        return Cost(flops, super().cost(inputs, outputs).bytes)
