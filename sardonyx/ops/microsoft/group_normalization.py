"""Group normalisation with channels first or last, an optional residual and SiLU (diffusion models)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx.kernel import expr as k
from sardonyx.kernel.program import Arrangement, Host, Kernel
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.rules import DOMAIN, Array, expect_rank, same, wide
from sardonyx.ops.row_kernels import (
    Contents,
    Shapes,
    affine,
    given,
    is_computable,
    leaves,
    rows_template,
    standardized,
)

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
        grouped = channels_first.reshape(batch, self.groups, channels // self.groups * math.prod(space))
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

    def lower_groups(
        self, inputs: Sequence[np.dtype[Any] | None], skip: int | None = None, bias: int | None = None
    ) -> Kernel:
        """The kernel; `skip` and `bias` are the inputs that are added to the first one."""
        x = inputs[0]
        if x is None or not all(dtype is None or is_computable(dtype) for dtype in inputs):
            return Host(self.run, self.host_reason)
        values, gamma, beta, *more = leaves(inputs)
        assert values is not None
        total = values
        for index in (skip, bias):
            extra = None if index is None or index >= len(inputs) else more[index - 3]
            total = total if extra is None else total + extra.cast(values.dtype)
        y = affine(standardized(total, self.epsilon)[0], gamma, beta)
        if self.activation == 1:
            y = k.gated(y, y)
        outputs = [y.cast(x), total.cast(x) if self.has_output(1) else None]
        return rows_template(inputs, outputs[: max(1, self.wanted_outputs)], self._arranged, self.run)

    def _arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        """Groups and their channels as dimensions of their own; a vector or a map of one number for each channel."""
        shape = given(shapes[0])
        batch, *rest = shape
        channels = rest.pop() if self.channels_last else rest.pop(0)
        if self.activation not in (0, 1):
            raise ValueError(f"attribute 'activation' must be 0 (none) or 1 (SiLU), not {self.activation}")
        if channels % self.groups:
            raise ValueError(f"{channels} channels are not divisible by {self.groups} groups")
        size = math.prod(rest)
        grouped = (self.groups, channels // self.groups)

        def placed(items: int, positions: int) -> tuple[int, ...]:
            return (items, positions, *grouped) if self.channels_last else (items, *grouped, positions)

        inputs = [placed(batch, size)]
        for one in shapes[1:]:
            if one is None:
                continue
            count = math.prod(one)
            items = batch if len(one) > 1 and one[0] == batch and count == batch * channels else 1
            positions = size if count == batch * channels * size and len(one) == len(shape) else 1
            items = batch if positions > 1 else items
            if count != items * channels * positions:
                raise ValueError(f"an input of shape {one} does not have one number for each channel of {shape}")
            inputs.append(placed(items, positions))
        axes = (1, 3) if self.channels_last else (2, 3)
        return Arrangement(tuple(inputs), axes, (shape,) * (2 if self.has_output(1) else 1))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        expect_rank(inputs[0], (4,), "X")
        return [same(inputs[0]), same(inputs[0])]


@operator("GroupNorm", domain=DOMAIN)
class GroupNorm(GroupNormalization):
    """Normalisation of each group of channels, with a scale and a shift for each channel."""

    inputs: ClassVar[str] = "X, gamma, beta"
    outputs: ClassVar[str] = "Y"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.lower_groups(inputs)

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, gamma, beta = inputs
        return (self.normalize(wide(x), gamma, beta).astype(x.dtype),)


@operator("SkipGroupNorm", domain=DOMAIN)
class SkipGroupNorm(GroupNormalization):
    """GroupNorm of X + skip + bias; the second output is that sum. `skip` may be one value for each channel."""

    inputs: ClassVar[str] = "X, gamma, beta, skip, bias?"
    outputs: ClassVar[str] = "Y, S?"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.lower_groups(inputs, skip=3, bias=4)

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
