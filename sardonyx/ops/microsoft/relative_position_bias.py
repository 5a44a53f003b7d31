"""Relative position biases: T5's buckets of distances (Raffel et al. 2020) and WavLM's gate on such a bias."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx import errors
from sardonyx.ops.framework.facts import Dim, Fact, unknown_dim
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, divided, like, wide
from sardonyx.runtime.memory import memory

# Bytes for the bucket of a query and a key.
_BYTES_PER_PAIR = 48

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


def buckets(distance: Array, count: int, longest: int, bidirectional: bool) -> Array:
    """The bucket of each key position minus query position.

    With both directions the later keys have the upper half of the buckets. Half of a direction's buckets hold one
    distance each; the others grow logarithmically up to `longest`.
    """
    result = np.zeros_like(distance)
    if bidirectional:
        count //= 2
        result += np.where(distance > 0, count, 0)
        distance = np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    exact = count // 2
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / np.float32(
        math.log(longest / exact)
    )
    far = np.minimum(exact + (ratio * np.float32(count - exact)).astype(distance.dtype), count - 1)
    return result + np.where(distance < exact, distance, far)


@operator("RelativePositionBias", domain=DOMAIN)
class RelativePositionBias(Operator):
    """bias_table (buckets, heads) at the bucket of each distance, as (1, heads, queries, keys)."""

    inputs: ClassVar[str] = "bias_table, query_length, key_length"
    outputs: ClassVar[str] = "output"
    host_reason: ClassVar[str] = "the size of the output depends on the data"
    max_distance: int
    is_bidirectional: int = 0

    def run(self, *inputs: Any) -> Sequence[Array]:
        table, queries, keys = inputs
        columns, rows = (max(0, int(size.reshape(()))) for size in (keys, queries))
        memory.require(
            (rows * columns + rows + columns) * (_BYTES_PER_PAIR + table.nbytes // max(1, len(table))), "biases"
        )
        distance = np.arange(columns)[None] - np.arange(rows)[:, None]
        places = buckets(distance, len(table), self.max_distance, bool(self.is_bidirectional))
        return (np.ascontiguousarray(table[places].transpose(2, 0, 1)[None]),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        sizes: list[Dim] = []
        for fact in inputs[1:3]:
            given = None if fact is None else fact.elements
            sizes.append(given[0] if given else unknown_dim())
        return [like(inputs[0], (1, dim(inputs[0], 1), *sizes))]


@operator("GatedRelativePositionBias", domain=DOMAIN)
class GatedRelativePositionBias(Operator):
    """rel_pos times u * (r * eco_a - 1) + 2, where u, r are sigmoids of sums over halves of a projected query."""

    inputs: ClassVar[str] = "query_layer, query_bias, rel_pos, weight, bias, eco_a, token_offset?"
    outputs: ClassVar[str] = "output"
    host_reason: ClassVar[str] = "a matrix product and what follows it"
    num_heads: int

    def run(self, *inputs: Any) -> Sequence[Array]:
        query, query_bias, position, weight, bias, scale = inputs[:6]
        if len(inputs) > 6 and inputs[6] is not None:
            raise errors.NotImplemented("GatedRelativePositionBias runs without token_offset only")
        heads = divided(wide(query) + wide(query_bias), self.num_heads, "query_layer").transpose(0, 2, 1, 3)
        projected = np.matmul(heads, wide(weight)) + wide(bias)
        sums = divided(projected, 2, "weight").sum(axis=-1)
        update, reset = np.split(1 / (1 + np.exp(-sums)), 2, axis=-1)
        gate = update * (reset * wide(scale) - 1) + 2
        return ((gate * wide(position)).astype(query.dtype),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        query, position = inputs[0], inputs[2]
        batch = dim(query, 0) if query is not None and query.rank == 3 else unknown_dim()
        return [like(query, (batch, self.num_heads, dim(position, 2), dim(position, 3)))]
