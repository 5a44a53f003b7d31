"""SparseAttention: causal attention that reads only some blocks of the keys (Phi-3-small)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.attention_core import attend, default_scale, grouped_heads, merge_heads
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.rotary_embedding import cache_rows, rotated
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, like, same

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


@operator("SparseAttention", domain=DOMAIN)
class SparseAttention(Operator):
    """Attention of each query block to the key blocks that its head's layout lists, causal within them.

    The layouts are in compressed rows: block_row_indices (layouts, blocks + 1) into block_col_indices (layouts, most
    entries); head h uses layout h modulo their number. The caches are buffers of the longest length.
    """

    inputs: ClassVar[str] = (
        "query, key?, value?, past_key, past_value, block_row_indices, block_col_indices, total_sequence_length, "
        "key_total_sequence_lengths, cos_cache?, sin_cache?"
    )
    outputs: ClassVar[str] = "output, present_key, present_value"
    host_reason: ClassVar[str] = "attention"
    num_heads: int
    kv_num_heads: int
    sparse_block_size: int
    scale: float | None = None
    do_rotary: int = 0
    rotary_interleaved: int = 0

    def run(self, *inputs: Any) -> Sequence[Array]:
        query, key, value, past_k, past_v, rows, columns, total, lengths, cos, sin = padded(inputs, 11)
        q, k, v = grouped_heads(query, key, value, self.num_heads, self.kv_num_heads)
        batch, _, length, size = q.shape
        longest = int(total.reshape(()))
        ends = lengths.reshape(-1).astype(np.int64)
        starts = np.zeros_like(ends) if length == longest else ends - length
        if ends.size != batch or longest > past_k.shape[2] or starts.min(initial=0) < 0:
            raise ValueError(f"'key_total_sequence_lengths' {ends.tolist()} do not fit a cache of {past_k.shape[2]}")
        if self.do_rotary:
            if cos is None or sin is None:
                raise ValueError("'do_rotary' needs the inputs 'cos_cache' and 'sin_cache'")
            places = starts[:, None] + np.arange(length)
            turns = [cache_rows(cos, places, "cos_cache")[:, None], cache_rows(sin, places, "sin_cache")[:, None]]
            q, k = (rotated(x, turns[0], turns[1], bool(self.rotary_interleaved)) for x in (q, k))
        present_k, present_v = past_k.copy(), past_v.copy()
        for entry, start in enumerate(starts.tolist()):
            present_k[entry, :, start : start + length] = k[entry]
            present_v[entry, :, start : start + length] = v[entry]
        attended = attend(
            q,
            present_k[:, :, :longest],
            present_v[:, :, :longest],
            default_scale(self.scale, size),
            keep=self.visible(rows, columns, starts, ends, length, longest),
        )
        return merge_heads(attended.output).astype(query.dtype), present_k, present_v

    def visible(self, rows: Array, columns: Array, starts: Array, ends: Array, length: int, longest: int) -> Array:
        """Which keys each query may see, as (batch, heads, length, longest)."""
        blocks = np.zeros((len(rows), rows.shape[1] - 1, rows.shape[1] - 1), np.bool_)
        for layout, (bounds, entries) in enumerate(zip(rows, columns, strict=True)):
            for block in range(len(bounds) - 1):
                blocks[layout, block, entries[bounds[block] : bounds[block + 1]]] = True
        keys = np.arange(longest)
        own = starts[:, None] + np.arange(length)
        block = np.minimum(own // self.sparse_block_size, blocks.shape[1] - 1)
        listed = blocks[:, block][..., keys // self.sparse_block_size]  # (layouts, batch, length, longest)
        causal = (keys <= own[..., None]) & (keys < ends[:, None, None])
        return np.swapaxes((listed & causal)[np.arange(self.num_heads) % len(rows)], 0, 1)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        query, key = inputs[0], inputs[1]
        heads = self.num_heads if key is not None else self.num_heads + 2 * self.kv_num_heads
        width = dim(query, 2) // heads * self.num_heads
        return [like(query, (dim(query, 0), dim(query, 1), width)), same(inputs[3]), same(inputs[4])]
