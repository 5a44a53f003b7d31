"""Scaled dot-product attention of ONNX (opset 23): shapes with symbols and the work it does.

ONNX's reference, which is vectorised, is its meaning where no kernel is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.kernel.program import Kernel, Template
from sardonyx.ops.framework.facts import Dim, Fact, known, unknown_dim
from sardonyx.ops.framework.fallback import Reference
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Cost, operator


def _sum(a: Dim, b: Dim) -> Dim:
    return a + b if known(a) and known(b) else unknown_dim()


def _per_head(hidden: Dim, heads: int) -> Dim:
    return hidden // heads if isinstance(hidden, int) else unknown_dim()


@operator("Attention", since=23)
class Attention(Reference):
    """softmax(Q K' * scale + bias) V, with grouped heads, past keys and values, and masks."""

    q_num_heads: int = 0
    kv_num_heads: int = 0
    is_causal: int = 0
    scale: float | None = None
    softcap: float = 0.0
    left_window_size: int = -1
    right_window_size: int = -1

    host_reason = "no kernel: run by onnx.reference"

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
        keys, values = self._by_heads(k.shape), self._by_heads(v.shape)
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


@operator("RotaryEmbedding", since=23)
class RotaryEmbedding(Reference):
    """Channels turned in pairs by the angle of their position (Su et al. 2021)."""

    num_heads: int = 0
    rotary_embedding_dim: int = 0
    interleaved: int = 0

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parameters = {"num_heads": self.num_heads, "interleaved": self.interleaved}
        return Template("rotary_embedding", parameters, self.run)
