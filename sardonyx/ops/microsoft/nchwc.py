"""The operators of `com.microsoft.nchwc`, which onnxruntime's layout optimizer puts into models for one machine.

There a tensor's channels lie in blocks in memory while its shape says (N, C, H, W). Here tensors keep row order, with
as many channels as the blocks have room for; only the weights, which the model stores blocked, are put in order, once
a session. ReorderInput and ReorderOutput add and remove the channels that fill the last block.
"""

from __future__ import annotations

import functools
import importlib
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.kernel.program import Kernel, Template
from sardonyx.ops import convolution, pooling
from sardonyx.ops.framework.facts import Dim, Fact
from sardonyx.ops.framework.operator import Array, Operator, operator
from sardonyx.ops.microsoft.activations import activate, activation_of
from sardonyx.ops.microsoft.channels_last import channels_at_end, channels_second, fact_channels_second
from sardonyx.ops.microsoft.packed_weights import WeightCache
from sardonyx.ops.microsoft.rules import like
from sardonyx.ops.resize import AxisResize, ResampleRule
from sardonyx.runtime.forks import cached_property

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference

NCHWC = "com.microsoft.nchwc"


def block_size(node: ir.Node) -> int:
    """How many channels a block has in the model that `node` is part of.

    The model does not say it. Filters that are no multiple of 16 prove blocks of 8; otherwise the model is taken to be
    made for a machine like this one, as onnxruntime takes it.
    """
    nodes = [node] if node.graph is None else list(node.graph)
    for other in nodes:
        if other.domain == NCHWC and other.op_type == "Conv" and len(other.inputs) > 1 and other.inputs[1] is not None:
            shape = other.inputs[1].shape
            if shape is not None and isinstance(shape[0], int) and shape[0] % 16:
                return 8
    return machine_block_size()


@functools.cache
def machine_block_size() -> int:
    """The block size that onnxruntime chooses on this machine: 16 with AVX-512 or outside x86, else 8."""
    if platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686"):
        return 16
    features = getattr(importlib.import_module("numpy._core._multiarray_umath"), "__cpu_features__", {})
    return 16 if features.get("AVX512F") else 8


