"""Tests of the thread pool: sharing, concurrency, forks, and the ends of thread pools and of the process."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx.runtime.memory.execution_contexts import ExecutionContext, ExecutionContextPool
from sardonyx.runtime.native_plan import NativePlan
from sardonyx.runtime.threads.processors import available_processors
from sardonyx.runtime.threads.thread_pool import (
    FINISHED,
    ExecutorCode,
    ThreadPool,
    ThreadPoolOptions,
    shared_thread_pool,
)
from sardonyx.runtime.threads.thread_pool_options import Idling
from sardonyx.runtime.threads.thread_pool_words import MemberField
from tests.runtime.native_kernels import PlanMaker, Words, chain, chained, code, numbers
from tests.runtime.workers import PATIENCE, looks, looks_per_second, wait_for_sleep, wait_until

POSIX_FORK = hasattr(os, "fork")

EXPECTED_LENGTH, EXPECTED_SIZE = 25, 24


@pytest.fixture
def thread_pool() -> Iterator[ThreadPool]:
    thread_pool = ThreadPool(code(), ThreadPoolOptions(2))
    yield thread_pool
    thread_pool.close()


def _run_and_check(
    thread_pool: ThreadPool,
    seed: int = 0,
    plan: NativePlan | None = None,
    execution_context: ExecutionContext | None = None,
) -> None:
    """One run of a chain, whose result is checked."""
    source, target = numbers(EXPECTED_SIZE, seed), np.zeros(EXPECTED_SIZE, np.int64)
    plan = plan or chain(EXPECTED_LENGTH, EXPECTED_SIZE, 2)
    assert (
        thread_pool.run(plan, execution_context or ExecutionContext(), (source.ctypes.data, target.ctypes.data))
        == FINISHED
    )
    np.testing.assert_array_equal(target, chained(source, EXPECTED_LENGTH))


def _meeting(chunks: int) -> tuple[NativePlan, Words, Words]:
    """A step whose chunks wait for each other: (plan, count of begun chunks, which of them met all others)."""
    maker = PlanMaker(3)
    maker.add("meet", ((1, 0), chunks, (2, 0)), chunks)
    return maker.plan(), np.zeros(1, np.int64), np.zeros(chunks, np.int64)


class _Blocked:
    """A run on a thread pool, by another thread, that stays in its step until it is let go."""

    def __init__(self, thread_pool: ThreadPool) -> None:
        maker = PlanMaker(3)
        maker.add("meet", ((1, 0), 1000, (2, 0)), 2)
        self._plan, self._count, self._met = maker.plan(), np.zeros(1, np.int64), np.zeros(2, np.int64)
        self._thread = threading.Thread(target=self._run, args=(thread_pool,))

    def _run(self, thread_pool: ThreadPool) -> None:
        self.status = thread_pool.run(self._plan, ExecutionContext(), (self._count.ctypes.data, self._met.ctypes.data))

    def __enter__(self) -> _Blocked:
        self._thread.start()
        wait_until(lambda: self._count[0] > 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._count[0] = 1000
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        assert self.status == FINISHED
        assert (self._met == 1).all()


def test_threads_of_a_thread_pool_work_at_the_same_time() -> None:
    for threads in (2, 3, 5):
        thread_pool = ThreadPool(code(), ThreadPoolOptions(threads))
        plan, count, met = _meeting(threads)
        thread_pool.run(plan, ExecutionContext(), (count.ctypes.data, met.ctypes.data))
        assert (met == 1).all()
        assert len(thread_pool.workers) == threads - 1
        thread_pool.close()


def test_workers_start_with_the_first_run_that_has_use_for_them(thread_pool: ThreadPool) -> None:
    assert thread_pool.workers == ()
    source, target = numbers(4), np.zeros(4, np.int64)
    thread_pool.run(chain(3, 4, 4), ExecutionContext(), (source.ctypes.data, target.ctypes.data))
    assert thread_pool.workers == ()
    _run_and_check(thread_pool)
    started: tuple[threading.Thread, ...] = thread_pool.workers
    assert [worker.daemon for worker in started] == [True]


@pytest.mark.parametrize("threads", [0, -1, 1 << 15])
def test_a_thread_pool_of_an_impossible_size_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match="threads"):
        ThreadPoolOptions(threads)


def test_there_is_one_affinity_for_each_worker() -> None:
    with pytest.raises(ValueError, match="2 affinities for 1 workers"):
        ThreadPoolOptions(2, affinities=(frozenset({0}), frozenset({1})))


def test_a_run_that_finds_the_thread_pool_busy_is_done_alone(thread_pool: ThreadPool) -> None:
    with _Blocked(thread_pool):
        for seed in range(5):
            _run_and_check(thread_pool, seed)
    _run_and_check(thread_pool)


@pytest.mark.parametrize("spinning", [True, False])
def test_sixteen_threads_at_once_on_one_thread_pool(spinning: bool) -> None:
    thread_pool, pool, plan = (
        ThreadPool(code(), ThreadPoolOptions(3, spinning)),
        ExecutionContextPool(3),
        chain(25, EXPECTED_SIZE, 1),
    )
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for turn in range(40):
                with pool.execution_context() as execution_context:
                    _run_and_check(thread_pool, seed + turn, plan, execution_context)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads)
    thread_pool.close()


def test_eight_thread_pools_at_once() -> None:
    thread_pools = [ThreadPool(code(), ThreadPoolOptions(2 + i % 3)) for i in range(8)]
    failures: list[BaseException] = []

    def work(thread_pool: ThreadPool) -> None:
        execution_context = ExecutionContext()
        try:
            for seed in range(40):
                _run_and_check(thread_pool, seed, execution_context=execution_context)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(thread_pool,)) for thread_pool in thread_pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert failures == []
    for thread_pool in thread_pools:
        thread_pool.close()


def test_sessions_that_want_the_same_share_a_thread_pool() -> None:
    one = shared_thread_pool(code(), ThreadPoolOptions(2))
    assert shared_thread_pool(code(), ThreadPoolOptions(2)) is one
    assert shared_thread_pool(code(), ThreadPoolOptions(3)) is not one
    assert shared_thread_pool(code(), ThreadPoolOptions(2, spinning=False)) is not one
    assert shared_thread_pool(code(), ThreadPoolOptions(2, affinities=(frozenset({0}),))) is not one


def test_the_workers_end_when_nobody_holds_the_thread_pool() -> None:
    thread_pool = shared_thread_pool(code(), ThreadPoolOptions(2, spin_seconds=0.01))
    _run_and_check(thread_pool)
    workers, gone = thread_pool.workers, weakref.ref(thread_pool)
    del thread_pool
    gc.collect()
    assert gone() is None
    for worker in workers:
        worker.join(PATIENCE)
        assert not worker.is_alive()


@pytest.mark.parametrize("spinning", [True, False])
def test_closing_ends_the_workers_and_leaves_a_thread_pool_of_one(spinning: bool) -> None:
    thread_pool = ThreadPool(code(), ThreadPoolOptions(3, spinning, spin_seconds=60.0))
    _run_and_check(thread_pool)
    worker_threads = thread_pool.close()
    assert worker_threads is not None
    worker_threads.join()
    assert not any(worker.is_alive() for worker in worker_threads.workers)
    _run_and_check(thread_pool)
    assert thread_pool.workers == ()
    assert thread_pool.close() is None


def test_a_thread_pool_closed_during_a_run_finishes_it(thread_pool: ThreadPool) -> None:
    with _Blocked(thread_pool):
        thread_pool.close()
        _run_and_check(thread_pool)
    _run_and_check(thread_pool)


def test_a_thread_pool_that_gets_fewer_threads_works_with_those(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if len(started) == 1:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    thread_pool = ThreadPool(code(), ThreadPoolOptions(4))
    _run_and_check(thread_pool)
    assert thread_pool.threads == 2
    assert len(thread_pool.workers) == 1
    thread_pool.close()
    started.append(threading.current_thread())
    monkeypatch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("none")))
    alone = ThreadPool(code(), ThreadPoolOptions(4))
    _run_and_check(alone)
    assert alone.threads == 1


def test_each_worker_calls_back_when_it_starts() -> None:
    seen: list[tuple[int, str]] = []

    def on_start(number: int) -> None:
        seen.append((number, threading.current_thread().name))
        if number == 2:
            raise ValueError("no")

    thread_pool = ThreadPool(code(), ThreadPoolOptions(4, on_start=on_start))
    plan, count, met = _meeting(4)
    thread_pool.run(plan, ExecutionContext(), (count.ctypes.data, met.ctypes.data))
    assert sorted(seen) == [(i, f"sardonyx-worker-{i}") for i in (1, 2, 3)]
    assert (met == 1).all()  # the one whose callback raised works all the same
    thread_pool.close()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system binds no threads")
def test_workers_are_bound_to_their_processors() -> None:
    processors = sorted(available_processors())
    wanted = tuple(frozenset({processors[i % len(processors)]}) for i in range(2))
    thread_pool = ThreadPool(code(), ThreadPoolOptions(3, affinities=wanted))
    plan, count, met = _meeting(3)
    thread_pool.run(plan, ExecutionContext(), (count.ctypes.data, met.ctypes.data))
    bound = [frozenset(os.sched_getaffinity(worker.native_id or 0)) for worker in thread_pool.workers]
    assert tuple(bound) == wanted
    assert available_processors() == frozenset(processors)
    thread_pool.close()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system binds no threads")
def test_processors_that_are_not_there_are_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    thread_pool = ThreadPool(code(), ThreadPoolOptions(2, affinities=(frozenset({1000}),)))
    plan, count, met = _meeting(2)
    thread_pool.run(plan, ExecutionContext(), (count.ctypes.data, met.ctypes.data))
    assert (met == 1).all()
    assert "worker 1 cannot be bound to processors [1000]" in capfd.readouterr().err
    thread_pool.close()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system binds no threads")
def test_workers_that_roam_keep_the_affinity_of_the_process(thread_pool: ThreadPool) -> None:
    for seed in range(50):
        _run_and_check(thread_pool, seed)
        time.sleep(0.002)
    (worker,) = thread_pool.workers
    wait_until(lambda: frozenset(os.sched_getaffinity(worker.native_id or 0)) == available_processors())


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_thousands_of_runs_take_no_memory_and_no_threads(thread_pool: ThreadPool) -> None:
    plan, pool = chain(10, EXPECTED_SIZE, 2), ExecutionContextPool(2)
    source, target = numbers(EXPECTED_SIZE), np.zeros(EXPECTED_SIZE, np.int64)
    addresses = (source.ctypes.data, target.ctypes.data)

    def run(times: int) -> tuple[int, int]:
        for _ in range(times):
            execution_context = pool.take()
            thread_pool.run(plan, execution_context, addresses)
            pool.give(execution_context)
        return int(Path("/proc/self/statm").read_text().split()[1]), threading.active_count()

    pages, threads = run(500)
    pages_after, threads_after = run(10_000)
    assert threads_after <= threads  # a worker of an earlier test may have ended
    assert (pages_after - pages) * os.sysconf("SC_PAGE_SIZE") < 1 << 20
    np.testing.assert_array_equal(target, chained(source, 10))


@pytest.mark.parametrize("spinning", [True, False])
def test_a_thread_pool_that_slept_takes_part_again(spinning: bool) -> None:
    thread_pool = ThreadPool(code(), ThreadPoolOptions(2, spinning))
    for pause in (0.0, 0.01, 0.3):
        time.sleep(pause)
        plan, count, met = _meeting(2)
        thread_pool.run(plan, ExecutionContext(), (count.ctypes.data, met.ctypes.data))
        assert (met == 1).all()
    thread_pool.close()


def _times_asleep(worker: threading.Thread) -> int:
    """How often a thread has gone to sleep."""
    text = Path(f"/proc/self/task/{worker.native_id}/status").read_text()
    return int(text.split("voluntary_ctxt_switches:")[1].split()[0])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_a_short_run_lets_sleepers_sleep_and_a_long_one_wakes_them() -> None:
    """The plan says that it is short; what it does in one step lasts longer than waking takes, or does not."""
    thread_pool = ThreadPool(code(), ThreadPoolOptions(2, spinning=False))
    _meets(thread_pool)
    (worker,) = thread_pool.workers
    maker = PlanMaker(2)
    maker.add("who", ((1, 0),), 4)
    short = maker.plan(nanoseconds=1000)
    count, met = np.zeros(1, np.int64), np.zeros(2, np.int64)
    maker = PlanMaker(3)
    maker.add("mix", ((0, 0), (0, 80), 10, 1_000_000), 10)  # milliseconds
    maker.add("meet", ((1, 0), 2, (2, 0)), 2)
    long = maker.plan(160, nanoseconds=1000)
    time.sleep(0.01)
    before = _times_asleep(worker)
    for _ in range(50):
        time.sleep(0.001)
        threads = np.zeros(4, np.int64)
        thread_pool.run(short, ExecutionContext(), (threads.ctypes.data,))
        assert (threads != 0).all()
    assert _times_asleep(worker) - before < 50  # a run that the system interrupts is long, too
    thread_pool.run(long, ExecutionContext(), (count.ctypes.data, met.ctypes.data))
    assert (met == 1).all()
    thread_pool.close()


def _in_child(check: Any) -> int:
    """The exit status of a forked child that makes a check."""
    child = os.fork()
    if child == 0:
        try:
            check()
            os._exit(0)
        except BaseException:
            logging.exception("in the child")
            os._exit(1)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


def _meets(thread_pool: ThreadPool) -> None:
    """The thread pool has a worker of its own that takes part."""
    plan, count, met = _meeting(2)
    thread_pool.run(plan, ExecutionContext(), (count.ctypes.data, met.ctypes.data))
    assert (met == 1).all()
    assert all(worker.is_alive() for worker in thread_pool.workers)


@pytest.mark.skipif(not POSIX_FORK, reason="the system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
class TestFork:
    def test_a_child_starts_workers_of_its_own(self, thread_pool: ThreadPool) -> None:
        _run_and_check(thread_pool)

        def check() -> None:
            assert thread_pool.workers == ()
            _run_and_check(thread_pool)
            _meets(thread_pool)

        assert _in_child(check) == 0
        _meets(thread_pool)

    def test_a_child_forked_during_a_run_does_not_hang(self, thread_pool: ThreadPool) -> None:
        _meets(thread_pool)
        with _Blocked(thread_pool):
            assert _in_child(lambda: _meets(thread_pool)) == 0
        _run_and_check(thread_pool)

    def test_a_child_forked_while_workers_spin(self) -> None:
        thread_pool = ThreadPool(code(), ThreadPoolOptions(2, spin_seconds=60.0))
        _meets(thread_pool)
        assert _in_child(lambda: _meets(thread_pool)) == 0
        thread_pool.close()

    def test_a_child_of_a_child(self, thread_pool: ThreadPool) -> None:
        _run_and_check(thread_pool)

        def check() -> None:
            _meets(thread_pool)
            assert _in_child(lambda: _meets(thread_pool)) == 0

        assert _in_child(check) == 0

    def test_many_children_while_other_threads_run(self, thread_pool: ThreadPool) -> None:
        ended: list[bool] = []
        failures: list[BaseException] = []

        def work(seed: int) -> None:
            execution_context = ExecutionContext()
            try:
                while not ended:
                    _run_and_check(thread_pool, seed, execution_context=execution_context)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        try:
            statuses = [_in_child(lambda: _run_and_check(thread_pool, 5)) for _ in range(10)]
        finally:
            ended.append(True)
        for thread in threads:
            thread.join(PATIENCE)
        assert statuses == [0] * 10
        assert failures == []

    def test_multiprocessing_with_fork(self) -> None:
        thread_pool = shared_thread_pool(code(), ThreadPoolOptions(2))
        _run_and_check(thread_pool)
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=_child_run, args=(seed,)) for seed in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join(PATIENCE)
        assert [child.exitcode for child in children] == [0, 0, 0]


def _child_run(seed: int) -> None:
    _run_and_check(shared_thread_pool(code(), ThreadPoolOptions(2)), seed)


_PROGRAM = """
import threading, time, os, sys, atexit
from sardonyx.runtime.threads.thread_pool import ThreadPoolOptions, ThreadPool, shared_thread_pool
from tests.runtime.native_kernels import code
from tests.runtime.test_thread_pool import _run_and_check, _Blocked
{body}
print("end")
"""


def _program(body: str) -> str:
    """What a program prints that ends with thread pools in some state; it must end by itself, without an error."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(body=body)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            "thread_pool = ThreadPool(code(), ThreadPoolOptions(3, spin_seconds=600)); _run_and_check(thread_pool)",
            id="spinning",
        ),
        pytest.param(
            "thread_pool = ThreadPool(code(), ThreadPoolOptions(3, False)); _run_and_check(thread_pool)\n"
            "time.sleep(0.1)",
            id="asleep",
        ),
        pytest.param("thread_pool = ThreadPool(code(), ThreadPoolOptions(3))", id="never run"),
        pytest.param(
            "thread_pool = ThreadPool(code(), ThreadPoolOptions(2)); _run_and_check(thread_pool)\n"
            "atexit._run_exitfuncs(); _run_and_check(thread_pool)",
            id="run after the end",
        ),
        pytest.param(
            "thread_pool = shared_thread_pool(code(), ThreadPoolOptions(2)); _run_and_check(thread_pool)\n"
            "def forever():\n"
            "    while True: _run_and_check(thread_pool)\n"
            "threading.Thread(target=forever, daemon=True).start(); time.sleep(0.3)",
            id="a daemon thread still runs",
        ),
        pytest.param(
            "thread_pools = [ThreadPool(code(), ThreadPoolOptions(2)) for _ in range(5)]\n"
            "for thread_pool in thread_pools: _run_and_check(thread_pool)\n"
            "import gc; thread_pools.append(thread_pools); del thread_pools; gc.collect()",
            id="thread pools in a cycle",
        ),
    ],
)
def test_the_process_ends(body: str) -> None:
    assert _program(body) == "end\n"


