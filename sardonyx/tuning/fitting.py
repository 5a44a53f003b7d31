"""Fitting the numbers by which work is cut to this machine, by trying them.

Each candidate is timed in turns with what is best so far, and takes its place only where it is clearly faster: a busy
machine then keeps the defaults. Results are the same whatever is chosen.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Bound
from sardonyx.compiler.choice.gemm_cuts import Tuning
from sardonyx.compiler.choice.tuned import using
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.llvm.kernels.engine.executor import executor_code
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.native.movement.copy import copy
from sardonyx.compiler.native.products.gemm_step import multiply
from sardonyx.compiler.native.products.packed_constants import Packed, pack_b
from sardonyx.compiler.native.rows.rows import Rates
from sardonyx.kernel.cost import weight
from sardonyx.kernel.expr import Expr, Input, apply
from sardonyx.runtime.memory.execution_contexts import ExecutionContextPool
from sardonyx.runtime.threads.thread_pool import ThreadPool, ThreadPoolOptions
from sardonyx.tuning.ceilings import Ceilings

_F32 = np.dtype(np.float32)

# A candidate must be this much faster than what it would replace.
_CLEARLY = 1.02
_ROUNDS = 7

Progress = Callable[[str], None]
Timer = Callable[[], float]  # runs something, and gives the seconds that it took
Choice = TypeVar("Choice")


@dataclass(frozen=True)
class Fit:
    """What was found: the numbers of both groups, and for each that was tried how much faster the choice is."""

    gemm: Tuning
    rows: Rates
    gains: Mapping[str, float]


class Runner:
    """Runs native plans on a thread pool of its own, and times them."""

    def __init__(self, threads: int) -> None:
        self._thread_pool = ThreadPool(executor_code(library()), ThreadPoolOptions(threads))
        self._execution_contexts = ExecutionContextPool(threads)

    def timer(self, bound: Bound, inputs: Sequence[Array]) -> Timer:
        """A function that runs the plan once."""
        outputs = [np.zeros(shape, dtype) for dtype, shape in bound.outputs]
        arrays = [*inputs, *outputs]
        addresses = bound.plan.pack(*(int(array.__array_interface__["data"][0]) for array in arrays))
        execution_context = self._execution_contexts.take()

        def run(keep: Sequence[Array] = tuple(arrays)) -> float:
            began = time.perf_counter()
            self._thread_pool.run_packed(bound.plan, execution_context, addresses)
            return time.perf_counter() - began

        return run


def fit(ceilings: Ceilings, threads: int, progress: Progress) -> Fit:
    """The numbers of this machine, for sessions of so many threads."""
    progress("element-wise kernels")
    rows, row_gains = fit_rows(threads)
    gemm, gains = fit_gemm(_scaled(Tuning(), ceilings), threads, progress)
    return Fit(gemm, rows, row_gains | gains)


# Matrix products

# Rows of A, K, columns: tall enough to be bound by arithmetic, and single rows, which are bound by memory.
_TALL = ((128, 768, 3072), (128, 3072, 768), (512, 512, 512))
_SINGLE = ((1, 768, 3072), (1, 2048, 2048))

# What is tried for each number, with the products that tell.
_TRIED: Sequence[tuple[str, Sequence[Any], Sequence[tuple[int, int, int]]]] = (
    ("panel_l1", (1.0, 2.0, 5.0), _TALL),
    ("rows_l2", (0.25, 0.4, 0.6), _TALL),
    ("swept_l2", (0.4, 0.6, 0.85), ((128, 384, 384), (128, 400, 500))),
    ("group_columns", (256, 512, 1024), _TALL),
    ("chunk_bytes", (256 << 10, 512 << 10, 1 << 20), _SINGLE),
    ("prefetch", (2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10), _SINGLE),
)

# The machine whose products the defaults were measured on does so many operations in a nanosecond.
_DEFAULT_FLOPS_PER_NS = 265.0


def _scaled(tuning: Tuning, ceilings: Ceilings) -> Tuning:
    """Chunks that take as long here as they do where the defaults come from."""
    factor = ceilings.flops(1) / 1e9 / _DEFAULT_FLOPS_PER_NS
    least, most = tuning.chunk_flops
    return replace(tuning, chunk_flops=(least * factor, most * factor))


def fit_gemm(start: Tuning, threads: int, progress: Progress) -> tuple[Tuning, dict[str, float]]:
    """The best numbers, one after the other, and how much faster than the start each makes its products."""
    runner = Runner(threads)
    best, gains = start, {}
    for name, values, products in _TRIED:
        progress(f"matrix products: {name}")
        default = getattr(best, name)
        candidates = [replace(best, **{name: value}) for value in values if value != default]
        best, gains[name] = best_of([best, *candidates], partial(_timers, runner, products))
    return best, gains


def best_of(candidates: Sequence[Choice], timers: Callable[[Choice], list[Timer]]) -> tuple[Choice, float]:
    """The candidate that is clearly faster than the first one, or that one; and how much faster it is.

    The fastest of all has to win again when it is timed against the first one alone.
    """
    made = [timers(candidate) for candidate in candidates]
    scores = _scores(made)
    fastest = min(range(len(scores)), key=scores.__getitem__)
    if fastest == 0 or scores[0] < _CLEARLY * scores[fastest]:
        return candidates[0], 1.0
    first, again = _scores([made[0], made[fastest]])
    if first < _CLEARLY * again:
        return candidates[0], 1.0
    return candidates[fastest], min(scores[0] / scores[fastest], first / again)


def _scores(made: Sequence[Sequence[Timer]]) -> list[float]:
    """All timed in turns: the least of several times counts, and the geometric mean over what one candidate times."""
    least = [[math.inf] * len(one) for one in made]
    for _, index in itertools.product(range(_ROUNDS), range(len(made))):
        for place, timer in enumerate(made[index]):
            least[index][place] = min(least[index][place], timer())
    return [math.exp(sum(map(math.log, times)) / len(times)) for times in least]


def _timers(runner: Runner, products: Sequence[tuple[int, int, int]], tuning: Tuning) -> list[Timer]:
    with using("gemm", tuning):
        return [_product(runner, *sizes) for sizes in products]


def _product(runner: Runner, m: int, k: int, n: int) -> Timer:
    """A product with a packed constant, as models have them."""
    kernels = library()
    binder = Binder(kernels)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((m, k), np.float32)
    weights = pack_b(kernels, rng.standard_normal((k, n), np.float32), "f32")
    result = binder.new(_F32, (m, n))
    given = binder.external(0, _F32, (m, k))
    multiply(binder, given, Packed(binder.constant(weights), (k, n)), (Input(_F32, 0),), (), (result,), "f32")
    return runner.timer(binder.finish([result], 1, copy), [a])


# Loops over elements

_ELEMENTS = 16 << 10  # of 4 bytes: a few such arrays stay in the second cache
_STEPS = 64
_SMALL_ELEMENTS = 2048
_CHUNKS_NS = (500.0, 1000.0, 5000.0)
_LEAST_SMALL_NS, _MOST_SMALL_NS = 1000.0, 20_000.0


def fit_rows(threads: int) -> tuple[Rates, dict[str, float]]:
    """What one core moves and computes, how long a step must be for a second one to be worth it, and a good chunk.

    Also how much faster that chunk is than the one that is tried first.
    """
    default = Rates()
    one = Runner(1)
    x, y = Input(_F32, 0), Input(_F32, 1)
    whole = Rates(chunk_ns=1e9)
    far = library().target.caches.l2 // 4  # elements of arrays of which none stays in the second cache beside others
    moved = 3 * 4 * far / _least(_chain(one, x + y, 2, 1, far, whole)) / 1e9
    costly = [apply(name, x) for name in ("exp", "erf", "tanh")]
    rates = [weight([root]) * _ELEMENTS / _least(_chain(one, root, 1, 1, _ELEMENTS, whole)) / 1e9 for root in costly]
    computed = math.exp(sum(map(math.log, rates)) / len(rates))
    if threads == 1:  # nothing is shared out
        return replace(default, bytes_per_ns=moved, operations_per_ns=computed), {}
    small = min(_MOST_SMALL_NS, max(_LEAST_SMALL_NS, 4.0 * _meeting_ns(threads)))
    found = Rates(moved, computed, default.chunk_ns, small)
    thread_pool = Runner(threads)

    def timers(rates: Rates) -> list[Timer]:
        return [_chain(thread_pool, x + y, 2, 4, far, rates), _chain(thread_pool, apply("erf", x), 1, 4, far, rates)]

    found, gain = best_of([found, *(replace(found, chunk_ns=chunk) for chunk in _CHUNKS_NS)], timers)
    return found, {"chunk_ns": gain}


def _meeting_ns(threads: int) -> float:
    """What it costs that threads share a step and wait for each other: in steps too small to gain by it."""
    # Four chunks for each step: with these figures an element of two operands and a result takes a nanosecond.
    cut = Rates(bytes_per_ns=12.0, operations_per_ns=1e9, chunk_ns=_SMALL_ELEMENTS / 4, small_step_ns=0.0)
    root = Input(_F32, 0) + Input(_F32, 1)
    alone = _least(_chain(Runner(1), root, 2, _STEPS, _SMALL_ELEMENTS, cut))
    together = _least(_chain(Runner(threads), root, 2, _STEPS, _SMALL_ELEMENTS, cut))
    return max(0.0, together - alone / threads) / _STEPS * 1e9


def _chain(runner: Runner, root: Expr, count: int, steps: int, elements: int, rates: Rates) -> Timer:
    """`steps` steps of an expression with `count` inputs, each with the result of the one before as its first."""
    with using("rows", rates):
        binder = Binder(library())
        given = [binder.external(index, _F32, (elements,)) for index in range(count)]
        kernel = PointwiseKernel([root], [_F32] * count)
        value = given[0]
        for _ in range(steps):
            value = kernel.bind(binder, [value, *given[1:]])[0]
        bound = binder.finish([value], count, copy)
    rng = np.random.default_rng(0)
    return runner.timer(bound, [rng.random(elements, np.float32) for _ in range(count)])


def _least(timer: Timer) -> float:
    """The least of many times, of which the first do not count."""
    for _ in range(5):
        timer()
    return min(timer() for _ in range(100))
