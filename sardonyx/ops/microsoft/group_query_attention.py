"""GroupQueryAttention: the attention of decoder language models, with its cache, rotation and windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import ml_dtypes
import numpy as np

from sardonyx.kernel.program import Host, Kernel, Template
from sardonyx.ops.framework.facts import Dim, Fact, unknown_dim
from sardonyx.ops.framework.operator import Cost, Operator, operator
from sardonyx.ops.microsoft.attention_core import (
    all_cached,
    attend,
    attention_cost,
    default_scale,
    grouped_heads,
    merge_heads,
)
from sardonyx.ops.microsoft.layer_normalization import normalized
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.rotary_embedding import cache_rows, rotated
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, expect_rank, like, wide
from sardonyx.runtime.memory import memory

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference

_SCORES = 1  # the value of `qk_output` that asks for what the softmax reads; otherwise its result


class CacheFormat:
    """How a cache stores keys or values: as they are, or quantised symmetrically with a scale."""

    def __init__(self, dtype: np.dtype[Any], scale: Array | None, kind: str, bits: int) -> None:
        self.dtype = dtype
        self.scale = scale
        self.quantized = kind != "NONE"
        self.packed = bits == 4
        if self.quantized and scale is None:
            raise ValueError(f"a cache quantised as {kind} needs its scale")

    def store(self, x: Array) -> Array:
        """Float values as the cache holds them."""
        if not self.quantized:
            return x.astype(self.dtype)
        assert self.scale is not None
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.where(self.scale == 0, np.float32(0), x / self.scale)
        if self.dtype == ml_dtypes.float8_e4m3fn:
            return np.clip(scaled, -448, 448).astype(self.dtype)
        if not self.packed:
            return np.clip(np.rint(scaled), -128, 127).astype(np.int8)
        nibbles = (np.clip(np.rint(scaled), -8, 7) + 8).astype(np.uint8)
        return nibbles[..., 0::2] | nibbles[..., 1::2] << 4

    def load(self, stored: Array) -> Array:
        """What the cache holds as float values."""
        if not self.quantized:
            return wide(stored)
        assert self.scale is not None
        if not self.packed:
            return stored.astype(np.float32) * self.scale
        nibbles = np.stack([stored & 15, stored >> 4], axis=-1).reshape(*stored.shape[:-1], -1)
        return (nibbles.astype(np.float32) - 8) * self.scale


@operator("GroupQueryAttention", domain=DOMAIN)
class GroupQueryAttention(Operator):
    """Causal attention where groups of query heads share key heads, over a cache that new keys are written into.

    query (batch, length, heads * size), or queries, keys and values packed along the last axis. seqlens_k + 1 are
    each entry's keys with those of this call; a call whose length is total_sequence_length starts a sequence, padded
    on the right. The caches (batch, key heads, longest, size) come back with this call's keys and values in place;
    their length grows only where total_sequence_length exceeds it. Layers that share the cache of another one give keys
    and values of length 0: the queries are then the last ones of what the cache holds.
    """

    inputs: ClassVar[str] = (
        "query, key?, value?, past_key?, past_value?, seqlens_k, total_sequence_length, cos_cache?, sin_cache?, "
        "position_ids?, attention_bias?, head_sink?, k_scale?, v_scale?, q_norm_weight?, k_norm_weight?"
    )
    outputs: ClassVar[str] = "output, present_key?, present_value?, output_qk?"
    host_reason: ClassVar[str] = "attention"
    num_heads: int
    kv_num_heads: int
    scale: float | None = None
    softcap: float = 0.0
    causal: int = 1
    local_window_size: int = -1
    do_rotary: int = 0
    rotary_interleaved: int = 0
    smooth_softmax: int = -1
    qk_output: int = 0
    qk_norm_epsilon: float = 1e-6
    k_quant_type: str = "NONE"
    v_quant_type: str = "NONE"
    kv_cache_bit_width: int = 0
    sliding_window_cache: int = 0

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        problem = self.kernel_problem()
        if problem:
            return Host(self.run, problem)
        names = ("num_heads", "kv_num_heads", "scale", "softcap", "causal", "local_window_size", "do_rotary",
                 "rotary_interleaved", "smooth_softmax")  # fmt: skip
        parameters = {name: getattr(self, name) for name in names}
        parameters["presents"] = (self.has_output(1), self.has_output(2))
        return Template("group_query_attention", parameters, self.run)

    def kernel_problem(self) -> str:
        """What this node's attributes ask for that the kernel does not have."""
        if self.k_quant_type != "NONE" or self.v_quant_type != "NONE":
            return "a quantised cache"
        if self.sliding_window_cache:
            return "a cache that evicts"
        if not self.causal and self.local_window_size != -1:
            return "a window without 'causal'"
        return ""

    def run(self, *inputs: Any) -> Sequence[Array]:
        given = padded(inputs, 16)
        query, key, value, past_k, past_v, seqlens, total = given[:7]
        cos, sin, positions, bias, sink, k_scale, v_scale, q_norm, k_norm = given[7:]
        self.check(past_k)
        q, k, v = grouped_heads(query, key, value, self.num_heads, self.kv_num_heads)
        longest = int(total.reshape(()))
        capacity = None if past_k is None or past_v is None else min(past_k.shape[2], past_v.shape[2])
        if capacity is not None and self.sliding_window_cache:
            capacity = longest
        borrows = all_cached([(one.shape[0], one.shape[2]) for one in (q, k, v)], capacity, longest)
        if q_norm is not None and k_norm is not None:
            q = normalized(q, 1, self.qk_norm_epsilon, centred=False)[0] * wide(q_norm)
            k = normalized(k, 1, self.qk_norm_epsilon, centred=False)[0] * wide(k_norm)
        batch, _, length, size = q.shape
        ends = seqlens.reshape(-1).astype(np.int64) + 1
        is_first = length == longest
        starts = np.zeros_like(ends) if is_first else ends - length
        first = min(starts.min(initial=0), ends.min(initial=1) - 1)
        if ends.size != batch or first < 0 or ends.max(initial=0) > longest:
            raise ValueError(
                f"'seqlens_k' {seqlens.ravel().tolist()} does not fit batch {batch} and total length {longest}"
            )
        if self.do_rotary:
            q, k = self.rotated_heads(q, k, starts, positions, cos, sin, is_first=is_first)
        formats = (
            CacheFormat(
                query.dtype if past_k is None else past_k.dtype, k_scale, self.k_quant_type, self.kv_cache_bit_width
            ),
            CacheFormat(
                query.dtype if past_v is None else past_v.dtype, v_scale, self.v_quant_type, self.kv_cache_bit_width
            ),
        )
        full_k, full_v = (
            self.filled(past, form.store(new), ends if borrows else starts, longest)
            for past, new, form in ((past_k, k, formats[0]), (past_v, v, formats[1]))
        )
        attended = attend(
            q,
            formats[0].load(full_k[:, :, :longest]),
            formats[1].load(full_v[:, :, :longest]),
            default_scale(self.scale, size),
            bias=(bias,),
            keep=self.visible(length, longest, starts, ends),
            softcap=self.softcap,
            sink=np.zeros(self.num_heads, np.float32) if sink is None and self.smooth_softmax == 1 else sink,
        )
        presents = (full_k, full_v)
        if self.sliding_window_cache:
            presents = tuple(self.evicted(full, past_k.shape[2], ends) for full in presents)  # type: ignore[assignment]
        output = merge_heads(attended.output).astype(query.dtype)
        if not self.has_output(3):
            return (output, *presents)
        chosen = attended.weights
        if self.qk_output == _SCORES:  # keys that a query may not see show as 0
            chosen = np.where(np.isneginf(attended.scores), np.float32(0), attended.scores)
        return (output, *presents, chosen.astype(query.dtype))

    def check(self, past: Array | None) -> None:
        if not self.causal and self.local_window_size != -1:
            raise ValueError("'local_window_size' must be -1 where 'causal' is 0")
        if self.sliding_window_cache:
            capacity = 0 if past is None else past.shape[2]
            if self.local_window_size <= 0 or capacity < self.local_window_size:
                raise ValueError(
                    f"'sliding_window_cache' needs a cache of at least 'local_window_size' ({self.local_window_size}) "
                    f"positions, got {capacity}"
                )

    def rotated_heads(
        self,
        q: Array,
        k: Array,
        starts: Array,
        positions: Array | None,
        cos: Array | None,
        sin: Array | None,
        *,
        is_first: bool,
    ) -> tuple[Array, Array]:
        """Queries and keys turned by their positions, which count from each entry's past unless given.

        Of the positions of a call that starts sequences, only the very first is read: all entries count from there.
        """
        if cos is None or sin is None:
            raise ValueError("'do_rotary' needs the inputs 'cos_cache' and 'sin_cache'")
        batch, _, length, _ = q.shape
        counted = starts[:, None] + np.arange(length)
        if positions is not None and positions.shape == (batch, length) and not is_first:
            counted = positions
        elif positions is not None and positions.size:
            counted = counted - starts[:, None] + positions.reshape(-1)[:1]
        rows = [cache_rows(cos, counted, "cos_cache")[:, None], cache_rows(sin, counted, "sin_cache")[:, None]]
        interleaved = bool(self.rotary_interleaved)
        turned_q = rotated(q, rows[0], rows[1], interleaved)
        return turned_q, rotated(k, rows[0], rows[1], interleaved) if k.shape[2] else k

    def filled(self, past: Array | None, new: Array, starts: Array, longest: int) -> Array:
        """The whole cache: each entry's past, then its new rows; zeros where nothing was written."""
        batch, heads, length, size = new.shape
        capacity = longest if past is None or self.sliding_window_cache else max(longest, past.shape[2])
        memory.require(batch * heads * capacity * size * new.itemsize, "a cache of keys or values")
        cache = np.zeros((batch, heads, capacity, size), new.dtype)
        if past is not None and (past.shape[:2], past.shape[3]) != ((batch, heads), size):
            raise ValueError(f"a cache of shape {past.shape} does not fit new keys and values {cache.shape}")
        for entry, start in enumerate(starts.tolist()):
            if past is not None and start:
                held = start
                if self.sliding_window_cache:
                    held = self.resident(start, past.shape[2])
                cache[entry, :, start - held : start] = past[entry, :, :held]
            cache[entry, :, start : start + length] = new[entry]
        return cache

    def resident(self, processed: int, capacity: int) -> int:
        """How many of `processed` positions a windowed cache holds: it evicts capacity - window + 1 at a time."""
        if processed <= capacity:
            return processed
        step = capacity - self.local_window_size + 1
        return processed - step * -(-(processed - capacity) // step)

    def evicted(self, full: Array, capacity: int, ends: Array) -> Array:
        """The windowed cache: each entry's resident rows at its start."""
        cache = np.zeros((*full.shape[:2], capacity, full.shape[3]), full.dtype)
        for entry, end in enumerate(ends.tolist()):
            held = self.resident(end, capacity)
            cache[entry, :, :held] = full[entry, :, end - held : end]
        return cache

    def visible(self, length: int, longest: int, starts: Array, ends: Array) -> Array:
        """Which keys each query may see, as (batch, 1, length, longest)."""
        place = np.arange(longest)
        if not self.causal:
            return (place < ends[:, None])[:, None, None, :]
        own = (starts[:, None] + np.arange(length))[:, None, :, None]
        seen = (place <= own) & (place < ends[:, None, None, None])
        if self.local_window_size > 0:
            seen = seen & (place > own - self.local_window_size)
        return np.asarray(seen)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        given = padded(inputs, 16)
        query, key, _, past_k, past_v, _, total = given[:7]
        expect_rank(query, (3,), "query")
        expect_rank(past_k, (4,), "past_key")
        expect_rank(past_v, (4,), "past_value")
        batch, length = dim(query, 0), dim(query, 1)
        size = self.head_size(query, key)
        output = like(query, (batch, length, size * self.num_heads))
        elements = None if total is None else total.elements
        keys: Dim = elements[0] if elements else unknown_dim()
        capacity: Dim = keys if past_k is None else unknown_dim()
        if past_k is not None:
            held = dim(past_k, 2)
            if self.sliding_window_cache:
                capacity = held
            elif isinstance(held, int) and isinstance(keys, int):
                capacity = max(held, keys)
        stored = (size + 1) // 2 if self.kv_cache_bit_width == 4 else size
        shape = (batch, self.kv_num_heads, capacity, stored)
        qk = like(query, (batch, self.num_heads, length, keys))
        return [output, like(past_k or query, shape), like(past_v or query, shape), qk]

    def head_size(self, query: Fact | None, key: Fact | None) -> Dim:
        heads = self.num_heads if key is not None else self.num_heads + 2 * self.kv_num_heads
        return dim(query, 2) // heads

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        query, key = inputs[0], inputs[1] if len(inputs) > 1 else None
        size = self.head_size(query, key)
        keys = dim(outputs[1], 2) if len(outputs) > 1 else unknown_dim()
        flops = attention_cost(dim(query, 0), self.num_heads, dim(query, 1), keys, size, size).flops
        return Cost(flops, super().cost(inputs, outputs).bytes)
