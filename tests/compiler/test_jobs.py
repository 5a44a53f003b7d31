"""Work that helping threads do, or who asks for its result."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sardonyx.compiler.llvm.jobs import Job, Jobs

PATIENCE = 60.0  # seconds after which a thread hangs


class Given:
    """Work that waits until it may go on, and notes the threads that did it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.threads: list[int] = []

    def __call__(self) -> int:
        self.threads.append(threading.get_ident())
        self.begun.set()
        assert self.may_end.wait(PATIENCE)
        return self.number


def free(number: int) -> Given:
    work = Given(number)
    work.may_end.set()
    return work


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sardonyx-compile"]


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    yield Jobs()
    for thread in helpers():
        thread.join(PATIENCE)
    assert helpers() == []  # none stays where there is nothing to do


def test_who_asks_does_it_where_nobody_helps(jobs: Jobs) -> None:
    works = [free(number) for number in range(3)]
    asked = [jobs.add(work, 0) for work in works]
    assert [job.result() for job in reversed(asked)] == [2, 1, 0]
    assert asked[0].result() == 0
    assert [work.threads for work in works] == [[threading.get_ident()]] * 3


def test_a_helper_does_it_while_nobody_asks(jobs: Jobs) -> None:
    works = [Given(number) for number in range(3)]
    asked = [jobs.add(work, 2) for work in works]
    for work in works[:2]:
        assert work.begun.wait(PATIENCE)
    assert len(helpers()) == 2
    for work in works:
        work.may_end.set()
    assert [job.result() for job in asked] == [0, 1, 2]
    assert works[0].threads + works[1].threads not in ([], [threading.get_ident()] * 2)


def test_many_ask_and_it_is_done_once(jobs: Jobs) -> None:
    work = Given(5)
    job = jobs.add(work, 0)
    found: list[int] = []
    threads = [in_thread(lambda: found.append(job.result())) for _ in range(8)]
    assert work.begun.wait(PATIENCE)
    work.may_end.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == [5] * 8
    assert len(work.threads) == 1


@pytest.mark.parametrize("count", [0, 1])
def test_who_asks_gets_the_error(count: int, jobs: Jobs) -> None:
    def fail() -> int:
        raise ValueError("no such thing")

    job, other = jobs.add(fail, count), jobs.add(free(7), count)
    for _ in range(2):
        with pytest.raises(ValueError, match="no such thing"):
            job.result()
    assert other.result() == 7


def test_what_failed_is_tried_again_by_who_asks_again(jobs: Jobs) -> None:
    tried: list[int] = []

    def work() -> int:
        tried.append(len(tried))
        if len(tried) < 3:
            raise MemoryError(f"try {len(tried)}")
        return 7

    job = jobs.add(work, 0)
    for number in (1, 2):
        with pytest.raises(MemoryError, match=f"try {number}"):
            job.result()
    assert [job.result(), job.result()] == [7, 7]
    assert len(tried) == 3


def test_what_is_interrupted_is_done_again(jobs: Jobs) -> None:
    outcomes: Iterator[Callable[[], int]] = iter([_interrupt, lambda: 3])
    job = jobs.add(lambda: next(outcomes)(), 0)
    with pytest.raises(KeyboardInterrupt):
        job.result()
    assert job.result() == 3


def _interrupt() -> int:
    raise KeyboardInterrupt


def test_a_system_without_threads(monkeypatch: pytest.MonkeyPatch, jobs: Jobs) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        assert [jobs.add(free(number), 4).result() for number in range(3)] == [0, 1, 2]
    work = free(4)
    assert jobs.add(work, 4).result() == 4


def test_work_may_ask_for_its_own_result(jobs: Jobs) -> None:
    """As a handler of signals does that makes a session in the midst of another one's."""
    asked: list[Job] = []
    depth = iter(range(2))

    def work() -> int:
        return asked[0].result() if next(depth) == 0 else 9

    asked.append(jobs.add(work, 0))
    assert asked[0].result() == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_child_does_what_threads_of_its_parent_are_at(jobs: Jobs) -> None:
    work, waiting = Given(1), Given(2)
    job, other = jobs.add(work, 1), jobs.add(waiting, 1)
    assert work.begun.wait(PATIENCE)
    jobs.hold()
    child = os.fork()
    if child == 0:
        try:
            jobs.release()
            work.may_end.set()
            waiting.may_end.set()
            os._exit(0 if (job.result(), other.result()) == (1, 2) else 2)
        except BaseException:
            os._exit(1)
    jobs.release()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    work.may_end.set()
    waiting.may_end.set()
    assert (job.result(), other.result()) == (1, 2)
    assert len(work.threads) == 1


ENDING = """
import sys, threading
from sardonyx.compiler.llvm.jobs import JOBS
begun = threading.Event()

def work():
    begun.set()
    threading.main_thread().join()
    print("done", flush=True)
    return 1

for _ in range(20):
    JOBS.add(work, 2)
assert begun.wait(60)
"""


def test_a_program_that_ends_waits_for_what_was_begun_alone(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert 1 <= ended.stdout.count("done") <= 2
