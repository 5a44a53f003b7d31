"""First layers, depthwise convolutions, convolutions in groups, pools and resizing against their floors, on one thread.

    python -m benchmarks.kernels.windows [--only WORD] [--variant avx2]

Each case is bound once and its steps are called directly; times are the best of many runs without what the calls take
by themselves, so they hold for data that lies in the caches where it fits there. The floor is the time of the
arithmetic at the measured peak, or that of moving the input and the result once at the measured bandwidth of the place
where both stay (a cache or memory), whichever is longer; `share` is the floor's time over ours. An extreme or a sum of
two vectors takes the place of a multiply-add; activations are not counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

import sardonyx.ops.pooling
import sardonyx.ops.resize  # noqa: F401
from benchmarks.floors import measure
from benchmarks.kernels.movement import Runner, best
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import Epilogue, find_template
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.native.convolution.convolution import convolve
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.kernel import expr as e
from sardonyx.kernel.expr import Input
from sardonyx.kernel.program import Template
from sardonyx.ops.framework.operator import find_class
from sardonyx.ops.windows import WindowAttributes

F32 = np.dtype(np.float32)
_OPSET = 22


class Case(Protocol):
    """Something to be bound: the input, the result, and the operations, two for each multiply-add."""

    @property
    def name(self) -> str: ...

    def bind(self, binder: Binder) -> tuple[Tensor, Tensor, float]: ...


@dataclass(frozen=True)
class Convolution:
    """Square windows over maps of `sizes`: a depthwise convolution, one in groups of `each` channels, or a first layer
    of `filters` over few channels."""

    channels: int
    sizes: tuple[int, ...]
    kernel: int
    stride: int = 1
    channels_last: bool = True
    activation: str = ""
    filters: int = 0
    pad: int | None = None
    each: int = 1

    @property
    def name(self) -> str:
        size, layout = "x".join(map(str, self.sizes)), "channels last" if self.channels_last else "rows"
        kind = f"first layer {self.filters} of" if self.filters else "depthwise"
        kind = f"groups of {self.each} of" if self.each > 1 else kind
        return f"{kind} {self.channels} @ {size}, {self.kernel} by {self.stride}, {self.activation} {layout}"

    def bind(self, binder: Binder) -> tuple[Tensor, Tensor, float]:
        rank, filters = len(self.sizes), self.filters or self.channels
        x = _input(binder, self.channels, self.sizes, channels_last=self.channels_last)
        group = 1 if self.filters else self.channels // self.each
        w = binder.constant(np.ones((filters, self.channels // group, *(self.kernel,) * rank), np.float32))
        pad = self.kernel // 2 if self.pad is None else self.pad
        attributes = WindowAttributes.of(
            (self.kernel,) * rank, (self.stride,) * rank, None, (pad,) * (2 * rank), "NOTSET"
        )
        bias = binder.constant(np.ones(filters, np.float32))
        windows = attributes.windows(self.sizes)
        call = ConvolutionCall(x, w, bias, windows, group, _epilogue(self.activation), "f32")
        (y,) = convolve(binder, call)
        return x, y, call.flops


@dataclass(frozen=True)
class Sampling:
    """An operator over maps of `sizes`, whose attributes are given; `resized` are the sizes of Resize's result.

    `combined` is how many combinations of two elements one of the result takes.
    """

    operator: str
    channels: int
    sizes: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    combined: float = 0.0
    resized: tuple[int, ...] = ()
    channels_last: bool = True

    @property
    def name(self) -> str:
        size, layout = "x".join(map(str, self.sizes)), "channels last" if self.channels_last else "rows"
        how = [str(self.attributes[key]) for key in ("mode", "kernel_shape", "strides") if key in self.attributes]
        target = f" to {'x'.join(map(str, self.resized))}" if self.resized else ""
        return f"{' '.join((self.operator, *how))} {self.channels} @ {size}{target}, {layout}"

    def bind(self, binder: Binder) -> tuple[Tensor, Tensor, float]:
        x = _input(binder, self.channels, self.sizes, channels_last=self.channels_last)
        inputs: list[Tensor | None] = [x]
        if self.resized:
            inputs += [None, None, binder.constant(np.array((1, self.channels, *self.resized), np.int64))]
        values = [ir.Value(name=f"x{index}") for index in range(len(inputs))]
        node = ir.node(self.operator, values, self.attributes)
        node.outputs[0].name = "y"
        found = find_class("", self.operator, _OPSET)
        assert found is not None
        lowered = found(node, _OPSET).lower([None if one is None else one.dtype for one in inputs])
        assert isinstance(lowered, Template)
        kernel = find_template(lowered.name)
        assert kernel is not None
        (y,) = kernel(lowered.parameters).bind(binder, *inputs)
        assert y is not None
        return x, y, 2.0 * self.combined * y.size


def _input(binder: Binder, channels: int, sizes: tuple[int, ...], *, channels_last: bool) -> Tensor:
    rank = len(sizes)
    if not channels_last:
        return binder.external(0, F32, (1, channels, *sizes))
    return transposed(binder.external(0, F32, (1, *sizes, channels)), (0, rank + 1, *range(1, rank + 1)))


def _epilogue(activation: str) -> Epilogue | None:
    y = Input(F32, 0)
    if activation == "SiLU":
        return Epilogue((y / (1 + e.exp(-y)),), ())
    return Epilogue((e.minimum(e.maximum(y, 0), 6),), ()) if activation == "Clip" else None


def cases() -> Iterator[Case]:
    """First layers of the zoo, the depthwise layers of MobileNetV2, EfficientNet, ConvNeXt and Conformer, those in
    groups of ResNeXt and RegNet, the usual pools, and enlargements."""
    for filters, size, kernel, stride, pad in (
        (32, 224, 3, 2, 1), (48, 380, 3, 2, 1), (64, 224, 7, 2, 3),
        (96, 224, 4, 4, 0), (32, 640, 6, 2, 2), (64, 256, 3, 1, 1),
    ):  # fmt: skip
        yield Convolution(3, (size, size), kernel, stride, False, "Clip", filters, pad)
    for channels, size, stride in ((32, 112, 1), (96, 112, 2), (144, 56, 1), (144, 56, 2), (192, 28, 1), (192, 28, 2),
                                   (384, 14, 1), (576, 14, 1), (576, 14, 2), (960, 7, 1)):  # fmt: skip
        yield Convolution(channels, (size, size), 3, stride, activation="Clip")
    for channels, size, stride in ((144, 56, 2), (240, 28, 1), (672, 14, 1), (1152, 7, 1)):
        yield Convolution(channels, (size, size), 5, stride, activation="Clip")
    yield Convolution(144, (56, 56), 3, activation="SiLU")
    for channels, size, stride, each in (
        (128, 56, 1, 4), (256, 56, 2, 8), (256, 28, 1, 8), (512, 28, 2, 16),
        (512, 14, 1, 16), (888, 14, 1, 24), (1024, 14, 2, 32), (1024, 7, 1, 32),
    ):  # fmt: skip
        yield Convolution(channels, (size, size), 3, stride, activation="Clip", each=each)
    for layout in (True, False):
        yield Convolution(96, (56, 56), 7, channels_last=layout)
        yield Convolution(384, (14, 14), 7, channels_last=layout)
        yield Convolution(256, (400,), 31, channels_last=layout)
        yield from _pools(channels_last=layout)
        yield from _enlargements(channels_last=layout)


def _pools(*, channels_last: bool) -> Iterator[Case]:
    """Windows are combined down and then along: `kernel - 1` times each."""
    for operator, channels, size, kernel, stride in (
        ("MaxPool", 64, 112, 2, 2), ("MaxPool", 64, 112, 3, 2), ("MaxPool", 256, 14, 3, 1), ("MaxPool", 256, 20, 5, 1),
        ("AveragePool", 128, 56, 2, 2), ("AveragePool", 128, 28, 3, 1),
    ):  # fmt: skip
        half = (kernel - 1) // 2
        attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [half] * 4}
        yield Sampling(operator, channels, (size, size), attributes, 2.0 * kernel - 2, (), channels_last)
    for channels, size in ((1280, 7), (96, 56)):
        yield Sampling("GlobalAveragePool", channels, (size, size), {}, size * size, (), channels_last)


def _enlargements(*, channels_last: bool) -> Iterator[Case]:
    """A linear one takes two multiply-adds down and two across, not counting that lines are shared."""
    by_floors = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    for channels, size, resized in ((256, 20, 40), (128, 40, 80), (64, 50, 75)):
        yield Sampling("Resize", channels, (size, size), by_floors, 0.0, (resized, resized), channels_last)
    for channels, size, resized in ((64, 56, 112), (256, 14, 28), (64, 50, 75)):
        yield Sampling("Resize", channels, (size, size), {"mode": "linear"}, 3.0, (resized, resized), channels_last)
    yield Sampling("Resize", 64, (56, 56), {"mode": "cubic"}, 6.0, (112, 112), channels_last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the cases whose name holds this word")
    parser.add_argument("--variant", default="", help="the instruction set; the machine's best one by default")
    options = parser.parse_args()
    floors = measure((1,))
    rates = ", ".join(f"{place} {rate:.0f} GB/s" for place, rate in floors.read[1].items())
    print(f"peak {floors.flops(1) / 1e9:.0f} GFLOP/s, {rates}")
    print(f"{'case':66} {'us':>8} {'GFLOP/s':>8} {'GB/s':>7} {'bound':>6} {'share':>6}")
    for case in cases():
        if options.only not in case.name:
            continue
        binder = Binder(library(options.variant))
        x, y, flops = case.bind(binder)
        runner = Runner(binder)
        seconds = best(runner) - best(runner.idle)
        nbytes = x.nbytes + y.nbytes
        arithmetic, memory = flops / floors.flops(1), nbytes / floors.bandwidth(1, nbytes)
        bound = "FMA" if arithmetic > memory else floors.place(1, nbytes)
        rates = f"{flops / seconds / 1e9:8.0f} {nbytes / seconds / 1e9:7.1f} {bound:>6}"
        print(f"{case.name:66} {seconds * 1e6:8.1f} {rates} {max(arithmetic, memory) / seconds:6.2f}")


if __name__ == "__main__":
    main()
