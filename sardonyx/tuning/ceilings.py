"""The ceilings of this machine: how fast it multiplies and how fast it reads, measured with kernels of our own.

Arithmetic: chains of multiply-adds that stay in registers, enough of them to hide the latency. Reading: the sum of a
buffer that fits the second cache, the third, or neither; the best of several ways to walk it. Each figure is the best
of several repetitions. Arithmetic is timed by the threads' own time, so that another process on the same cores does
not count; reading by the clock on the wall, and only right where nothing else runs.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from sardonyx.compiler.binding import Array
from sardonyx.compiler.llvm.kernels.engine.ceilings import (
    ARITHMETIC,
    CHAINS,
    TILES,
    WALKS,
    available,
    emit_products,
    emit_sum,
    emit_tiles,
    granule,
    operations_of_tiles,
)
from sardonyx.compiler.llvm.kernels.products.gemm_parts import kept_products
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.library import KernelLibrary, library
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BRAIN, F32, F64, I8, I32
from sardonyx.runtime.files.machine_file import machine_key, read_sections, write_section
from sardonyx.runtime.files.opening import StrPath
from sardonyx.runtime.memory.memory import available_bytes

SECTION = "ceilings"
PLACES = ("L2", "L3", "DRAM")
# Arithmetic that consists of so many operations of another one.
_COMPOSED = {"f32 tiles": ("bf16 tiles", len(kept_products(PRODUCTS["f32 tiles"].parts)))}

Rates = dict[int, dict[str, float]]

_LARGEST = 2**53  # of what a file says
Kernel = Callable[[Sequence[int]], None]


@dataclass(frozen=True)
class Effort:
    """How long one repetition takes, how many there are, and which walks are tried; how often all of it is measured,
    as what disturbs a machine lasts longer than the repetitions of one figure."""

    seconds: float = 0.03
    repetitions: int = 7
    walks: Sequence[tuple[int, int]] = WALKS
    rounds: int = 3


# A second or two for all figures of one number of threads.
QUICK = Effort(0.01, 4, ((1, 0), (1, 4096), (4, 0)), 1)


@dataclass
class Ceilings:
    """By number of threads: Gop/s by arithmetic (a multiply-add is two), GB/s by place."""

    compute: Rates = field(default_factory=dict)
    read: Rates = field(default_factory=dict)
    l2: int = 0  # bytes of the second cache, which each core has for itself
    l3: int = 0  # bytes of the third cache

    def flops(self, threads: int, arithmetic: str = "f32") -> float:
        """Operations a second; for numbers of threads that were not measured, in proportion to those that were."""
        if arithmetic in _COMPOSED:
            part, count = _COMPOSED[arithmetic]
            return self.flops(threads, part) / count
        rates = {count: row[arithmetic] for count, row in self.compute.items() if arithmetic in row}
        if not rates:
            raise ValueError(f"the ceiling of '{arithmetic}' was not measured: {self.compute}")
        nearest = min(rates, key=lambda count: abs(count - threads))
        return rates[nearest] * threads / nearest * 1e9

    def has(self, arithmetic: str) -> bool:
        """Whether the ceiling of an arithmetic was measured."""
        measured = _COMPOSED[arithmetic][0] if arithmetic in _COMPOSED else arithmetic
        return any(measured in rates for rates in self.compute.values())

    def bandwidth(self, threads: int, nbytes: float) -> float:
        """Bytes a second from where `nbytes` that are read again and again stay: a cache or memory."""
        return self._rate(threads, self.place(threads, nbytes)) * 1e9

    def place(self, threads: int, nbytes: float) -> str:
        """Where `nbytes` stay that so many threads share."""
        if nbytes <= 0.5 * self.l2 * threads:
            return "L2"
        return "L3" if nbytes <= 0.75 * self.l3 else "DRAM"

    def _rate(self, threads: int, place: str) -> float:
        """GB/s; between numbers of threads that were measured no more than the larger one, nor than in proportion."""
        if threads in self.read:
            return self.read[threads][place]
        fewer = max((count for count in self.read if count < threads), default=None)
        more = [self.read[count][place] for count in self.read if count > threads]
        if fewer is None:
            return more[0]
        return min([self.read[fewer][place] * threads / fewer, *more])

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> Ceilings:
        """The ceilings that `asdict` gave to a file; ValueError where it holds anything else."""
        try:
            compute, read = (
                {int(count): {name: _positive(rate) for name, rate in row.items()} for count, row in text[part].items()}
                for part in ("compute", "read")
            )
            found = cls(compute, read, int(text.get("l2", 0)), int(text["l3"]))
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"no ceilings of a machine: {error!r}") from error
        if not all(0 < count <= _LARGEST for rates in (compute, read) for count in rates):
            raise ValueError("ceilings of a machine are of one thread or more")
        if not all(0 <= size <= _LARGEST for size in (found.l2, found.l3)):
            raise ValueError(f"caches of a machine have no {found.l2} and {found.l3} bytes")
        return found


def _positive(rate: Any) -> float:
    """A rate in a file; ValueError for what is none."""
    if not isinstance(rate, int | float) or not 0 < rate <= _LARGEST:
        raise ValueError(f"ceilings of a machine are positive numbers, not {str(rate)[:40]}")
    return float(rate)


def stored_ceilings(threads: Iterable[int], folder: StrPath | None = None) -> Ceilings:
    """The ceilings of this machine for these numbers of threads: from the user's cache, or measured and kept there."""
    target = library().target
    key = machine_key(target.key)
    try:
        known = Ceilings.from_json(read_sections(key, folder).get(SECTION, {}))
    except ValueError:
        known = Ceilings(l2=target.caches.l2, l3=target.caches.l3)
    missing = [count for count in threads if not _is_known(known, count)]
    if missing:
        found = measure(missing, effort=QUICK)
        known.compute |= found.compute
        known.read |= found.read
        store(known, folder)
    return known


