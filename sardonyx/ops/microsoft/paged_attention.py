"""PagedAttention: attention over a cache in blocks that a table assigns to sequences (Kwon et al. 2023)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx import errors
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.attention_core import attend, default_scale, merge_heads
from sardonyx.ops.microsoft.layer_normalization import normalized
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.rotary_embedding import cache_rows, rotated
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, divided, like, same, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


@operator("PagedAttention", domain=DOMAIN)
class PagedAttention(Operator):
    """Grouped-query attention over packed tokens (tokens, heads * size) and caches (blocks, block size, heads, size).

    Sequence i has past_seqlens[i] cached positions, whose blocks are row i of block_table; its new tokens follow them
    unless slot_mapping says where each is written (-1: nowhere). The caches come back with the new rows.
    """

    inputs: ClassVar[str] = (
        "query, key?, value?, key_cache, value_cache?, cumulative_sequence_length, past_seqlens, block_table, "
        "cos_cache?, sin_cache?, slot_mapping?, head_sink?, q_norm_weight?, k_norm_weight?, k_scale?, v_scale?, "
        "attention_metadata?"
    )
    outputs: ClassVar[str] = "output, key_cache_out?, value_cache_out?"
    host_reason: ClassVar[str] = "attention"
    num_heads: int
    kv_num_heads: int
    scale: float | None = None
    softcap: float = 0.0
    is_causal: int = 1
    local_window_size: int = -1
    do_rotary: int = 0
    rotary_interleaved: int = 0
    rotary_offset: int = 0
    qk_norm_epsilon: float = 1e-6
    kv_cache_layout: str = "SEPARATE"
    v_head_size: int = 0
    k_cache_dtype: str = ""
    v_cache_dtype: str = ""
    k_quant_type: str = "NONE"
    v_quant_type: str = "NONE"

    def run(self, *inputs: Any) -> Sequence[Array]:
        given = padded(inputs, 17)
        query, _, _, key_cache, value_cache, sums, past, table = given[:8]
        slots, sink = given[10], given[11]
        if self.kv_cache_layout != "SEPARATE" or self.k_quant_type != "NONE" or self.v_quant_type != "NONE":
            raise errors.NotImplemented("PagedAttention runs with separate caches that are not quantised only")
        ends = sums.tolist()
        if ends[0] != 0 or ends[-1] != len(query) or any(b < a for a, b in itertools.pairwise(ends)):
            raise ValueError(f"'cumulative_sequence_length' {ends} does not divide {len(query)} tokens into sequences")
        places = np.concatenate(
            [
                np.arange(start, start + end - begin)
                for start, (begin, end) in zip(past, itertools.pairwise(ends), strict=True)
            ]
        )
        q, k, v = self.heads(given, places)
        size = key_cache.shape[1]
        keys, values = (cache.reshape(-1, *cache.shape[2:]).copy() for cache in (key_cache, value_cache))
        entries = np.repeat(np.arange(len(past)), np.diff(sums))
        own = table[entries, places // size] * size + places % size
        written = own if slots is None else slots
        keys[written[written >= 0]] = k[written >= 0].astype(keys.dtype)
        values[written[written >= 0]] = v[written >= 0].astype(values.dtype)
        result = np.empty((len(query), q.shape[1] * v.shape[2]), np.float32)
        for entry, (begin, end) in enumerate(itertools.pairwise(ends)):
            total = int(past[entry]) + end - begin
            at = np.arange(total)
            rows = table[entry, at // size] * size + at % size
            attended = attend(
                q[begin:end].swapaxes(0, 1)[None],
                keys[rows].swapaxes(0, 1)[None],
                values[rows].swapaxes(0, 1)[None],
                default_scale(self.scale, q.shape[-1]),
                keep=self.visible(places[begin:end], total),
                softcap=self.softcap,
                sink=sink,
            )
            result[begin:end] = merge_heads(attended.output)[0]
        return result.astype(query.dtype), keys.reshape(key_cache.shape), values.reshape(value_cache.shape)

    def heads(self, given: Sequence[Any], places: Array) -> tuple[Array, Array, Array]:
        """Queries, keys and values as (tokens, heads, size), normalised and turned."""
        query, key, value, cos, sin = *given[:3], *given[8:10]
        if key is None or value is None:
            every = divided(wide(query), self.num_heads + 2 * self.kv_num_heads, "query")
            second = self.num_heads + self.kv_num_heads
            q, k, v = every[:, : self.num_heads], every[:, self.num_heads : second], every[:, second:]
        else:
            counts = (self.num_heads, self.kv_num_heads, self.kv_num_heads)
            q, k, v = (divided(wide(x), n, "query") for x, n in zip((query, key, value), counts, strict=True))
        if given[12] is not None and given[13] is not None:
            q, k = (
                normalized(x, 1, self.qk_norm_epsilon, centred=False)[0] * wide(weight)
                for x, weight in ((q, given[12]), (k, given[13]))
            )
        if self.do_rotary:
            if cos is None or sin is None:
                raise ValueError("'do_rotary' needs the inputs 'cos_cache' and 'sin_cache'")
            c, s = cache_rows(cos, places, "cos_cache")[:, None], cache_rows(sin, places, "sin_cache")[:, None]
            q, k = (self.turned(x, c, s) for x in (q, k))
        return q, k, v

    def turned(self, x: Array, cos: Array, sin: Array) -> Array:
        still, turning = x[..., : self.rotary_offset], x[..., self.rotary_offset :]
        return np.concatenate([still, rotated(turning, cos, sin, bool(self.rotary_interleaved))], axis=-1)

    def visible(self, places: Array, total: int) -> Array:
        """Which keys each query may see, as (queries, keys)."""
        keys, own = np.arange(total), places[:, None]
        seen = keys <= own if self.is_causal else np.ones((len(places), total), np.bool_)
        return np.asarray(seen & (keys > own - self.local_window_size) if self.local_window_size > 0 else seen)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        query, key = inputs[0], inputs[1]
        width = dim(query, 1)
        if key is None:
            width = width // (self.num_heads + 2 * self.kv_num_heads) * self.num_heads
        return [like(query, (dim(query, 0), width)), same(inputs[3]), same(inputs[4])]
