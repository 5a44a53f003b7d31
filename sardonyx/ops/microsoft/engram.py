"""Engram: hashed n-grams of token ids as keys of a memory, and the gate that admits what it returns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import Fact, tensor
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.layer_normalization import normalized
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, like, same, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


@operator("EngramGate", domain=DOMAIN)
class EngramGate(Operator):
    """sigmoid(sign(d) * sqrt(max(|d|, 1e-6))) * value, d the scaled product of the normalised key and query.

    key, query (batch, length, streams, size), value (batch, length, size); the second output is the first one
    RMS-normalised with `conv_norm_scale`.
    """

    inputs: ClassVar[str] = "key, query, value, key_norm_scale, query_norm_scale, conv_norm_scale?"
    outputs: ClassVar[str] = "output, gated_value_normed?"
    host_reason: ClassVar[str] = "a reduction and what follows it"
    epsilon: float = 1e-5

    def run(self, *inputs: Any) -> Sequence[Array]:
        key, query, value, key_scale, query_scale, last_scale = padded(inputs, 6)
        k, q = (
            normalized(x, 1, self.epsilon, centred=False)[0] * wide(scale)
            for x, scale in ((key, key_scale), (query, query_scale))
        )
        dot = (k * q).sum(axis=-1, keepdims=True) / np.float32(math.sqrt(key.shape[-1]))
        gate = 1 / (1 + np.exp(-np.sign(dot) * np.sqrt(np.maximum(np.abs(dot), np.float32(1e-6)))))
        gated = gate * wide(value)[:, :, None, :]
        if last_scale is None:
            if self.has_output(1):
                raise ValueError("the output 'gated_value_normed' needs the input 'conv_norm_scale'")
            return (gated.astype(key.dtype),)
        again = normalized(gated, 1, self.epsilon, centred=False)[0] * wide(last_scale)
        return gated.astype(key.dtype), again.astype(key.dtype)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [same(inputs[0]), same(inputs[0])]


class NGramHash(Operator):
    """For each order n, the xor of n ids, each times its multiplier, modulo each head's vocabulary."""

    host_reason: ClassVar[str] = "integer hashing"
    max_ngram_size: int
    n_head_per_ngram: int
    pad_id: int
    reset_on_eos: int = 0

    @property
    def columns(self) -> int:
        return (self.max_ngram_size - 1) * self.n_head_per_ngram

    def hashes(
        self,
        history: Array,
        length: int,
        multipliers: Array,
        sizes: Array,
        offsets: Array | None,
        eos: Array | None,
        boundaries: Array | None,
    ) -> Array:
        """Hash ids (rows, length, columns) of the last `length` ids of `history` (rows, max_ngram_size - 1 + length).

        `boundaries` marks the places where a segment begins; ids before one do not count for those from it on.
        """
        if self.max_ngram_size < 2 or multipliers.size < self.max_ngram_size or sizes.size != self.columns:
            raise ValueError(f"'multipliers' or 'vocab_sizes' do not fit n-grams up to {self.max_ngram_size}")
        if (sizes <= 0).any():
            raise ValueError("every entry of 'vocab_sizes' must be positive")
        reach = self.max_ngram_size - 1
        missing = history.dtype.type(self.pad_id if eos is None else int(eos.reshape(())))
        cut = np.zeros((len(history), length), np.bool_)
        mix = np.zeros((len(history), length), history.dtype)
        result = np.empty((len(history), length, self.columns), history.dtype)
        with np.errstate(over="ignore"):
            for shift in range(self.max_ngram_size):
                place = slice(reach - shift, reach - shift + length)
                if shift and eos is not None and self.reset_on_eos:
                    cut = cut | (history[:, place] == missing)
                if shift and boundaries is not None:
                    later = slice(place.start + 1, place.stop + 1)
                    cut = cut | boundaries[:, later]
                mix = mix ^ (np.where(cut, missing, history[:, place]) * multipliers.reshape(-1)[shift])
                if shift:
                    heads = slice((shift - 1) * self.n_head_per_ngram, shift * self.n_head_per_ngram)
                    result[..., heads] = mix[..., None] % sizes.reshape(-1)[heads]
            return result if offsets is None else result + offsets.reshape(-1)

    def missing(self, rows: int, eos: Array | None, dtype: np.dtype[Any]) -> Array:
        """The history before the first id."""
        value = self.pad_id if eos is None else int(eos.reshape(()))
        return np.full((rows, self.max_ngram_size - 1), value, dtype)


