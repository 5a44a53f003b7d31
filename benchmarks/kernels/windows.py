"""Depthwise convolutions and pools against their floors, on one thread.

    python -m benchmarks.kernels.windows [--only WORD] [--variant avx2]

Each case is bound once and its steps are called directly; times are the best of many runs, so they hold for data that
lies in the caches where it fits there. The floor is the time of the multiply-adds at the measured peak, or that of
moving the input and the result at the measured bandwidth of memory, whichever is longer; `share` is the floor's time
over ours, above 1 where what lies in the caches comes faster than from memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.floors import measure
from benchmarks.kernels.movement import Runner, best
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.convolution.depthwise import DEPTHWISE
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.compiler.native.pooling.pool import PoolKernel
from sardonyx.compiler.native.template import Epilogue
from sardonyx.kernel import expr as e
from sardonyx.kernel.expr import Expr, Input
from sardonyx.ops.windows import WindowAttributes

F32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Case:
    """Square windows over maps: `kind` is ``depthwise``, ``maximum`` or ``mean``; `sizes` are those of a map."""

    kind: str
    channels: int
    sizes: tuple[int, ...]
    kernel: int
    stride: int = 1
    channels_last: bool = True
    activation: str = ""

    @property
    def name(self) -> str:
        size, layout = "x".join(map(str, self.sizes)), "channels last" if self.channels_last else "rows"
        return f"{self.kind} {self.activation} {self.channels} @ {size}, {self.kernel} by {self.stride}, {layout}"

    @property
    def attributes(self) -> WindowAttributes:
        rank, half = len(self.sizes), self.kernel // 2
        return WindowAttributes.of((self.kernel,) * rank, (self.stride,) * rank, None, (half,) * (2 * rank), "NOTSET")

    def bind(self, binder: Binder) -> tuple[Tensor, Tensor, float]:
        """Add the steps; the input, the result, and the multiply-adds."""
        rank = len(self.sizes)
        if self.channels_last:
            last = binder.external(0, F32, (1, *self.sizes, self.channels))
            x = transposed(last, (0, rank + 1, *range(1, rank + 1)))
        else:
            x = binder.external(0, F32, (1, self.channels, *self.sizes))
        if self.kind != "depthwise":
            (y,) = self._pool().bind(binder, [x])
            assert y is not None
            return x, y, 0.0
        w = binder.constant(np.ones((self.channels, 1, *(self.kernel,) * rank), np.float32))
        bias = binder.constant(np.ones(self.channels, np.float32))
        windows = self.attributes.windows(self.sizes)
        call = ConvolutionCall(x, w, bias, windows, self.channels, _epilogue(self.activation), "f32")
        (y,) = DEPTHWISE.bind(binder, call)
        return x, y, call.flops / 2

    def _pool(self) -> PoolKernel:
        def result(total: Expr, count: Expr | None) -> Expr:
            return total if count is None else total / count

        is_mean = self.kind == "mean"
        parameters: dict[str, Any] = {
            "attributes": self.attributes,
            "kind": "sum" if is_mean else "maximum",
            "element": Input(F32, 0),
            "result": result,
            "counts": "inside" if is_mean else "",
            "channels_last": False,
        }
        return PoolKernel(parameters)


def _epilogue(activation: str) -> Epilogue | None:
    y = Input(F32, 0)
    if activation == "SiLU":
        return Epilogue((y / (1 + e.exp(-y)),), ())
    return Epilogue((e.minimum(e.maximum(y, 0), 6),), ()) if activation == "Clip" else None


def cases() -> Iterator[Case]:
    """The depthwise layers of MobileNetV2, EfficientNet, ConvNeXt and Conformer, and the usual pools."""
    for channels, size, stride in ((32, 112, 1), (96, 112, 2), (144, 56, 1), (192, 28, 1), (576, 14, 1), (960, 7, 1)):
        yield Case("depthwise", channels, (size, size), 3, stride, activation="Clip")
    for channels, size, kernel in ((144, 56, 3), (240, 28, 5), (672, 14, 5), (1152, 7, 5)):
        yield Case("depthwise", channels, (size, size), kernel, activation="SiLU")
    for layout in (True, False):
        yield Case("depthwise", 96, (56, 56), 7, channels_last=layout)
        yield Case("depthwise", 384, (14, 14), 7, channels_last=layout)
        yield Case("depthwise", 256, (400,), 31, channels_last=layout)
        yield Case("maximum", 64, (112, 112), 3, 2, layout)
        yield Case("maximum", 256, (20, 20), 5, 1, layout)
        yield Case("mean", 128, (28, 28), 3, 1, layout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the cases whose name holds this word")
    parser.add_argument("--variant", default="", help="the instruction set; the machine's best one by default")
    options = parser.parse_args()
    floors = measure((1,))
    peak, bandwidth = floors.flops(1) / 1e9, floors.read[1]["DRAM"]
    print(f"peak {peak:.0f} GFLOP/s, memory {bandwidth:.1f} GB/s")
    print(f"{'case':58} {'us':>8} {'GFLOP/s':>8} {'GB/s':>7} {'share':>6}")
    for case in cases():
        if options.only not in case.name:
            continue
        binder = Binder(library(options.variant))
        x, y, multiply_adds = case.bind(binder)
        seconds = best(Runner(binder))
        flops, nbytes = 2 * multiply_adds, x.nbytes + y.nbytes
        floor = max(flops / peak, nbytes / bandwidth) / 1e9
        rates = f"{flops / seconds / 1e9:8.0f} {nbytes / seconds / 1e9:7.1f} {floor / seconds:6.2f}"
        print(f"{case.name:58} {seconds * 1e6:8.1f} {rates}")


if __name__ == "__main__":
    main()