def _is_known(ceilings: Ceilings, threads: int) -> bool:
    return bool(ceilings.compute.get(threads)) and set(PLACES).issubset(ceilings.read.get(threads, ()))


def store(ceilings: Ceilings, folder: StrPath | None = None) -> str | None:
    """Keep ceilings in the user's cache; the file, None where it cannot be written."""
    return write_section(machine_key(library().target.key), SECTION, as_section(ceilings), folder)


def as_section(ceilings: Ceilings) -> dict[str, Any]:
    """Ceilings with texts as keys, as a file has them."""
    content = asdict(ceilings)
    return content | {part: {str(count): row for count, row in content[part].items()} for part in ("compute", "read")}


def measure(threads: Iterable[int], effort: Effort = Effort()) -> Ceilings:
    """All ceilings of this machine."""
    target = library().target
    found = Ceilings(l2=target.caches.l2, l3=target.caches.l3)
    kinds = [name for name in (*ARITHMETIC, *TILES) if available(name, target)]
    counts = list(threads)
    for _ in range(effort.rounds):
        for count in counts:
            _keep_best(
                found.compute.setdefault(count, {}), {kind: measure_compute(kind, count, effort) for kind in kinds}
            )
            _keep_best(
                found.read.setdefault(count, {}), {place: measure_read(place, count, effort) for place in PLACES}
            )
    return found


def _keep_best(known: dict[str, float], found: Mapping[str, float]) -> None:
    known.update({name: max(rate, known.get(name, 0.0)) for name, rate in found.items()})


# Arithmetic


def product_arrays(name: str, target: Target) -> tuple[Array, Array, Array]:
    """Accumulators and factors whose results are exact: floats approach 2 by halves, the others count products."""
    kind = ARITHMETIC[name]
    lanes = target.lanes(kind.accumulator)
    dtypes: dict[Any, Any] = {F32: np.float32, F64: np.float64, BRAIN: ml_dtypes.bfloat16, I8: np.int8, I32: np.int32}
    start = np.arange(CHAINS * lanes).astype(dtypes[kind.accumulator])
    x = np.full(lanes * kind.products, 1 if kind.intrinsic else 0.5, dtypes[kind.factor])
    return start, x, np.ones(lanes * kind.products, dtypes[kind.factor])


