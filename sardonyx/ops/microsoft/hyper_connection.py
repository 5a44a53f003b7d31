"""Hyper-connections: several residual streams mixed before and after a block (Zhu et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, divided, like, same, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


class HyperConnection(Operator):
    """Streams as (…, C, H), or flattened to (…, C * H) where `num_branches` gives C."""

    host_reason: ClassVar[str] = "a reduction over streams"
    num_branches: int = 0

    def grouped(self, streams: Array) -> Array:
        if not self.num_branches:
            return wide(streams)
        return divided(wide(streams), self.num_branches, "streams")

    def gates(self, mix: Array, grouped: Array) -> Array:
        """Gates (…, C), (…, C, 1), (…, C, H) or (…, C * H) as an array that broadcasts to the streams."""
        values, lead = wide(mix), grouped.shape[:-2]
        for shape in ((*grouped.shape[:-1], 1), grouped.shape):
            if values.size == np.prod(shape, dtype=np.int64) and values.shape[: len(lead)] == lead:
                return values.reshape(shape)
        raise ValueError(f"gates of shape {mix.shape} do not fit streams of shape {grouped.shape}")


@operator("HyperConnectionPreMix", domain=DOMAIN)
class HyperConnectionPreMix(HyperConnection):
    """reduction_scale * the gated sum over the streams."""

    inputs: ClassVar[str] = "streams, pre_mix"
    outputs: ClassVar[str] = "output"
    reduction_scale: float = 1.0

    def run(self, *inputs: Any) -> Sequence[Array]:
        streams, mix = inputs
        grouped = self.grouped(streams)
        y = (grouped * self.gates(mix, grouped)).sum(axis=-2) * np.float32(self.reduction_scale)
        return (y.astype(streams.dtype),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        if x is None or x.shape is None:
            return [like(x, None)]
        if self.num_branches:
            return [like(x, (*x.shape[:-1], dim(x, -1) // self.num_branches))]
        return [like(x, (*x.shape[:-2], x.shape[-1]))]


@operator("HyperConnectionPostMix", domain=DOMAIN)
class HyperConnectionPostMix(HyperConnection):
    """stream_mix^T @ streams + post_mix * block_output, for each position; stream_mix defaults to the identity."""

    inputs: ClassVar[str] = "streams, block_output, post_mix, stream_mix?"
    outputs: ClassVar[str] = "output"

    def run(self, *inputs: Any) -> Sequence[Array]:
        streams, block, post = inputs[:3]
        grouped = self.grouped(streams)
        mixed = grouped
        if len(inputs) > 3 and inputs[3] is not None:
            mixed = np.matmul(np.swapaxes(wide(inputs[3]), -1, -2), grouped)
        y = mixed + self.gates(post, grouped) * wide(block)[..., None, :]
        return (y.reshape(streams.shape).astype(streams.dtype),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [same(inputs[0])]
