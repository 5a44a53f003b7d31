"""The ceilings of this machine: how fast it multiplies and how fast it reads, measured with kernels of our own.

    python -m benchmarks.floors [--threads 1,2] [--json FILE]

Arithmetic: chains of multiply-adds that stay in registers, enough of them to hide the latency. Reading: the sum of a
buffer that fits the second cache, the third, or neither; the best of several ways to walk it. Each figure is the best
of several repetitions. Arithmetic is timed by the threads' own time, so that another process on the same cores does not
count; reading by the clock on the wall, and only right where nothing else runs.
"""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks import machine
from benchmarks import options as options_of
from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BF16, F32, F64, I8, I32, I64, PTR, Type

CHAINS = 12  # more than latency times instructions per cycle on every machine seen (4 x 2), fewer than 16 registers
SECONDS = 0.03  # one repetition
REPETITIONS = 7
STREAM_VECTORS = 4  # vectors that each stream takes in one turn of the loop

Rates = dict[int, dict[str, float]]
Kernel = Callable[[Sequence[int]], None]


@dataclass
class Floors:
    """Ceilings by number of threads: Gop/s (a multiply-add is two) by arithmetic, GB/s by place."""

    compute: Rates = field(default_factory=dict)
    read: Rates = field(default_factory=dict)
    l3: int = 0  # bytes of the third cache

    def flops(self, threads: int, arithmetic: str = "f32") -> float:
        """Operations a second."""
        return self.compute[threads][arithmetic] * 1e9

    def bandwidth(self, threads: int, nbytes: float) -> float:
        """Bytes a second from where `nbytes` that are read again and again stay: the third cache or memory."""
        return self.read[threads]["L3" if nbytes <= 0.75 * self.l3 else "DRAM"] * 1e9

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> Floors:
        compute, read = ({int(count): row for count, row in text[part].items()} for part in ("compute", "read"))
        return cls(compute, read, text["l3"])


# Arithmetic


@dataclass(frozen=True)
class Arithmetic:
    """One kind of inner product: accumulators, factors, and what one instruction does."""

    accumulator: Type
    factor: Type
    products: int  # of one lane of the accumulator
    intrinsic: str = ""  # of 512 bits; empty: the target's fused multiply-add


ARITHMETIC: Mapping[str, Arithmetic] = {
    "f32": Arithmetic(F32, F32, 1),
    "f64": Arithmetic(F64, F64, 1),
    "bf16": Arithmetic(F32, BF16, 2, "llvm.x86.avx512bf16.dpbf16ps.512"),
    "int8": Arithmetic(I32, I8, 4, "llvm.x86.avx512.vpdpbusd.512"),
}


def available(name: str, target: Target) -> bool:
    """Whether the target has the instruction."""
    return {"bf16": target.has_bf16_dot, "int8": target.has_vnni}.get(name, True) and (
        not ARITHMETIC[name].intrinsic or target.vector_bits == 512
    )


def emit_products(target: Target, name: str) -> str:
    """Arguments: accumulators (read and written), one vector of each factor, turns of the loop.

    A turn makes every accumulator ``accumulator * x + y`` (floats), or adds products of x and y to it.
    """
    kind = ARITHMETIC[name]
    lanes = target.lanes(kind.accumulator)
    k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    words = k.pointer("arguments", I64)
    home = k.pointer(words.load(0), kind.accumulator)
    x = k.pointer(words.load(1), kind.factor).load(0, lanes * kind.products)
    y = k.pointer(words.load(2), kind.factor).load(0, lanes * kind.products)
    chains = [k.variable(kind.accumulator.vector(lanes), home.load(chain * lanes, lanes)) for chain in range(CHAINS)]
    with k.loop(0, words.load(3)):
        for chain in chains:
            chain.set(_step(k, kind, chain.get(), x, y))
    for index, chain in enumerate(chains):
        home.store(chain.get(), index * lanes)
    return k.finish()


def _step(k: Function, kind: Arithmetic, accumulator: Value, x: Value, y: Value) -> Value:
    if kind.intrinsic:
        return k.call(kind.intrinsic, accumulator.type, accumulator, x, y)
    return k.fma(accumulator, x, y)


