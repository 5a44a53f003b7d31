"""Col2Im: blocks put back into an image, sums where they overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.program import Kernel, Template
from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import Dim, Fact, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator
from sardonyx.ops.windows import WindowAttributes, Windows
from sardonyx.runtime.memory import memory


@operator("Col2Im", since=18)
class Col2Im(Operator):
    """(N, C * taps, blocks) to (N, C, ...): the blocks are those that windows over the padded image would read."""

    dilations: tuple[int, ...] | None = None
    pads: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None

    def windows(self, shape: Sequence[int], image: Sequence[int], block: Sequence[int]) -> Windows:
        """The windows that the blocks fill; ValueError where a tensor of this shape does not hold them."""
        if len(image) != len(block) or len(shape) != 3:
            raise ValueError(f"blocks {list(block)} of an image {list(image)} need one size for each dimension")
        attributes = WindowAttributes.of(tuple(block), self.strides, self.dilations, self.pads, "NOTSET")
        windows = attributes.windows(image)
        taps, blocks = math.prod(block), math.prod(windows.output)
        if taps == 0 or shape[1] % taps or shape[2] != blocks:
            raise ValueError(
                f"an input of shape {tuple(shape)} does not hold blocks {list(block)} of an image {list(image)}: "
                f"expected (N, C * {taps}, {blocks})"
            )
        return windows

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data, image, block = inputs[0], inputs[1], inputs[2]
        assert data is not None
        if data.shape is None or image is None or image.elements is None:
            return inference.by_onnx(self.node, inputs, self.version)
        taps = None if block is None else block.integers()
        channels: Dim = unknown_dim() if not taps else dims.floor_divide(data.shape[1], math.prod(taps))
        return [Fact(data.type, (data.shape[0], channels, *image.elements))]

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return Template("col2im", {"windows": self.windows}, self.run)

    def run(self, data: Array, image: Array, block: Array) -> Sequence[Value]:
        windows = self.windows(data.shape, image.ravel().tolist(), block.ravel().tolist())
        batch, channels = data.shape[0], data.shape[1] // math.prod(windows.kernel)
        wide = data.dtype if data.dtype.kind in "iub" else working_dtype(data.dtype)
        columns = data.reshape(batch, channels, *windows.kernel, *windows.output)
        room = [sum(sizes) for sizes in zip(windows.begin, windows.size, windows.end, strict=True)]
        memory.require(batch * channels * math.prod(room) * np.dtype(wide).itemsize, "an image with its padding")
        full = np.zeros((batch, channels, *room), wide)
        for tap in windows.taps():
            view = windows.read(full, tap)
            at_tap: tuple[Any, ...] = (slice(None), slice(None), *tap)
            view += columns[at_tap]
        inner: tuple[Any, ...] = (
            ...,
            *(slice(begin, begin + size) for begin, size in zip(windows.begin, windows.size, strict=True)),
        )
        return (np.ascontiguousarray(full[inner]).astype(data.dtype, copy=False),)


__all__ = ["Col2Im"]