def test_a_child_of_multiprocessing_ends() -> None:
    body = (
        "import multiprocessing\n"
        "thread_pool = shared_thread_pool(code(), ThreadPoolOptions(2)); _run_and_check(thread_pool)\n"
        "child = multiprocessing.get_context('fork').Process(target=_run_and_check, args=(thread_pool,))\n"
        "child.start(); child.join(); print(child.exitcode)"
    )
    assert _program(body) == "0\nend\n"


def test_code_is_kept_as_long_as_a_thread_pool_uses_it() -> None:
    class Owner:
        pass

    owner = Owner()
    gone = weakref.ref(owner)
    kept = ExecutorCode(code().run, code().work, code().stop, owner)
    assert kept == code()
    thread_pool = ThreadPool(kept, ThreadPoolOptions(2))
    del owner, kept
    _run_and_check(thread_pool)
    assert gone() is not None
    worker_threads = thread_pool.close()
    assert worker_threads is not None
    worker_threads.join()
    del thread_pool, worker_threads
    gc.collect()
    assert gone() is None


# How steps are divided


def _claims(blocks: int, threads: int, size: int = 1000, claim: int = 5) -> int:
    """How often the threads of a thread pool claim chunks of a step, of which kernels suggest so many for a claim."""
    thread_pool = ThreadPool(code(), ThreadPoolOptions(threads, blocks=blocks))
    source, target = numbers(size), np.zeros(size, np.int64)
    thread_pool.run(chain(1, size, claim), ExecutionContext(), (source.ctypes.data, target.ctypes.data))
    np.testing.assert_array_equal(target, chained(source, 1))
    found = sum(thread_pool.column(MemberField.CLAIMS))
    thread_pool.close()
    return found