def product_arrays(name: str, target: Target) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Accumulators and factors whose results are exact: floats approach 2 by halves, the others count products."""
    kind = ARITHMETIC[name]
    lanes = target.lanes(kind.accumulator)
    dtypes = {F32: np.float32, F64: np.float64, BF16: ml_dtypes.bfloat16, I8: np.int8, I32: np.int32}
    start = np.arange(CHAINS * lanes).astype(dtypes[kind.accumulator])
    x = np.full(lanes * kind.products, 1 if kind.intrinsic else 0.5, dtypes[kind.factor])
    return start, x, np.ones(lanes * kind.products, dtypes[kind.factor])


def measure_compute(name: str, threads: int) -> float:
    """Gop/s of one arithmetic on so many threads together."""
    target = library().target
    kernel = load(emit_products, name)
    sets = [product_arrays(name, target) for _ in range(threads)]
    operations = 2 * CHAINS * target.lanes(ARITHMETIC[name].accumulator) * ARITHMETIC[name].products

    def seconds(turns: int) -> list[float]:
        return together([lambda s=arrays: kernel([*map(address, s), turns]) for arrays in sets], time.thread_time)[1]

    turns = enough(lambda turns: max(seconds(turns)))
    rounds = [seconds(turns) for _ in range(REPETITIONS)]
    return max(sum(operations * turns / one for one in found) for found in rounds) / 1e9


# Reading


def emit_sum(target: Target, spec: tuple[int, int]) -> str:
    """Arguments: int32 elements, their number, turns, where the sum goes (one vector, to be added up).

    `spec`: into how many streams the buffer is cut that are read side by side, and how many bytes ahead of each the
    kernel asks for (0: the machine's own prefetching). The number must be a multiple of `granule`.
    """
    streams, ahead = spec
    lanes = target.lanes(I32)
    step = STREAM_VECTORS * lanes
    k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    words = k.pointer("arguments", I64)
    x, length = k.pointer(words.load(0), I32), words.load(1) // streams
    starts = [x.offset(length * stream) for stream in range(streams)]
    sums = [k.variable(I32.vector(lanes), 0) for _ in range(streams * STREAM_VECTORS)]
    with k.loop(0, words.load(2)), k.loop(0, length, step) as i:
        for stream, start in enumerate(starts):
            if ahead:
                for byte in range(0, step * 4, 64):
                    start.prefetch(i + (ahead + byte) // 4)
            for vector in range(STREAM_VECTORS):
                total = sums[stream * STREAM_VECTORS + vector]
                total.set(total.get() + start.load(i + vector * lanes, lanes))
    for total in sums[1:]:
        sums[0].set(sums[0].get() + total.get())
    k.pointer(words.load(3), I32).store(sums[0].get())
    return k.finish()


WALKS = ((1, 0), (1, 1024), (1, 4096), (2, 0), (4, 0), (4, 2048))


def granule(target: Target) -> int:
    """Elements that every way to walk a buffer divides it into without a rest."""
    return 4 * STREAM_VECTORS * target.lanes(I32)


def places(target: Target) -> dict[str, int]:
    """Bytes of a buffer that stays in each place, for all threads together; the second cache is each core's own."""
    caches = target.caches
    return {
        "L2": caches.l2 // 2,
        "L3": max(4 * caches.l2, min(caches.l3 // 2, 16 << 20)),
        "DRAM": min(max(512 << 20, 4 * caches.l3), machine.memory_bytes() // 4),
    }


def measure_read(place: str, threads: int, walks: Iterable[tuple[int, int]] = WALKS) -> float:
    """GB/s that so many threads read together, each its own part of the buffer."""
    target = library().target
    share = places(target)[place] // (1 if place == "L2" else threads) // 4
    share -= share % granule(target)
    parts = [np.ones(share, np.int32) for _ in range(threads)]
    results = [np.zeros(target.lanes(I32), np.int32) for _ in range(threads)]
    best = 0.0
    for walk in walks:
        kernel = load(emit_sum, walk)

        def seconds(turns: int, kernel: Kernel = kernel) -> float:
            pairs = zip(parts, results, strict=True)
            return together([lambda p=p, r=r: kernel([address(p), share, turns, address(r)]) for p, r in pairs])[0]

        turns = enough(seconds)
        best = max(best, 4.0 * share * threads * turns / min(seconds(turns) for _ in range(REPETITIONS)))
    return best / 1e9


# Running kernels


def load(emit: Callable[[Target, object], str], spec: object, variant: str = "") -> Kernel:
    """A kernel as a function of its arguments; the interpreter's lock is free while it runs."""
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(
        library(variant).address(emit, spec)
    )

    def kernel(arguments: Sequence[int]) -> None:
        words = (ctypes.c_int64 * len(arguments))(*arguments)
        function(ctypes.addressof(words), 0, 1, None)

    return kernel


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def together(
    calls: Sequence[Callable[[], object]], clock: Callable[[], float] = time.perf_counter
) -> tuple[float, list[float]]:
    """Seconds from the first start to the last end of calls that run at the same time, one on each thread.

    Also what each of them took by `clock`; by a thread's own time, what others do on its core does not count.
    """
    barrier = threading.Barrier(len(calls))
    starts, ends, own = ([0.0] * len(calls) for _ in range(3))

    def work(index: int) -> None:
        barrier.wait()
        began = clock()
        starts[index] = time.perf_counter()
        calls[index]()
        ends[index] = time.perf_counter()
        own[index] = clock() - began

    others = [threading.Thread(target=work, args=(index,)) for index in range(1, len(calls))]
    for thread in others:
        thread.start()
    work(0)
    for thread in others:
        thread.join()
    return max(ends) - min(starts), own


def enough(seconds: Callable[[int], float]) -> int:
    """How many turns take about `SECONDS`."""
    turns = 1
    while (taken := seconds(turns)) < SECONDS / 3:
        turns *= 2 if taken > SECONDS / 100 else 16
    return max(1, round(turns * SECONDS / taken))


def measure(threads: Iterable[int]) -> Floors:
    """All ceilings of this machine."""
    target = library().target
    floors = Floors(l3=target.caches.l3)
    for count in threads:
        floors.compute[count] = {name: measure_compute(name, count) for name in ARITHMETIC if available(name, target)}
        floors.read[count] = {place: measure_read(place, count) for place in places(target)}
    return floors


def main() -> None:
    parser = options_of.parser("floors", __doc__)
    options_of.add_threads(parser)
    options_of.add_json(parser)
    options = parser.parse_args()
    print(machine.line())
    floors = measure(options.threads)
    for count, figures in floors.compute.items():
        print(f"{count} threads, Gop/s  " + "  ".join(f"{name} {value:.0f}" for name, value in figures.items()))
        print(f"{count} threads, GB/s   " + "  ".join(f"{n} {value:.1f}" for n, value in floors.read[count].items()))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine.facts(), "floors": asdict(floors)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
