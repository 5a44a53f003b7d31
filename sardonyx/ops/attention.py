"""Scaled dot-product attention of ONNX (opset 23 on), and rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from sardonyx.kernel.program import Kernel, Template
from sardonyx.ops.framework.facts import Dim, Fact, known, unknown_dim
from sardonyx.ops.framework.fallback import Reference
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Cost, Operator, Value, operator
from sardonyx.ops.microsoft.attention_core import (
    Attended,
    appended,
    attend,
    capped,
    merge_heads,
    products,
    require_scores,
    split_heads,
)


def _sum(a: Dim, b: Dim) -> Dim:
    return a + b if known(a) and known(b) else unknown_dim()


def _per_head(hidden: Dim, heads: int) -> Dim:
    return hidden // heads if isinstance(hidden, int) else unknown_dim()


# What `qk_matmul_output_mode` asks for.
_RAW, _CAPPED, _MASKED, _WEIGHTS = range(4)


@operator("Attention", since=23)
class Attention(Operator):
    """softmax(Q K' * scale + bias) V, with grouped heads, past keys and values, and masks.

    Narrow floats are computed in float32, whatever `softmax_precision` says.
    """

    q_num_heads: int = 0
    kv_num_heads: int = 0
    is_causal: int = 0
    scale: float | None = None
    softcap: float = 0.0
    left_window_size: int = -1
    right_window_size: int = -1
    qk_matmul_output_mode: int = _RAW

    host_reason: ClassVar[str] = "no kernel for these operands"

    def prefers_body(self) -> bool:
        """Where the scores are an output: the kernel never has all of them in memory."""
        return self.has_output(3)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parameters = {
            "q_num_heads": self.q_num_heads,
            "kv_num_heads": self.kv_num_heads,
            "is_causal": self.is_causal,
            "scale": self.scale,
            "softcap": self.softcap,
            "windows": (self.left_window_size, self.right_window_size),
            "presents": (self.has_output(1), self.has_output(2)),
        }
        return Template("attention", parameters, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        q, k, v, _, past_key, past_value = (*inputs, None, None, None)[:6]
        assert q is not None
        assert k is not None
        assert v is not None
        if q.shape is None or k.shape is None or v.shape is None:
            return super().infer(inputs, inference)
        if not len(q.shape) == len(k.shape) == len(v.shape) or len(q.shape) not in (3, 4):
            raise ValueError(f"Q, K and V must all have rank 3 or 4, not shapes {q.shape}, {k.shape}, {v.shape}")
        if len(q.shape) == 3 and not (self.q_num_heads and self.kv_num_heads):
            raise ValueError("q_num_heads and kv_num_heads are needed for inputs of rank 3")
        self._check(past_key is not None, past_value is not None, len(inputs) > 6 and inputs[6] is not None)
        keys, values = self._by_heads(k.shape), self._by_heads(v.shape)
        pairs = zip((q.shape[0], *keys[:3]), (k.shape[0], *values[:3]), strict=True)
        if any(isinstance(one, int) and isinstance(other, int) and one != other for one, other in pairs):
            raise ValueError(f"Q, K and V of shapes {q.shape}, {k.shape} and {v.shape} do not fit together")
        for whole, past in ((keys, past_key), (values, past_value)):
            if past is not None:
                whole[2] = unknown_dim() if past.shape is None else _sum(past.shape[2], whole[2])
        queries = self._by_heads(q.shape, query=True)
        if len(q.shape) == 3:
            hidden = values[3] * self.q_num_heads if isinstance(values[3], int) else unknown_dim()
            output = Fact(q.type, (q.shape[0], q.shape[1], hidden))
        else:
            output = Fact(q.type, (*queries[:3], values[3]))
        scores = Fact(q.type, (*queries[:3], keys[2]))
        return [output, Fact(k.type, tuple(keys)), Fact(v.type, tuple(values)), scores][: max(self.wanted_outputs, 1)]

    def _check(self, has_past_key: bool, has_past_value: bool, has_lengths: bool) -> None:
        """ValueError for attributes out of their range, and inputs that do not go together."""
        if self.qk_matmul_output_mode not in (_RAW, _CAPPED, _MASKED, _WEIGHTS):
            raise ValueError(f"qk_matmul_output_mode must be 0, 1, 2 or 3, not {self.qk_matmul_output_mode}")
        for name in ("left_window_size", "right_window_size"):
            if getattr(self, name) < -1:
                raise ValueError(f"{name} must be -1 (all) or more, not {getattr(self, name)}")
        if has_past_key != has_past_value:
            raise ValueError("past_key and past_value must be given together")
        if has_past_key and has_lengths:
            raise ValueError("nonpad_kv_seqlen, for a cache outside of the node, does not go with past_key")

    def run(
        self,
        q: Array,
        k: Array,
        v: Array,
        mask: Array | None = None,
        past_key: Array | None = None,
        past_value: Array | None = None,
        lengths: Array | None = None,
    ) -> Sequence[Value]:
        if q.ndim == 3:
            queries = split_heads(q, self.q_num_heads, "Q")
            new = split_heads(k, self.kv_num_heads, "K"), split_heads(v, self.kv_num_heads, "V")
        else:
            queries, new = q, (k, v)
        _check_fit(queries, *new, lengths)
        keys, values = appended(past_key, new[0]), appended(past_value, new[1])
        presents = keys, values
        require_scores(queries, keys)
        if lengths is not None:  # what lies behind may be anything, and 0 times that is not 0
            valid = (np.arange(keys.shape[2]) < lengths.reshape(-1, 1))[:, None, :, None]
            keys, values = (np.where(valid, one, np.zeros((), one.dtype)) for one in presents)
        added, keep = _masks(mask, keys.shape[2])
        seen = self._visible(queries.shape[2], keys.shape[2], past_key, lengths)
        keep = seen if keep is None else keep if seen is None else keep & seen
        scale = 1.0 / math.sqrt(queries.shape[3]) if self.scale is None else self.scale
        found = attend(queries, keys, values, scale, bias=[added], keep=keep, softcap=self.softcap)
        output = found.output if q.ndim == 4 else merge_heads(found.output)
        results = [output.astype(q.dtype), *map(np.array, presents)]
        if self.has_output(3):
            results.append(self._shown(found, queries, keys, scale).astype(q.dtype))
        return results

    def _visible(self, queries: int, keys: int, past: Array | None, lengths: Array | None) -> Array | None:
        """Which keys each query may see by its place, broadcast to (batch, 1, queries, keys); None for all."""
        offset: Array = np.zeros((), np.int64)
        if lengths is not None:
            offset = lengths.reshape(-1, 1, 1, 1) - queries
        elif past is not None:
            offset = np.asarray(past.shape[2])
        places = np.arange(queries)[:, None] + offset
        bounds = []
        if lengths is not None:
            bounds.append(np.arange(keys) < lengths.reshape(-1, 1, 1, 1))
        if self.is_causal:
            bounds.append(np.arange(keys) <= places)
        if self.left_window_size >= 0:
            bounds.append(np.arange(keys) >= places - self.left_window_size)
        if self.right_window_size >= 0:
            bounds.append(np.arange(keys) <= places + self.right_window_size)
        return np.logical_and.reduce(np.broadcast_arrays(*bounds)) if bounds else None

    def _shown(self, found: Attended, queries: Array, keys: Array, scale: float) -> Array:
        """The stage of the scores that the fourth output shows."""
        if self.qk_matmul_output_mode == _WEIGHTS:
            return found.weights
        if self.qk_matmul_output_mode == _MASKED:
            return found.scores
        raw = products(queries, keys, scale)
        return capped(raw, self.softcap) if self.qk_matmul_output_mode == _CAPPED else raw

    def _by_heads(self, shape: Sequence[Dim], query: bool = False) -> list[Dim]:
        """A shape as (batch, heads, length, head size)."""
        if len(shape) == 4:
            return list(shape)
        heads = self.q_num_heads if query else self.kv_num_heads
        return [shape[0], heads, shape[1], _per_head(shape[2], heads)]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        """Two matrix products and a softmax for each head."""
        moved = super().cost(inputs, outputs).bytes
        q, k, v, _, past = (*inputs, None, None)[:5]
        if q is None or k is None or v is None or q.shape is None or k.shape is None or v.shape is None:
            return Cost(None, moved)
        batch, heads, rows, size = self._by_heads(q.shape, query=True)
        length, value_size = self._by_heads(k.shape)[2], self._by_heads(v.shape)[3]
        if past is not None:
            length = unknown_dim() if past.shape is None else _sum(past.shape[2], length)
        dims = [dim for dim in (batch, heads, rows, size, length, value_size) if isinstance(dim, int)]
        if len(dims) != 6:
            return Cost(None, moved)
        scores = float(dims[0] * dims[1] * dims[2] * dims[4])
        return Cost(scores * (2 * dims[3] + 2 * dims[5] + 18), moved)


def _check_fit(queries: Array, keys: Array, values: Array, lengths: Array | None) -> None:
    """ValueError where operands (batch, heads, length, size) do not belong together: no batch or head is repeated."""
    batches = {len(queries), len(keys), len(values), len(queries) if lengths is None else lengths.size}
    if len(batches) > 1 or keys.shape[1:3] != values.shape[1:3] or queries.shape[3] != keys.shape[3]:
        raise ValueError(
            f"Q, K and V of {queries.shape}, {keys.shape} and {values.shape} (batch, heads, length, size) do not fit "
            f"together, or not nonpad_kv_seqlen {None if lengths is None else lengths.shape}"
        )


def _masks(mask: Array | None, keys: int) -> tuple[Array | None, Array | None]:
    """What a mask adds to the scores, and which keys it keeps; keys behind its end are ruled out."""
    if mask is None:
        return None, None
    given = mask.shape[-1]
    if given > keys:
        raise ValueError(f"an attn_mask of shape {mask.shape} for {keys} keys")
    around = [(0, 0)] * (mask.ndim - 1) + [(0, keys - given)]
    if mask.dtype == np.bool_:
        return None, np.pad(mask, around)
    real = mask.astype(np.float32) if mask.dtype.kind in "iu" else mask
    whole = np.pad(real, around, constant_values=-np.inf)
    return whole, ~np.isneginf(whole.astype(np.float32))


@operator("RotaryEmbedding", since=23)
class RotaryEmbedding(Reference):
    """Channels turned in pairs by the angle of their position (Su et al. 2021)."""

    num_heads: int = 0
    rotary_embedding_dim: int = 0
    interleaved: int = 0

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parameters = {"num_heads": self.num_heads, "interleaved": self.interleaved}
        return Template("rotary_embedding", parameters, self.run)
