"""Attention over sequences packed without their padding, and the packing itself."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import Fact, tensor, unknown_dim
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.attention_core import attend, default_scale, merge_heads
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, divided, like, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


def packed_attention(
    q: Array, k: Array, v: Array, sums: Array, bias: Array | None, scale: float | None, heads: int
) -> Array:
    """Attention within each sequence of (tokens, heads * size) tensors; a bias covers the padded lengths."""
    ends = sums.tolist()
    if ends[0] != 0 or ends[-1] != len(q) or any(b < a for a, b in itertools.pairwise(ends)):
        raise ValueError(f"'cumulative_sequence_length' {ends} does not divide {len(q)} tokens into sequences")
    result = np.empty((len(q), v.shape[-1]), np.float32)
    for entry, (start, end) in enumerate(itertools.pairwise(ends)):
        length = end - start
        own = [divided(x[start:end], heads, "query").transpose(1, 0, 2)[None] for x in (q, k, v)]
        added = None
        if bias is not None:
            added = bias[min(entry, len(bias) - 1), :, :length, :length][None]
        attended = attend(own[0], own[1], own[2], default_scale(scale, own[0].shape[-1]), bias=(added,))
        result[start:end] = merge_heads(attended.output)[0]
    return result


@operator("PackedAttention", domain=DOMAIN)
class PackedAttention(Operator):
    """Attention with a merged projection over packed tokens: input (tokens, width), weights (width, q + k + v)."""

    inputs: ClassVar[str] = "input, weights, bias, token_offset, cumulative_sequence_length, attention_bias?"
    outputs: ClassVar[str] = "output"
    host_reason: ClassVar[str] = "attention with its projection"
    num_heads: int
    qkv_hidden_sizes: tuple[int, ...] | None = None
    scale: float | None = None

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, weights, bias, _, sums = inputs[:5]
        projected = np.matmul(wide(x), wide(weights)) + wide(bias)
        first, second = self.ends(weights.shape[1])
        q, k, v = np.split(projected, [first, second], axis=-1)
        added = inputs[5] if len(inputs) > 5 else None
        return (packed_attention(q, k, v, sums, added, self.scale, self.num_heads).astype(x.dtype),)

    def ends(self, columns: Any) -> tuple[Any, Any]:
        """Where the queries and the keys end in the columns of the projection."""
        if self.qkv_hidden_sizes:
            return self.qkv_hidden_sizes[0], self.qkv_hidden_sizes[0] + self.qkv_hidden_sizes[1]
        return columns // 3, columns // 3 * 2

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, columns = inputs[0], dim(inputs[1], 1)
        width = self.qkv_hidden_sizes[2] if self.qkv_hidden_sizes else columns // 3
        return [like(x, (dim(x, 0), width))]


@operator("PackedMultiHeadAttention", domain=DOMAIN)
class PackedMultiHeadAttention(Operator):
    """MultiHeadAttention over packed tokens; query may hold queries, keys and values as (tokens, heads, 3, size)."""

    inputs: ClassVar[str] = "query, key?, value?, bias?, token_offset, cumulative_sequence_length, attention_bias?"
    outputs: ClassVar[str] = "output"
    host_reason: ClassVar[str] = "attention"
    num_heads: int
    scale: float | None = None
    mask_filter_value: float | None = None

    def run(self, *inputs: Any) -> Sequence[Array]:
        query, key, value, bias, _, sums = inputs[:6]
        if query.ndim == 4:
            q, k, v = (wide(query[:, :, index]).reshape(len(query), -1) for index in range(3))
        elif key is None or value is None:
            raise ValueError("inputs 'key' and 'value' are required with an unpacked 'query'")
        else:
            q, k, v = wide(query), wide(key), wide(value)
        if bias is not None:
            parts = np.split(wide(bias), [q.shape[-1], q.shape[-1] + k.shape[-1]])
            q, k, v = (x + part for x, part in zip((q, k, v), parts, strict=True))
        added = inputs[6] if len(inputs) > 6 else None
        return (packed_attention(q, k, v, sums, added, self.scale, self.num_heads).astype(query.dtype),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        query, value = inputs[0], inputs[2]
        width = dim(value, 1) if value is not None else self.num_heads * dim(query, 3)
        return [like(query, (dim(query, 0), width))]


@operator("RemovePadding", domain=DOMAIN)
class RemovePadding(Operator):
    """The tokens of (batch, length, width) without the padding on the right, and where each came from.

    token_offset lists the places of all tokens, then those of the padding.
    """

    inputs: ClassVar[str] = "input, sequence_token_count"
    outputs: ClassVar[str] = "output, token_offset, cumulated_seq_len, max_seq_len"
    host_reason: ClassVar[str] = "the size of the output depends on the data"

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, counts = inputs
        batch, length, width = x.shape
        if counts.shape != (batch,) or counts.min(initial=0) < 0 or counts.max(initial=0) > length:
            raise ValueError(f"'sequence_token_count' {counts.tolist()} does not fit {batch} sequences of {length}")
        real = (np.arange(length) < counts[:, None]).ravel()
        offsets = np.concatenate([np.flatnonzero(real), np.flatnonzero(~real)]).astype(np.int32)
        sums = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        longest = np.array([counts.max(initial=0)], np.int32)
        return x.reshape(-1, width)[real], offsets.reshape(batch, length), sums, longest

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        kind = ir.DataType.INT32
        return [
            like(x, (unknown_dim(), dim(x, 2))),
            tensor(kind, (dim(x, 0), dim(x, 1))),
            tensor(kind, (dim(x, 0) + 1,)),
            tensor(kind, (1,)),
        ]


@operator("RestorePadding", domain=DOMAIN)
class RestorePadding(Operator):
    """The inverse of RemovePadding, with zeros for the padding."""

    inputs: ClassVar[str] = "input, token_offset"
    outputs: ClassVar[str] = "output"
    host_reason: ClassVar[str] = "rows are written at places that the data gives"

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, offsets = inputs
        result = np.zeros((offsets.size, x.shape[1]), x.dtype)
        result[offsets.ravel()[: len(x)]] = x
        return (result.reshape(*offsets.shape, x.shape[1]),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, offsets = inputs[0], inputs[1]
        return [like(x, (dim(offsets, 0), dim(offsets, 1), dim(x, 1)))]
