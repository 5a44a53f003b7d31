"""Threads that help: all work is done, once, with any number of them, and with none."""

from __future__ import annotations

import threading
import time

import pytest

from sardonyx.runtime.helpers import Helpers


class Numbers:
    """Takes numbers from a list until none is left, and notes who took which."""

    def __init__(self, count: int, pause: float = 0.0) -> None:
        self.rest = iter(range(count))
        self.pause = pause
        self.taken: list[tuple[int, int]] = []

    def __call__(self) -> None:
        for number in self.rest:
            self.taken.append((number, threading.get_ident()))
            time.sleep(self.pause)

    @property
    def numbers(self) -> list[int]:
        return sorted(number for number, _ in self.taken)


def test_they_share_the_work_and_end_with_the_block() -> None:
    before = threading.active_count()
    with Helpers(3, "help") as helpers:
        for _ in range(4):
            work = Numbers(40, 1e-3)
            helpers.share(work, 3)
            assert work.numbers == list(range(40))
            assert len({thread for _, thread in work.taken}) > 1
        assert threading.active_count() <= before + 3  # the same ones
    assert threading.active_count() == before


@pytest.mark.parametrize("given", [0, 1])
def test_without_threads_the_caller_does_all(monkeypatch: pytest.MonkeyPatch, given: int) -> None:
    start, started = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if len(started) == given:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with Helpers(3, "help") as helpers:
        for _ in range(2):
            work = Numbers(100)
            helpers.share(work, 3)
            assert work.numbers == list(range(100))
    assert len(started) == given


def test_what_is_raised_by_a_helper_comes_through_when_all_have_ended() -> None:
    ended = []

    def work() -> None:
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.05)
            ended.append("main")
        else:
            raise ValueError("of a helper")

    with Helpers(2, "help") as helpers, pytest.raises(ValueError, match="of a helper"):
        helpers.share(work, 2)
    assert ended == ["main"]


def test_what_the_caller_raises_waits_for_the_helpers() -> None:
    begun, ended = threading.Event(), []

    def work() -> None:
        if threading.current_thread() is threading.main_thread():
            assert begun.wait(30)
            raise ValueError("of the caller")
        begun.set()
        time.sleep(0.05)
        ended.append("helper")

    with Helpers(1, "help") as helpers:
        with pytest.raises(ValueError, match="of the caller"):
            helpers.share(work, 1)
        assert ended == ["helper"]
