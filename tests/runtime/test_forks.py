"""Forks wait for work that must be whole, and leave no locks behind in the child."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from sardonyx.runtime import forks
from sardonyx.runtime.forks import cached_property, free_in_child, whole

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
]


def in_child(check: Callable[[], bool]) -> bool:
    """What a check says in a forked child."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 1)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Worker:
    """A thread that does whole work until it is told to end."""

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()
        self.is_done = False
        self.thread = threading.Thread(target=self._work)
        self.thread.start()
        assert self.begun.wait(30)

    def _work(self) -> None:
        with whole():
            self.begun.set()
            self.end.wait(30)
            self.is_done = True


def test_a_fork_waits_for_whole_work() -> None:
    worker = Worker()
    threading.Timer(0.2, worker.end.set).start()
    assert in_child(lambda: worker.is_done)
    worker.thread.join()


def test_no_work_begins_while_a_fork_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_LEAST_SECONDS", 30.0)
    worker, order = Worker(), []

    def other() -> None:
        while not forks._FORKING:
            time.sleep(0.001)
        threading.Timer(0.1, worker.end.set).start()
        with whole():
            order.append("other work")

    late = threading.Thread(target=other)
    late.start()
    assert in_child(lambda: worker.is_done and not order)
    late.join(30)
    worker.thread.join()
    assert order == ["other work"]


def test_work_within_work_goes_on_while_a_fork_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_LEAST_SECONDS", 30.0)
    begun, done = threading.Event(), []

    def nested() -> None:
        with whole():
            begun.set()
            while not forks._FORKING:
                time.sleep(0.001)
            with whole():
                done.append(True)

    thread = threading.Thread(target=nested)
    thread.start()
    assert begun.wait(30)
    assert in_child(lambda: bool(done))
    thread.join()


def test_a_fork_does_not_wait_for_its_own_thread() -> None:
    began = time.monotonic()
    with whole():
        assert in_child(lambda: len(forks._WORKING) == 1)
    assert time.monotonic() - began < 10
    assert not forks._WORKING


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_MOST_SECONDS", 0.05)
    worker = Worker()
    assert in_child(lambda: not worker.is_done and not forks._WORKING)
    worker.end.set()
    worker.thread.join()
    assert not forks._WORKING
    assert not forks._FORKING


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_locks_of_other_threads_are_free_in_a_child(make: Callable[[], threading.Lock]) -> None:
    lock = free_in_child(make())
    held, end = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            end.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)
    assert in_child(lambda: lock.acquire(timeout=5))
    assert not lock.acquire(blocking=False)
    end.set()
    thread.join()


def test_what_was_given_last_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(forks, "_AROUND", [])
    for name in ("inner", "outer"):
        forks.around_forks(lambda name=name: calls.append(f"before {name}"), lambda name=name: calls.append(name))
    assert in_child(lambda: calls == ["before outer", "before inner", "inner", "outer"])
    assert calls == ["before outer", "before inner", "inner", "outer"]


class Slow:
    """Something whose property another thread is about to compute."""

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()

    @cached_property
    def number(self) -> int:
        if self.begun.is_set():
            return 2
        self.begun.set()
        self.end.wait(30)
        return 1


def test_properties_are_computed_in_a_child_though_a_thread_was_about_to() -> None:
    slow = Slow()
    thread = threading.Thread(target=lambda: slow.number)
    thread.start()
    assert slow.begun.wait(30)

    def asks() -> bool:
        signal.alarm(30)  # ends a child that waits for a thread it does not have
        return slow.number == 2

    assert in_child(asks)
    slow.end.set()
    thread.join()