def _shrinking(claims: int, divisor: int) -> int:
    """How many blocks one thread takes of so many claims: each is what is left over the divisor, one at least."""
    blocks = 0
    while claims > 0:
        claims -= max(1, claims // divisor)
        blocks += 1
    return blocks


def test_a_thread_claims_what_a_kernel_suggests() -> None:
    assert _claims(0, 2) == 200


@pytest.mark.parametrize("base", [1, 4, 16])
def test_blocks_shrink_with_what_is_left(base: int) -> None:
    """Of two threads each begins with a half; where one takes from the other's half, a block may be cut in two."""
    one_half = _shrinking(100, base)
    found = _claims(base, 2)
    assert one_half <= found < 200
    assert abs(found - 2 * one_half) <= one_half


def test_smaller_bases_make_fewer_claims() -> None:
    found = [_claims(base, 3) for base in (1, 4, 16)]
    assert found == sorted(found)
    assert found[0] < found[2]


def test_blocks_are_of_one_claim_at_least() -> None:
    assert _claims(100_000, 2) == 200


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_results_do_not_depend_on_blocks(blocks: int) -> None:
    thread_pool = ThreadPool(code(), ThreadPoolOptions(3, blocks=blocks))
    for seed in range(20):
        _run_and_check(thread_pool, seed)
    thread_pool.close()


# How workers idle


def test_each_worker_idles_as_it_is_told() -> None:
    """Of three workers one looks for work all the time, one makes pauses, and one sleeps at once."""
    idling = Idling(seconds=600.0, backoff=64)
    thread_pool = ThreadPool(code(), ThreadPoolOptions(3, spin_seconds=600.0, added=1, added_idling=idling))
    _meets(thread_pool)
    assert 0 < 4 * looks_per_second(thread_pool, 2) < looks_per_second(thread_pool, 1)
    thread_pool.close()
    thread_pool = ThreadPool(
        code(), ThreadPoolOptions(3, spin_seconds=600.0, added=1, added_idling=Idling(spinning=False))
    )
    _meets(thread_pool)
    before = [looks(thread_pool, number) for number in range(3)]
    wait_until(lambda: looks(thread_pool, 1) > before[1] + 100_000)
    wait_for_sleep(thread_pool, 2)
    assert looks(thread_pool, 2) <= before[2] + 1000
    thread_pool.close()


def test_nobody_idles_long_where_spinning_stops_with_the_run() -> None:
    options = ThreadPoolOptions(3, spin_seconds=600.0, stop_after_run=True, added=1, added_idling=Idling(seconds=600.0))
    assert [options.idling(number).nanoseconds for number in (1, 2)] == [0, 0]
    thread_pool = ThreadPool(code(), options)
    _meets(thread_pool)
    for number in (1, 2):
        wait_for_sleep(thread_pool, number)
    thread_pool.close()


# Sharing cores with other programs


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system binds no threads")
@pytest.mark.skipif(len(available_processors()) < 2, reason="there is one processor")
def test_a_thread_that_lost_its_core_is_brought_to_one_that_waits() -> None:
    """A program that only counts takes turns with the worker, and the caller does not wait for its turn to end."""
    here, there = sorted(available_processors())[:2]
    program = f"import os\nos.sched_setaffinity(0, [{there}])\nprint(flush=True)\nwhile True: pass"
    size = 2048
    # A thread works for milliseconds on what it has claimed: the system often takes it off its core meanwhile.
    thread_pool, execution_context, plan = (
        ThreadPool(code(), ThreadPoolOptions(2)),
        ExecutionContext(),
        chain(4, size, size // 4, 2000),
    )
    source, target = numbers(size), np.zeros(size, np.int64)
    expected = chained(source, 4, 2000)
    _meets(thread_pool)
    before = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            os.sched_setaffinity(0, {here})
            deadline = time.monotonic() + PATIENCE
            while sum(thread_pool.column(MemberField.MOVES)) == 0:
                assert time.monotonic() < deadline, "nobody was moved"
                target[:] = 0
                thread_pool.run(plan, execution_context, (source.ctypes.data, target.ctypes.data))
                np.testing.assert_array_equal(target, expected)
        finally:
            os.sched_setaffinity(0, before)
            other.kill()
    (worker,) = thread_pool.workers
    wait_until(lambda: frozenset(os.sched_getaffinity(worker.native_id or 0)) == available_processors())
    thread_pool.close()
