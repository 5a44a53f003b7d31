"""Tests of the native plan and of the function that executes it."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.llvm.codegen import compile_object
from sardonyx.compiler.llvm.kernels.engine.executor import emit_executor, executor_code
from sardonyx.compiler.llvm.library import KernelLibrary, library
from sardonyx.compiler.llvm.target import Caches, aarch64_targets, host_target, host_targets, x86_64_targets
from sardonyx.runtime.files.kernel_cache import KernelCache
from sardonyx.runtime.memory.execution_contexts import ExecutionContext
from sardonyx.runtime.native_plan import NativePlan, StepColumn
from sardonyx.runtime.threads.interrupts import STOP_WORDS
from sardonyx.runtime.threads.thread_pool import FINISHED, TERMINATED, ThreadPool, ThreadPoolOptions
from tests.runtime.native_kernels import BARRIER, CALLER, PlanMaker, chain, chained, code, kernel, mix, numbers
from tests.runtime.workers import PATIENCE

COUNTS = (1, 2, 3, 5)


@pytest.fixture(params=COUNTS)
def thread_pool(request: pytest.FixtureRequest) -> Any:
    thread_pool = ThreadPool(code(), ThreadPoolOptions(request.param))
    yield thread_pool
    thread_pool.close()


def _tables(**changes: Any) -> dict[str, Any]:
    tables = {
        "words": np.zeros(4, np.int64),
        "fixups": np.array([[0, 1, 0]]),
        "steps": np.array([[kernel("put"), 0, 1, 1, 0, 0, 0, 0]]),
        "arena_bytes": 0,
        "scratch_bytes": 0,
        "base_count": 2,
        "labels": ("one",),
    }
    return {**tables, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fixups": np.array([[4, 1, 0]])}, "word"),
        ({"fixups": np.array([[-1, 1, 0]])}, "word"),
        ({"fixups": np.array([[0, 2, 0]])}, "base"),
        ({"base_count": 0}, "arena"),
        ({"arena_bytes": -1}, "sizes"),
        ({"scratch_bytes": -1}, "sizes"),
        ({"labels": ()}, "1 steps with 0 labels"),
        ({"steps": np.array([[0, 0, 1, 1, 0, 0, 0, 0]])}, "without a function"),
        ({"steps": np.array([[9, 5, 1, 1, 0, 0, 0, 0]])}, "first argument"),
        ({"steps": np.array([[9, 0, -1, 1, 0, 0, 0, 0]])}, "chunks"),
        ({"steps": np.array([[9, 0, 1, 0, 0, 0, 0, 0]])}, "claims at least 1"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NativePlan(**_tables(**changes))


def test_a_plan_leaves_the_tables_it_was_made_of_alone() -> None:
    tables = _tables()
    plan = NativePlan(**tables)
    assert tables["steps"][0, StepColumn.FLAGS] == 0
    assert plan.steps[0, StepColumn.FLAGS] == CALLER  # nobody could share its only claim
    assert not plan.steps.flags.writeable


@pytest.mark.parametrize(
    ("steps", "width"),
    [
        ([], 1),
        ([(1, 1, 0)], 1),
        ([(10, 1, 0)], 10),
        ([(10, 4, 0)], 3),
        ([(10, 10, 0)], 1),
        ([(10, 1, CALLER)], 1),
        ([(1, 1, 0), (1, 1, 0)], 2),
        ([(1, 1, 0), (1, 1, BARRIER)], 1),
        ([(0, 1, 0)], 1),
        ([(3, 1, 0), (2, 1, CALLER), (4, 2, BARRIER)], 4),
    ],
)
def test_width_is_the_number_of_threads_that_find_work(steps: list[tuple[int, int, int]], width: int) -> None:
    maker = PlanMaker(2)
    for chunks, claim, flags in steps:
        maker.add("who", ((1, 0),), chunks, claim, flags)
    assert maker.plan().width == width


def test_a_plan_without_steps_runs(thread_pool: ThreadPool) -> None:
    assert thread_pool.run(PlanMaker(1).plan(), ExecutionContext(), ()) == FINISHED


@pytest.mark.parametrize(("length", "size", "claim"), [(1, 1, 1), (1, 50, 1), (30, 37, 5), (200, 8, 1), (7, 64, 64)])
def test_a_chain_gives_the_same_bits_with_any_number_of_threads(
    thread_pool: ThreadPool, length: int, size: int, claim: int
) -> None:
    plan, execution_context = chain(length, size, claim), ExecutionContext()
    for seed in range(4):
        source, target = numbers(size, seed), np.zeros(size, np.int64)
        assert thread_pool.run(plan, execution_context, (source.ctypes.data, target.ctypes.data)) == FINISHED
        np.testing.assert_array_equal(target, chained(source, length))


def test_thousands_of_barriers_hold(thread_pool: ThreadPool) -> None:
    plan, execution_context = chain(3000, 6, 1, weight=3), ExecutionContext()
    source = numbers(6)
    expected = chained(source, 3000, 3)
    for _ in range(10):
        target = np.zeros(6, np.int64)
        thread_pool.run(plan, execution_context, (source.ctypes.data, target.ctypes.data))
        np.testing.assert_array_equal(target, expected)


def _random_plan(seed: int) -> tuple[NativePlan, int, list[list[tuple[int, int, int, int]]]]:
    """Phases of independent steps over buffers: (plan, buffer size, phases of (source, target, chunks, weight))."""
    choose = random.Random(seed)
    size, buffers = choose.randint(1, 40), 8
    maker = PlanMaker(2)
    phases = []
    for number in range(choose.randint(1, 40)):
        sources = choose.sample(range(buffers), buffers // 2)
        targets = [one for one in range(buffers) if one not in sources]
        phase = []
        for i in range(choose.randint(1, len(targets))):
            source, target = choose.choice(sources), targets[i]
            chunks = choose.choice((0, 1, size, size, size))
            weight = choose.choice((0, 1, 5))
            flags = BARRIER * (i == 0 and number > 0) | CALLER * (choose.random() < 0.3)
            arguments = ((1, source * size * 8), (1, target * size * 8), size, weight)
            maker.add("mix", arguments, chunks, choose.choice((1, 2, 7, size)), flags)
            phase.append((source, target, chunks, weight))
        phases.append(phase)
    return maker.plan(), size, phases


@pytest.mark.parametrize("seed", range(25))
def test_random_plans_do_what_their_steps_do_in_order(seed: int) -> None:
    plan, size, phases = _random_plan(seed)
    start = numbers(8 * size, seed).reshape(8, size)
    expected = start.copy()
    for phase in phases:
        for source, target, chunks, weight in phase:
            expected[target, :chunks] = mix(expected[source], weight)[:chunks]
    for threads in COUNTS:
        thread_pool, execution_context = ThreadPool(code(), ThreadPoolOptions(threads)), ExecutionContext()
        for _ in range(3):
            data = start.copy()
            assert thread_pool.run(plan, execution_context, (data.ctypes.data,)) == FINISHED
            np.testing.assert_array_equal(data, expected)
        thread_pool.close()


def test_addresses_of_a_run_replace_those_of_the_last_one(thread_pool: ThreadPool) -> None:
    small, large, execution_context = chain(5, 16), chain(5, 5000, 100), ExecutionContext()
    for i, (plan, size) in enumerate([(small, 16), (small, 16), (large, 5000), (small, 16), (large, 5000)]):
        source, target = numbers(size, i), np.zeros(size, np.int64)
        prepared = np.array([source.ctypes.data, target.ctypes.data])
        thread_pool.run_packed(plan, execution_context, prepared.ctypes.data)
        np.testing.assert_array_equal(target, chained(source, 5))


def test_every_thread_has_its_own_scratch_memory(thread_pool: ThreadPool) -> None:
    words, chunks = 1000, 60
    maker = PlanMaker(2)
    maker.add("scratch", ((1, 0), words), chunks)
    plan, execution_context = maker.plan(scratch_bytes=8 * words), ExecutionContext()
    expected = np.arange(chunks) * 1000 * words + words * (words - 1) // 2
    for _ in range(20):
        target = np.zeros(chunks, np.int64)
        thread_pool.run(plan, execution_context, (target.ctypes.data,))
        np.testing.assert_array_equal(target, expected)


def test_steps_of_the_caller_are_done_by_the_caller(thread_pool: ThreadPool) -> None:
    maker = PlanMaker(2)
    for i in range(20):
        maker.add("who", ((1, i * 80),), 10, 1, BARRIER | CALLER * (i % 2))
    plan, execution_context = maker.plan(), ExecutionContext()
    for _ in range(50):
        threads = np.zeros((20, 10), np.int64)
        thread_pool.run(plan, execution_context, (threads.ctypes.data,))
        assert (threads[1::2] == threading.get_ident()).all()
        assert (threads != 0).all()
        assert len(np.unique(threads)) <= thread_pool.threads


def test_times_are_stamped_at_every_step_and_at_the_end(thread_pool: ThreadPool) -> None:
    plan, execution_context = chain(12, 100, 10), ExecutionContext()
    source, target, times = numbers(100), np.zeros(100, np.int64), np.zeros(13, np.int64)
    before = time.monotonic_ns()
    thread_pool.run(plan, execution_context, (source.ctypes.data, target.ctypes.data), times.ctypes.data)
    after = time.monotonic_ns()
    assert before <= times[0]
    assert times[-1] <= after
    assert (np.diff(times) >= 0).all()


def test_a_run_ends_before_it_begins_when_it_is_terminated(thread_pool: ThreadPool) -> None:
    plan, execution_context, word = chain(50, 20), ExecutionContext(), np.array([1, 0, 0], np.int64)
    source, target = numbers(20), np.zeros(20, np.int64)
    addresses = (source.ctypes.data, target.ctypes.data)
    assert thread_pool.run(plan, execution_context, addresses, 0, word.ctypes.data) == TERMINATED
    assert (target == 0).all()
    word[0] = 0
    assert thread_pool.run(plan, execution_context, addresses, 0, word.ctypes.data) == FINISHED
    np.testing.assert_array_equal(target, chained(source, 50))


def test_a_run_that_is_terminated_begins_no_further_step_of_the_caller(thread_pool: ThreadPool) -> None:
    """A step of the run itself sets the word; workers may be one phase ahead, but not past a step of the caller."""
    maker = PlanMaker(4)
    maker.add("who", ((2, 0),), 10)
    maker.add("put", ((1, 0), 1))
    maker.add("put", ((3, 0), 1))
    for i in range(1, 6):
        maker.add("who", ((2, i * 80),), 10)
    plan, execution_context = maker.plan(), ExecutionContext()
    for _ in range(200):
        word, later, threads = np.zeros(STOP_WORDS, np.int64), np.zeros(1, np.int64), np.zeros((6, 10), np.int64)
        addresses = (word.ctypes.data, threads.ctypes.data, later.ctypes.data)
        assert thread_pool.run(plan, execution_context, addresses, 0, word.ctypes.data) == TERMINATED
        assert (threads[0] != 0).all()
        assert later[0] == 0
        assert (threads[1:] == 0).all()


def test_a_thread_pool_stays_usable_when_runs_are_terminated_at_any_moment(thread_pool: ThreadPool) -> None:
    plan, short, execution_context, word = (
        chain(400, 10),
        chain(5, 10),
        ExecutionContext(),
        np.zeros(STOP_WORDS, np.int64),
    )
    source, target = numbers(10), np.zeros(10, np.int64)
    addresses = (source.ctypes.data, target.ctypes.data)
    interrupted: list[int] = []
    ended = threading.Event()

    def interrupt() -> None:
        while not ended.is_set():
            word[0] = 1
            time.sleep(0.0002)
            word[0] = 0
            time.sleep(0.0002)
            interrupted.append(1)

    other = threading.Thread(target=interrupt)
    other.start()
    statuses = set()
    deadline = time.monotonic() + PATIENCE
    try:
        while len(interrupted) < 100 or TERMINATED not in statuses:
            assert time.monotonic() < deadline, "no run was terminated"
            statuses.add(thread_pool.run(plan, execution_context, addresses, 0, word.ctypes.data))
            target[:] = 0
            assert thread_pool.run(short, execution_context, addresses) == FINISHED
            np.testing.assert_array_equal(target, chained(source, 5))
    finally:
        ended.set()
        other.join()
    assert statuses <= {FINISHED, TERMINATED}


def test_denormal_numbers_are_zero_where_the_plan_says_so(thread_pool: ThreadPool) -> None:
    """In every thread, during the run, and only then."""
    count = 4000
    source = np.full(count, np.finfo(np.float32).tiny)  # its half is denormal
    maker = PlanMaker(3)
    maker.add("halve", ((1, 0), (2, 0)), count)
    kept, flushed, execution_context = maker.plan(), maker.plan(flush_denormals=True), ExecutionContext()
    half = np.float32(source[0]) * np.float32(0.5)
    assert half > 0
    for plan, expected in [(kept, half), (flushed, 0), (kept, half)] * 10:
        target = np.ones(count, np.float32)
        thread_pool.run(plan, execution_context, (source.ctypes.data, target.ctypes.data))
        np.testing.assert_array_equal(target, np.full(count, expected, np.float32))
        assert source[0] * np.float32(0.5) == half


def test_the_executor_without_futexes_gives_the_same_results() -> None:
    """The variant for other systems, as far as this one can run it."""
    plainest = [*host_targets().values()][-1]
    target = dataclasses.replace(plainest, triple=f"{plainest.architecture}-unknown-freebsd")
    thread_pool = ThreadPool(
        executor_code(KernelLibrary(target, library().cache)), ThreadPoolOptions(3, spinning=False)
    )
    plan, execution_context = chain(40, 20, weight=50), ExecutionContext()
    for seed in range(20):
        source, result = numbers(20, seed), np.zeros(20, np.int64)
        assert thread_pool.run(plan, execution_context, (source.ctypes.data, result.ctypes.data)) == FINISHED
        np.testing.assert_array_equal(result, chained(source, 40, 50))
        time.sleep(0.001 * (seed % 3))
    worker_threads = thread_pool.close()
    assert worker_threads is not None
    worker_threads.join()
    assert not any(worker.is_alive() for worker in worker_threads.workers)


@pytest.mark.parametrize("system", ["linux", "darwin", "windows"])
@pytest.mark.parametrize("part", ["run", "work", "stop"])
def test_the_executor_compiles_for_every_system(system: str, part: str) -> None:
    targets = {**x86_64_targets(frozenset(), Caches(), system), **aarch64_targets(Caches(), system)}
    for target in targets.values():
        assert len(compile_object(emit_executor(target, (part,)), target)) > 200


def test_the_executor_comes_from_the_cache_the_second_time(tmp_path: Any) -> None:
    fresh = KernelLibrary(host_target(), KernelCache(tmp_path))
    first = executor_code(fresh)
    again = executor_code(KernelLibrary(host_target(), KernelCache(tmp_path)))
    assert fresh.counts.compiled == 3
    assert first != again  # loaded twice, from code and from the cache
    source, target = numbers(9), np.zeros(9, np.int64)
    for one in (first, again):
        thread_pool = ThreadPool(one, ThreadPoolOptions(2))
        thread_pool.run(chain(3, 9), ExecutionContext(), (source.ctypes.data, target.ctypes.data))
        np.testing.assert_array_equal(target, chained(source, 3))
        thread_pool.close()
