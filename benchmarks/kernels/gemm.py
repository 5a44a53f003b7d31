"""Matrix products on one thread against the measured peak of multiply-adds and against onnxruntime.

    python -m benchmarks.kernels.gemm [--only WORD] [--variant avx2] [--seconds 0.3] [--cold]

Each case is bound once and its steps are called directly; onnxruntime runs a MatMul (a Gemm where the right side is
transposed) with bound inputs and outputs. Both take turns and are timed by the thread's own time, so that other
processes on the core do not count; figures are the best of many runs. GB/s counts the bytes of the right side once.
With `--cold` there are so many copies of the right side, multiplied one after the other, that they find it in the last
cache or in memory, as the layers of a model do.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.kernels.movement import Runner
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.native.products.matmul import MatMulKernel
from sardonyx.kernel.expr import Input, erf
from sardonyx.runtime.settings import RunSettings
from sardonyx.tuning.ceilings import Effort, measure_compute


@dataclass(frozen=True)
class Case:
    """A product of `m` x `k` with `k` x `n`; `form` names what it has besides."""

    m: int
    n: int
    k: int
    form: str = ""  # "gelu", "residual", "variable" (the right side is no constant), "transposed" (and transposed)
    dtype: str = "float32"
    precision: str = "float32"

    @property
    def name(self) -> str:
        kind = self.precision if self.precision != "float32" else self.dtype
        return f"{self.m} x {self.n} x {self.k} {kind} {self.form}".rstrip()

    @property
    def arithmetic(self) -> str:
        """The ceiling that holds."""
        return "bf16" if self.precision == "bfloat16" else {"float32": "f32", "float64": "f64"}[self.dtype]


SHAPES = (
    (128, 768, 768),
    (128, 3072, 768),
    (128, 768, 3072),
    (197, 768, 768),
    (512, 512, 512),
    (1024, 1024, 1024),
    (1500, 768, 768),
    (8, 3072, 768),
    (4, 3072, 768),
    (1, 3072, 768),
    (1, 768, 3072),
    (1, 4096, 4096),
    (1, 50257, 768),
)
CASES = (
    *(Case(*shape) for shape in SHAPES),
    Case(128, 3072, 768, "gelu"),
    Case(128, 768, 3072, "residual"),
    Case(128, 768, 768, "variable"),
    Case(128, 768, 768, "transposed"),
    Case(512, 512, 512, dtype="float64"),
    *(Case(*shape, precision="bfloat16") for shape in SHAPES),
)


# Those whose right side is an input.
RUNTIME_FORMS = ("variable", "transposed")
# Bytes of right sides that no core's own cache holds, and the most copies.
COLD_BYTES, MOST_COPIES = 16 << 20, 32


class Native(Runner):
    """A bound case over random numbers."""

    def __init__(self, case: Case, variant: str) -> None:
        binder = Binder(library(variant), settings=RunSettings(precision=case.precision, fast_products=False))
        dtype = np.dtype(case.dtype)
        random = np.random.default_rng(0)
        a = binder.external(0, dtype, (case.m, case.k))
        right = random.standard_normal((case.k, case.n)).astype(dtype)
        if case.form == "transposed":
            b: Tensor = binder.external(1, dtype, (case.n, case.k)).reshaped((case.k, case.n), (1, case.k))
        elif case.form == "variable":
            b = binder.external(1, dtype, (case.k, case.n))
        else:
            b = binder.constant(right)
        MatMulKernel({}).bind(binder, a, b, epilogue=self._epilogue(binder, case))
        super().__init__(binder)
        self._keep = binder
        for room in self._rooms.values():
            numbers = room[: len(room) & -8].view(dtype)
            numbers[...] = random.standard_normal(numbers.size)

    def _epilogue(self, binder: Binder, case: Case) -> Epilogue | None:
        dtype = np.dtype(case.dtype)
        x = Input(dtype, 0) + Input(dtype, 1)
        bias = binder.external(2, dtype, (case.n,))
        if case.form == "gelu":
            return Epilogue((0.5 * x * (1.0 + erf(x * 0.5**0.5)),), (bias,))
        if case.form == "residual":
            return Epilogue((x + Input(dtype, 2),), (bias, binder.external(3, dtype, (case.m, case.n))))
        return None


def onnxruntime_call(case: Case) -> Callable[[], Any] | None:
    """The product alone in onnxruntime, in float32, with the same sides constant; None where that is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    right = random.standard_normal((case.k, case.n), dtype=np.float32)
    given = [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["rows", case.k])]
    result = helper.make_tensor_value_info("c", TensorProto.FLOAT, ["rows", case.n])
    node = helper.make_node("MatMul", ["a", "b"], ["c"])
    constants = [numpy_helper.from_array(right, "b")]
    if case.form == "transposed":
        node, right = helper.make_node("Gemm", ["a", "b"], ["c"], transB=1), np.ascontiguousarray(right.T)
    if case.form in RUNTIME_FORMS:
        given.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, right.shape))
        constants = []
    graph = helper.make_graph([node], "product", given, [result], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    left = random.standard_normal((case.m, case.k), dtype=np.float32)
    binding.bind_ortvalue_input("a", onnxruntime.OrtValue.ortvalue_from_numpy(left))
    if case.form in RUNTIME_FORMS:
        binding.bind_ortvalue_input("b", onnxruntime.OrtValue.ortvalue_from_numpy(right))
    room = np.zeros((case.m, case.n), np.float32)
    binding.bind_ortvalue_output("c", onnxruntime.OrtValue.ortvalue_from_numpy(room))
    return lambda: session.run_with_iobinding(binding)


def copies(make: Callable[[], Callable[[], Any] | None], count: int) -> Callable[[], Any] | None:
    """A call of so many copies of a call, one after the other; None where there is none."""
    calls = [make() for _ in range(count)]

    def every() -> None:
        for call in calls:
            call()  # type: ignore[misc]

    return None if None in calls else every


def best(calls: list[Callable[[], Any]], seconds: float) -> list[float]:
    """The shortest time of each call; they take turns, short ones in loops of some 0.1 ms."""
    times = [float("inf")] * len(calls)
    counts = []
    for call in calls:
        call()
        began = time.thread_time_ns()
        call()
        counts.append(max(1, 100_000 // max(1, time.thread_time_ns() - began)))
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end:
        for index, (call, count) in enumerate(zip(calls, counts, strict=True)):
            for _ in range(3):
                began = time.thread_time_ns()
                for _ in range(count):
                    call()
                times[index] = min(times[index], (time.thread_time_ns() - began) / count * 1e-9)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name holds this word")
    parser.add_argument("--variant", default="", help="an instruction set of this machine; the best one if absent")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each case and engine")
    parser.add_argument("--cold", action="store_true", help="right sides that come from the last cache or memory")
    arguments = parser.parse_args()
    peaks: dict[str, float] = {}
    print(f"{'M x N x K':34} {'us':>9} {'onnxruntime':>12} {'ratio':>6} {'GFLOP/s':>8} {'peak':>6} {'GB/s':>6}")
    for case in CASES:
        if arguments.only not in case.name:
            continue
        count = 1
        if arguments.cold:
            count = min(MOST_COPIES, -(-COLD_BYTES // (4 * case.n * case.k)))
        native = copies(functools.partial(Native, case, arguments.variant), count)
        peer = copies(functools.partial(onnxruntime_call, case), count) if case.dtype == "float32" else None
        times = best([call for call in (native, peer) if call is not None], arguments.seconds)
        own, *rest = [seconds / count for seconds in times]
        if case.arithmetic not in peaks:
            peaks[case.arithmetic] = measure_compute(case.arithmetic, 1, Effort())
        theirs = f"{rest[0] * 1e6:12.1f} {rest[0] / own:6.2f}" if rest else f"{'-':>12} {'-':>6}"
        rate = 2e-9 * case.m * case.n * case.k / own
        item = 2 if case.arithmetic == "bf16" else np.dtype(case.dtype).itemsize
        read = item * case.n * case.k / own / 1e9
        print(
            f"{case.name:34} {own * 1e6:9.1f} {theirs} {rate:8.1f} {rate / peaks[case.arithmetic]:6.0%} {read:6.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
