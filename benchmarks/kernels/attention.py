"""The attention kernel against onnxruntime's MultiHeadAttention, on one thread.

    python -m benchmarks.kernels.attention [--only WORD] [--variant avx2] [--seconds 0.5]

Each case is bound once and its steps are called directly; onnxruntime runs the node with bound inputs and outputs.
Both take turns; times are the best of many runs. GB/s counts the bytes of keys and values once.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.kernels.movement import Runner
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.attention.attention import MultiHeadAttentionKernel
from sardonyx.compiler.llvm.library import library

F32 = np.dtype(np.float32)
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """MultiHeadAttention over one batch entry; `past` positions come before the new `keys`.

    `packed` takes the operands as slices of one merged projection, `bias` is the shape of attention_bias.
    """

    queries: int
    keys: int
    heads: int = 12
    size: int = 64
    past: int = 0
    packed: bool = False
    causal: bool = False
    bias: Shape | None = None
    caches: bool = False

    @property
    def name(self) -> str:
        words = [f"{self.heads} x {self.queries} x {self.past + self.keys} x {self.size}"]
        words += ["packed"] if self.packed else []
        words += ["causal"] if self.causal else []
        words += ["keys as a cache"] if self.caches else []
        words += [f"behind {self.past}"] if self.past else []
        words += ["bias of rows" if self.bias[2] > 1 else "bias of keys"] if self.bias else []
        return ", ".join(words)

    @property
    def flops(self) -> float:
        return 4.0 * self.heads * self.queries * (self.past + self.keys) * self.size

    @property
    def key_bytes(self) -> float:
        return 8.0 * self.heads * (self.past + self.keys) * self.size

    def shapes(self) -> dict[int, Shape]:
        """The shapes of the inputs by their number."""
        width = self.heads * self.size
        keys = (1, self.heads, self.keys, self.size) if self.caches else (1, self.keys, width)
        shapes: dict[int, Shape] = {0: (1, self.queries, width), 1: keys, 2: keys}
        if self.bias is not None:
            shapes[5] = self.bias
        if self.past:
            shapes[6] = shapes[7] = (1, self.heads, self.past, self.size)
        return shapes


CASES = (
    Case(128, 128),
    Case(128, 128, packed=True),
    Case(128, 128, bias=(1, 1, 1, 128), packed=True),
    Case(128, 128, bias=(1, 12, 128, 128)),
    Case(128, 128, size=32),
    Case(197, 197, packed=True),
    Case(512, 512, causal=True, packed=True),
    Case(1500, 1500, packed=True),
    Case(64, 4096, caches=True),
    Case(1, 257, caches=True),
    Case(1, 1500, caches=True),
    Case(1, 1, past=256),
    Case(1, 1, past=1023),
    Case(4, 4, past=256),
)


class Native(Runner):
    """A bound case over random numbers."""

    def __init__(self, case: Case, variant: str) -> None:
        binder = Binder(library(variant))
        parameters = {
            "num_heads": case.heads,
            "scale": 0.0,
            "mask_filter_value": -10000.0,
            "unidirectional": int(case.causal),
            "presents": (case.past > 0, case.past > 0),
        }
        MultiHeadAttentionKernel(parameters).bind(binder, *self._inputs(binder, case))
        super().__init__(binder)
        self._keep = binder
        random = np.random.default_rng(0)
        for room in self._rooms.values():
            numbers = room[: len(room) & -4].view(np.float32)
            numbers[...] = random.standard_normal(numbers.size) * 0.3

    def _inputs(self, binder: Binder, case: Case) -> list[Tensor | None]:
        inputs: list[Tensor | None] = [None] * 10
        for number, shape in case.shapes().items():
            inputs[number] = binder.external(number, F32, shape)
        if case.packed:
            width = case.heads * case.size
            merged = binder.external(9, F32, (1, case.queries, 3 * width))
            for part in range(3):
                inputs[part] = merged.reshaped((1, case.queries, width), merged.strides, 4 * part * width)
        return inputs


def onnxruntime_call(case: Case) -> Callable[[], Any] | None:
    """The node in onnxruntime; None where that is not installed."""
    try:
        onnxruntime = importlib.import_module("onnxruntime")
    except ImportError:
        return None
    from onnx import TensorProto, helper

    shapes = case.shapes()
    if case.bias is not None:  # it takes no bias that rows share
        shapes[5] = (*case.bias[:2], case.queries, case.bias[3])
    names = [f"in{number}" if number in shapes else "" for number in range(max(shapes) + 1)]
    outputs = ["out", "present_key", "present_value"][: 3 if case.past else 1]
    node = helper.make_node(
        "MultiHeadAttention",
        names,
        outputs,
        domain="com.microsoft",
        num_heads=case.heads,
        unidirectional=int(case.causal),
    )
    kind = TensorProto.FLOAT
    given = [helper.make_tensor_value_info(f"in{number}", kind, shape) for number, shape in shapes.items()]
    results = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
    graph = helper.make_graph([node], "attention", given, results)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    feeds = {f"in{n}": (random.standard_normal(s) * 0.3).astype(np.float32) for n, s in shapes.items()}
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for name, array in zip(outputs, session.run(None, feeds), strict=True):
        binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    return lambda: session.run_with_iobinding(binding)


def best(calls: list[Callable[[], Any]], seconds: float) -> list[float]:
    """The shortest time of each call; they take turns."""
    times = [float("inf")] * len(calls)
    for call in calls:
        call()
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end:
        for index, call in enumerate(calls):
            for _ in range(3):
                begin = time.perf_counter()
                call()
                times[index] = min(times[index], time.perf_counter() - begin)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name holds this word")
    parser.add_argument("--variant", default="", help="an instruction set of this machine; the best one if absent")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each case and engine")
    arguments = parser.parse_args()
    print(f"{'heads x queries x keys x size':46} {'us':>9} {'onnxruntime':>12} {'ratio':>6} {'GFLOP/s':>8} {'GB/s':>6}")
    for case in CASES:
        if arguments.only not in case.name:
            continue
        peer = onnxruntime_call(case)
        own, *rest = best([Native(case, arguments.variant), *([peer] if peer else [])], arguments.seconds)
        theirs = f"{rest[0] * 1e6:12.1f} {rest[0] / own:6.2f}" if rest else f"{'-':>12} {'-':>6}"
        rates = f"{case.flops / own / 1e9:8.1f} {case.key_bytes / own / 1e9:6.1f}"
        print(f"{case.name:46} {own * 1e6:9.1f} {theirs} {rates}", flush=True)


if __name__ == "__main__":
    main()
