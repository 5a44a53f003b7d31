"""Group normalisation with channels first or last, an optional residual and SiLU (diffusion models)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.rules import DOMAIN, Array, expect_rank, same, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


class GroupNormalization(Operator):
    """Common to both operators: attributes and the normalisation of groups of channels."""

    host_reason: ClassVar[str] = "a reduction and what follows it"
    activation: int
    groups: int
    channels_last: int = 1
    epsilon: float = 1e-5

    def normalize(self, values: Array, gamma: Array, beta: Array) -> Array:
        """gamma * (values - mean) / sqrt(variance + epsilon) + beta, then SiLU where `activation` is 1."""
        channels_first = np.moveaxis(values, -1, 1) if self.channels_last else values
        batch, channels, *space = channels_first.shape
        if channels % self.groups:
            raise ValueError(f"{channels} channels are not divisible by {self.groups} groups")
        grouped = channels_first.reshape(batch, self.groups, -1)
        mean = grouped.mean(axis=-1, keepdims=True)
        centred = grouped - mean
        variance = np.mean(centred * centred, axis=-1, keepdims=True)
        y = (centred / np.sqrt(variance + variance.dtype.type(self.epsilon))).reshape(batch, channels, *space)
        shape = (channels, *[1] * len(space))
        y = y * wide(gamma).reshape(shape) + wide(beta).reshape(shape)
        if self.activation == 1:
            y = y / (1 + np.exp(-y))
        elif self.activation != 0:
            raise ValueError(f"attribute 'activation' must be 0 (none) or 1 (SiLU), not {self.activation}")
        return np.moveaxis(y, 1, -1) if self.channels_last else y

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        expect_rank(inputs[0], (4,), "X")
        return [same(inputs[0]), same(inputs[0])]


@operator("GroupNorm", domain=DOMAIN)
class GroupNorm(GroupNormalization):
    """Normalisation of each group of channels, with a scale and a shift for each channel."""

    inputs: ClassVar[str] = "X, gamma, beta"
    outputs: ClassVar[str] = "Y"

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, gamma, beta = inputs
        return (self.normalize(wide(x), gamma, beta).astype(x.dtype),)


@operator("SkipGroupNorm", domain=DOMAIN)
class SkipGroupNorm(GroupNormalization):
    """GroupNorm of X + skip + bias; the second output is that sum. `skip` may be one value for each channel."""

    inputs: ClassVar[str] = "X, gamma, beta, skip, bias?"
    outputs: ClassVar[str] = "Y, S?"

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, gamma, beta, skip = inputs[:4]
        bias = inputs[4] if len(inputs) > 4 else None
        channels = gamma.size
        per_channel = (1, 1, channels) if self.channels_last else (channels, 1, 1)
        if skip.ndim == 2 or skip.size == skip.shape[0] * channels:
            skip = skip.reshape(-1, *per_channel)
        total = wide(x) + wide(skip)
        if bias is not None:
            total = total + wide(bias).reshape(per_channel)
        return self.normalize(total, gamma, beta).astype(x.dtype), total.astype(x.dtype)