@operator("NGramHashMapping", domain=DOMAIN)
class NGramHashMapping(NGramHash):
    """Hash ids of input_ids (batch, length) as (batch, length, columns); also the last ids, for the next call."""

    inputs: ClassVar[str] = "input_ids, multipliers, vocab_sizes, past_ids?, head_offsets?, eos_token_id?, segment_ids?"
    outputs: ClassVar[str] = "hash_ids, present_ids?"

    def run(self, *inputs: Any) -> Sequence[Array]:
        ids, multipliers, sizes, past, offsets, eos, segments = padded(inputs, 7)
        before = self.missing(len(ids), eos, ids.dtype) if past is None else past
        history = np.concatenate([before, ids], axis=1)
        reach = self.max_ngram_size - 1
        boundaries = None
        if segments is not None:
            boundaries = np.zeros(history.shape, np.bool_)
            boundaries[:, reach + 1 :] = segments[:, 1:] != segments[:, :-1]
        hashes = self.hashes(history, ids.shape[1], multipliers, sizes, offsets, eos, boundaries)
        return hashes, history[:, history.shape[1] - reach :].copy()

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        ids = inputs[0]
        batch = dim(ids, 0)
        return [like(ids, (batch, dim(ids, 1), self.columns)), like(ids, (batch, self.max_ngram_size - 1))]


@operator("VarlenNGramHashMapping", domain=DOMAIN)
class VarlenNGramHashMapping(NGramHash):
    """The same over packed sequences: input_ids (tokens), a history for each sequence."""

    inputs: ClassVar[str] = (
        "input_ids, multipliers, vocab_sizes, cumulative_sequence_length, past_ids?, head_offsets?, eos_token_id?, "
        "segment_ids?, past_segment_ids?, capture_count?"
    )
    outputs: ClassVar[str] = "hash_ids, present_ids?, present_segment_ids?, state_update?"
    state_update_capacity: int = 0

    def run(self, *inputs: Any) -> Sequence[Array]:
        ids, multipliers, sizes, sums, past, offsets, eos, segments, past_segments, captures = padded(inputs, 10)
        if segments is None and (past_segments is not None or self.has_output(2)):
            raise ValueError("'past_segment_ids' and 'present_segment_ids' need the input 'segment_ids'")
        ends = sums.tolist()
        if ends[0] != 0 or ends[-1] != len(ids) or any(b <= a for a, b in itertools.pairwise(ends)):
            raise ValueError(f"'cumulative_sequence_length' {ends} does not divide {len(ids)} tokens into sequences")
        batch, reach = len(ends) - 1, self.max_ngram_size - 1
        before = self.missing(batch, eos, ids.dtype) if past is None else past
        hashes = np.empty((len(ids), self.columns), ids.dtype)
        present = np.empty_like(before)
        present_segments = np.zeros((batch, reach), np.int32)
        update = np.full((batch, self.state_update_capacity, reach), self.pad_id, ids.dtype)
        for entry, (start, end) in enumerate(itertools.pairwise(ends)):
            history = np.concatenate([before[entry], ids[start:end]])
            boundaries = None
            if segments is not None:  # a history without segments belongs to the first one
                before_them = np.repeat(segments[start], reach) if past_segments is None else past_segments[entry]
                own = np.concatenate([before_them, segments[start:end]])
                boundaries = np.concatenate([[False], own[1:] != own[:-1]])[None]
                present_segments[entry] = own[len(own) - reach :]
            given = end - start, multipliers, sizes, offsets, eos, boundaries
            hashes[start:end] = self.hashes(history[None], *given)[0]
            present[entry] = history[len(history) - reach :]
            count = (
                0 if captures is None else min(max(int(captures[entry]), 0), self.state_update_capacity, end - start)
            )
            for slot in range(count):
                update[entry, slot] = history[slot + 1 : slot + 1 + reach]
        return hashes, present, present_segments, update

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        ids, sums = inputs[0], inputs[3]
        batch, reach = dim(sums, 0) - 1, self.max_ngram_size - 1
        return [
            like(ids, (dim(ids, 0), self.columns)),
            like(ids, (batch, reach)),
            tensor(ir.DataType.INT32, (batch, reach)),
            like(ids, (batch, self.state_update_capacity, reach)),
        ]