def rounded_up(dim: Dim, block: int) -> Dim:
    """The channels that whole blocks have room for."""
    return -(-dim // block) * block if isinstance(dim, int) else (dim + (block - 1)) // block * block


def ordered(w: Array, groups: int, block: int) -> Array:
    """Stored weights as (M, C / groups, ...).

    Blocks of filters are outermost and the filters of a block innermost; where the input is blocked too, the channels
    of its blocks come just before them. Depthwise weights and those of an input in row order have filter blocks only.
    """
    filters, depth, *kernel = w.shape
    if filters % block:
        raise ValueError(f"input 'W' has {filters} filters, which do not divide into blocks of {block}")
    if depth % block:
        stored = w.reshape(filters // block, depth, *kernel, block)
        return np.moveaxis(stored, -1, 1).reshape(w.shape)
    stored = w.reshape(filters // block, depth // block, *kernel, block, block)
    count = len(kernel)
    axes = (0, 3 + count, 1, 2 + count, *range(2, 2 + count))
    return stored.transpose(axes).reshape(w.shape)


@operator("ReorderInput", domain=NCHWC)
class ReorderInput(Operator):
    """Channels added until they fill whole blocks; from channels-last order where `channels_last` is set."""

    inputs: ClassVar[str] = "X"
    outputs: ClassVar[str] = "Y"
    channels_last: int = 0
    host_reason: ClassVar[str] = "a change of layout"

    @cached_property
    def _block(self) -> int:
        return block_size(self.node)

    def run(self, *inputs: Any) -> Sequence[Array]:
        (x,) = inputs
        plain = channels_second(x) if self.channels_last else x
        room = rounded_up(plain.shape[1], self._block)
        assert isinstance(room, int)
        y = np.zeros((plain.shape[0], room, *plain.shape[2:]), x.dtype)
        y[:, : plain.shape[1]] = plain
        return (y,)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = fact_channels_second(inputs[0]) if self.channels_last else inputs[0]
        if x is None or x.shape is None:
            return [like(x, None)]
        return [like(x, (x.shape[0], rounded_up(x.shape[1], self._block), *x.shape[2:]))]


@operator("ReorderOutput", domain=NCHWC)
class ReorderOutput(Operator):
    """The first `channels` channels; in channels-last order where `channels_last` is set."""

    inputs: ClassVar[str] = "X"
    outputs: ClassVar[str] = "Y"
    channels: int = 0
    channels_last: int = 0
    host_reason: ClassVar[str] = "a change of layout"

    def run(self, *inputs: Any) -> Sequence[Array]:
        (x,) = inputs
        if not 0 < self.channels <= x.shape[1]:
            raise ValueError(f"attribute 'channels' must be between 1 and {x.shape[1]}, not {self.channels}")
        y = x[:, : self.channels]
        return (channels_at_end(y) if self.channels_last else np.ascontiguousarray(y),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        if x is None or x.shape is None:
            return [like(x, None)]
        if self.channels_last:
            return [like(x, (x.shape[0], *x.shape[2:], self.channels))]
        return [like(x, (x.shape[0], self.channels, *x.shape[2:]))]


@operator("Conv", domain=NCHWC)
class Conv(convolution.Conv):
    """activation(Conv + Sum) with weights stored in blocks."""

    inputs: ClassVar[str] = "X, W, B?, Sum?"
    outputs: ClassVar[str] = "Y"
    activation: str = ""
    activation_params: tuple[float, ...] = ()

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        self._cache = WeightCache(node, (1,))

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        block = block_size(self.node)
        return self.template(
            activation=activation_of(self.activation, self.activation_params),
            weights=(("nchwc", self.group, block), lambda w: ordered(w, self.group, block)),
        )

    def run(self, x: Array, w: Array, bias: Array | None = None, total: Array | None = None) -> Sequence[Array]:
        weights = self._cache.get((w,), lambda: ordered(w, self.group, block_size(self.node)))
        (y,) = super().run(x, weights, bias)
        if total is not None:
            y = y + total
        return (activate(self.activation, y, self.activation_params),)


@operator("MaxPool", domain=NCHWC)
class MaxPool(pooling.MaxPool):
    """The largest element of each window."""

    inputs: ClassVar[str] = "X"
    outputs: ClassVar[str] = "Y"


@operator("AveragePool", domain=NCHWC)
class AveragePool(pooling.AveragePool):
    """The mean of each window."""

    inputs: ClassVar[str] = "X"
    outputs: ClassVar[str] = "Y"


@operator("GlobalMaxPool", domain=NCHWC)
class GlobalMaxPool(pooling.GlobalMaxPool):
    """The largest element of each map."""

    inputs: ClassVar[str] = "X"
    outputs: ClassVar[str] = "Y"


@operator("GlobalAveragePool", domain=NCHWC)
class GlobalAveragePool(pooling.GlobalAveragePool):
    """The mean of each map."""

    inputs: ClassVar[str] = "X"
    outputs: ClassVar[str] = "Y"


@operator("Upsample", domain=NCHWC)
class Upsample(Operator):
    """Maps enlarged by whole factors: `nearest` repeats elements, `linear` interpolates along each axis."""

    inputs: ClassVar[str] = "X"
    outputs: ClassVar[str] = "Y"
    scales: tuple[int, ...] | None = None
    mode: str = "nearest"
    coordinate_transformation_mode: str = "asymmetric"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        coordinates = "asymmetric" if self.mode == "nearest" else self.coordinate_transformation_mode
        rule = ResampleRule(self.mode, coordinates, "floor")
        return Template("resize", {"rule": rule, "plan": self.plan, "known": ()}, self.run)

    def plan(self, shape: Sequence[int], *others: Array | None) -> Sequence[AxisResize]:
        """What becomes of each axis."""
        factors = zip(shape, self.factors(len(shape)), strict=True)
        return [AxisResize(size, size * factor, float(factor)) for size, factor in factors]

    def factors(self, rank: int) -> tuple[int, ...]:
        """One factor for each axis; those of batch and channels are 1."""
        scales = (1,) * rank if self.scales is None else tuple(self.scales)
        if len(scales) != rank or scales[:2] != (1, 1) or min(scales) < 1:
            raise ValueError(f"attribute 'scales' must have {rank} factors, the first two of them 1, not {scales}")
        return scales

    def run(self, *inputs: Any) -> Sequence[Array]:
        (x,) = inputs
        for axis, factor in enumerate(self.factors(x.ndim)):
            if factor != 1:
                x = np.repeat(x, factor, axis=axis) if self.mode == "nearest" else self.interpolated(x, axis, factor)
        return (x,)

    def interpolated(self, x: Array, axis: int, factor: int) -> Array:
        """`x` with `factor` times the elements along `axis`, between its neighbours."""
        size = x.shape[axis]
        places = np.arange(size * factor, dtype=np.float32)
        if self.coordinate_transformation_mode == "align_corners":
            source = places * np.float32(size - 1) / np.float32(max(size * factor - 1, 1))
        elif self.coordinate_transformation_mode == "half_pixel":
            source = (places + np.float32(0.5)) / np.float32(factor) - np.float32(0.5)
        elif self.coordinate_transformation_mode == "asymmetric":
            source = places / np.float32(factor)
        else:
            raise ValueError(
                "attribute 'coordinate_transformation_mode' must be asymmetric, align_corners or half_pixel, not "
                f"'{self.coordinate_transformation_mode}'"
            )
        source = np.clip(source, 0, size - 1)
        low = np.floor(source).astype(np.int64)
        weight = (source - low).reshape([-1 if index == axis else 1 for index in range(x.ndim)]).astype(x.dtype)
        below, above = np.take(x, low, axis), np.take(x, np.minimum(low + 1, size - 1), axis)
        return np.asarray(below * (1 - weight) + above * weight)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        if x is None or x.shape is None:
            return [like(x, None)]
        factors = self.factors(len(x.shape))
        return [like(x, [size * factor for size, factor in zip(x.shape, factors, strict=True)])]