def multiplying(name: str, threads: int) -> list[Callable[[int], None]]:
    """For each of so many threads a function that multiplies and adds in registers for a number of turns."""
    if name in TILES:
        kernel = load(emit_tiles, name)
        sets: Sequence[Sequence[Array]] = [()] * threads
    else:
        kernel = load(emit_products, name)
        sets = [product_arrays(name, library().target) for _ in range(threads)]

    def call(arrays: Sequence[Array], turns: int) -> None:
        kernel([*map(address, arrays), turns])

    return [partial(call, arrays) for arrays in sets]


def measure_compute(name: str, threads: int, effort: Effort = Effort()) -> float:
    """Gop/s of one arithmetic on so many threads together."""
    target = library().target
    calls = multiplying(name, threads)
    kind = ARITHMETIC.get(name)
    operations = 2 * CHAINS * target.lanes(kind.accumulator) * kind.products if kind else operations_of_tiles(name)

    def seconds(turns: int) -> list[float]:
        return together([partial(call, turns) for call in calls], time.thread_time)[1]

    turns = enough(lambda turns: max(seconds(turns)), effort.seconds)
    rounds = [seconds(turns) for _ in range(effort.repetitions)]
    return max(sum(operations * turns / max(one, 1e-9) for one in found) for found in rounds) / 1e9


# Reading


def places(target: Target) -> dict[str, int]:
    """Bytes of a buffer that stays in each place, for all threads together; the second cache is each core's own."""
    caches = target.caches
    return {
        "L2": caches.l2 // 2,
        "L3": max(4 * caches.l2, min(caches.l3 // 2, 16 << 20)),
        "DRAM": max(min(max(512 << 20, 4 * caches.l3), available_bytes() // 4), 8 * caches.l2),
    }


def measure_read(place: str, threads: int, effort: Effort = Effort()) -> float:
    """GB/s that so many threads read together, each its own part of the buffer."""
    target = library().target
    share = places(target)[place] // (1 if place == "L2" else threads) // 4
    share -= share % granule(target)
    parts = [np.ones(share, np.int32) for _ in range(threads)]
    results = [np.zeros(target.lanes(I32), np.int32) for _ in range(threads)]
    best = 0.0
    for walk in effort.walks:
        kernel = load(emit_sum, walk)

        def seconds(turns: int, kernel: Kernel = kernel) -> float:
            pairs = zip(parts, results, strict=True)
            return together([_reading(kernel, part, result, turns) for part, result in pairs])[0]

        turns = enough(seconds, effort.seconds)
        best = max(best, 4.0 * share * threads * turns / min(seconds(turns) for _ in range(effort.repetitions)))
    return best / 1e9


def _reading(kernel: Kernel, part: Array, result: Array, turns: int) -> Callable[[], None]:
    return lambda: kernel([address(part), part.size, turns, address(result)])


# Running kernels

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def load(emit: Callable[[Target, Any], str], spec: object, variant: str = "") -> Kernel:
    """A kernel as a function of its arguments; the interpreter's lock is free while it runs."""
    kernels: KernelLibrary = library(variant)
    function = _SIGNATURE(kernels.address(emit, spec))

    def kernel(arguments: Sequence[int]) -> None:
        words = (ctypes.c_int64 * len(arguments))(*arguments)
        function(ctypes.addressof(words), 0, 1, None)

    return kernel


def address(array: Array) -> int:
    return int(array.ctypes.data)


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


def enough(seconds: Callable[[int], float], wanted: float = Effort.seconds) -> int:
    """How many turns take about `wanted` seconds."""
    turns = 1
    while (taken := seconds(turns)) < wanted / 3:
        turns *= 2 if taken > wanted / 100 else 16
    return max(1, round(turns * wanted / taken))
