"""Attention with one merged projection for queries, keys and values (BERT, GPT-2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx import errors
from sardonyx.kernel.program import Host, Kernel, Template
from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import Dim, Fact
from sardonyx.ops.framework.operator import Cost, Operator, operator
from sardonyx.ops.microsoft.attention_core import (
    appended,
    attend,
    causal,
    default_scale,
    merge_heads,
    padding_mask,
    split_heads,
    written,
)
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, expect_rank, like, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference

# What a masked score becomes where the attribute is absent.
MASK_FILTER_VALUE = -10000.0


@operator("Attention", domain=DOMAIN)
class Attention(Operator):
    """softmax(Q K^T * scale + masks + bias) V, where [Q K V] = input @ weights + bias.

    input (batch, length, width), weights (width, q + k + v). `past` and `present` stack keys and values:
    (2, batch, heads, length, size), of the longest length where `past_present_share_buffer` is set.
    """

    inputs: ClassVar[str] = "input, weights, bias?, mask_index?, past?, attention_bias?, past_sequence_length?"
    outputs: ClassVar[str] = "output, present?"
    host_reason: ClassVar[str] = "attention with its projection"
    num_heads: int
    unidirectional: int = 0
    qkv_hidden_sizes: tuple[int, ...] | None = None
    past_present_share_buffer: int | None = None
    do_rotary: int | None = None
    rotary_embedding_dim: int | None = None
    mask_filter_value: float | None = None
    scale: float | None = None

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, weights, bias, mask, past, attention_bias, past_length = padded(inputs, 7)
        if self.do_rotary:
            raise errors.NotImplemented("Attention with do_rotary: apply RotaryEmbedding before MultiHeadAttention")
        if x.ndim != 3:
            raise ValueError(f"input 'input' is expected to have 3 dimensions, got {x.ndim}")
        q_size, k_size, v_size = self.hidden_sizes(weights.shape[1])
        projected = np.matmul(wide(x), wide(weights))
        if bias is not None:
            if bias.shape != weights.shape[1:]:
                raise ValueError(f"input 'bias' is expected to have shape {weights.shape[1:]}, got {bias.shape}")
            projected = projected + wide(bias)
        q = split_heads(projected[..., :q_size], self.num_heads, "weights")
        k = split_heads(projected[..., q_size : q_size + k_size], self.num_heads, "weights")
        v = split_heads(projected[..., q_size + k_size : q_size + k_size + v_size], self.num_heads, "weights")
        k, v, present, before = self.cached(k, v, past, past_length, x)
        batch, length, total = x.shape[0], x.shape[1], before + x.shape[1]
        filter_value = MASK_FILTER_VALUE if self.mask_filter_value is None else self.mask_filter_value
        attended = attend(
            q,
            k,
            v,
            default_scale(self.scale, q.shape[-1]),
            bias=(padding_mask(mask, batch, length, total, filter_value, "mask_index"), attention_bias),
            keep=causal(length, total, before) if self.unidirectional else None,
        )
        output = merge_heads(attended.output).astype(x.dtype)
        if present is None and self.has_output(1):
            present = np.stack([k, v]).astype(x.dtype)
        return (output,) if present is None else (output, present)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if self.do_rotary:
            return Host(self.run, "rotary embedding inside Attention")
        if self.past_present_share_buffer:
            return Host(self.run, "a cache of the longest length (past_present_share_buffer)")
        parameters = {
            "num_heads": self.num_heads,
            "scale": self.scale or 0.0,
            "mask_filter_value": MASK_FILTER_VALUE if self.mask_filter_value is None else self.mask_filter_value,
            "unidirectional": self.unidirectional,
            "hidden_sizes": self.hidden_sizes,
            "present": self.has_output(1),
        }
        return Template("projected_attention", parameters, self.run)

    def hidden_sizes(self, columns: Dim) -> tuple[Any, Any, Any]:
        """The widths of queries, keys and values in the columns of the weights."""
        if self.qkv_hidden_sizes:
            if len(self.qkv_hidden_sizes) != 3:
                raise ValueError(f"attribute 'qkv_hidden_sizes' must have 3 values, not {len(self.qkv_hidden_sizes)}")
            return self.qkv_hidden_sizes[0], self.qkv_hidden_sizes[1], self.qkv_hidden_sizes[2]
        if isinstance(columns, int) and columns % 3:
            raise ValueError(f"input 'weights' has {columns} columns, which do not divide by three")
        third = columns // 3
        return third, third, third

    def cached(
        self, k: Array, v: Array, past: Array | None, past_length: Array | None, x: Array
    ) -> tuple[Array, Array, Array | None, int]:
        """Keys and values with the past in front, the present cache, and the length of the past."""
        if past is None:
            return k, v, None, 0
        if past.ndim != 5 or past.shape[0] != 2:
            raise ValueError(f"input 'past' must be (2, batch, heads, length, size), got {past.shape}")
        new = np.stack([k, v]).astype(x.dtype)
        if self.past_present_share_buffer:
            if past_length is None:
                raise ValueError("'past_present_share_buffer' needs input 'past_sequence_length'")
            before = int(past_length.reshape(()))
            present = written(past, new, before)
            used = wide(present[..., : before + new.shape[-2], :])
        else:
            before = past.shape[-2]
            present = appended(past, new)
            used = wide(present)
        return used[0], used[1], present, before

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, weights = inputs[0], inputs[1]
        past = inputs[4] if len(inputs) > 4 else None
        expect_rank(x, (3,), "input")
        expect_rank(weights, (2,), "weights")
        columns = dim(weights, 1)
        _, k_size, v_size = self.hidden_sizes(columns)
        output = like(x, (dim(x, 0), dim(x, 1), v_size))
        if past is not None:
            longest = dim(past, 3) if self.past_present_share_buffer else dims.add(dim(past, 3), dim(x, 1))
            return [output, like(x, (2, dim(x, 0), self.num_heads, longest, k_size // self.num_heads))]
        return [output, like(x, (2, dim(x, 0), self.num_heads, dim(x, 1), k_size // self.num_heads))]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        x, weights = inputs[0], inputs[1]
        batch, length, width, columns = dim(x, 0), dim(x, 1), dim(x, 2), dim(weights, 1)
        past = dim(inputs[4], 3) if len(inputs) > 4 and inputs[4] is not None else 0
        sizes = (batch, length, width, columns, past)
        b, s, w, c, p = (size if isinstance(size, int) else 0 for size in sizes)
        if not all(isinstance(size, int) for size in sizes):
            return Cost(None, None)
        return Cost(2.0 * b * s * w * c + 4.0 * b * s * (p + s) * (c // 3), super().cost(inputs, outputs).bytes)
