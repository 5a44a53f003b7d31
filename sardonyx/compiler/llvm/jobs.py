"""Work that is wanted later: helping threads do it meanwhile, or else whoever asks for its result."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from sardonyx.runtime.forks import around_forks
from sardonyx.runtime.memory import address_space


class Job:
    """One piece of work, done once unless it fails, that gives a number."""

    __slots__ = ("_jobs", "_problem", "_results", "_work")

    def __init__(self, jobs: Jobs, work: Callable[[], int]) -> None:
        self._jobs = jobs
        self._work = work
        self._results: list[int] = []  # the one, when it is done
        self._problem: Exception | None = None

    def result(self) -> int:
        """What the work gives, or the error that it raises; done here, unless another thread did it or is at it."""
        while not self._results:
            self._jobs.finish(self)
            problem, self._problem = self._problem, None  # who asks again tries again: there may be memory by then
            if problem is not None:
                raise problem
        return self._results[0]

    def do(self) -> None:
        """For `Jobs` alone."""
        try:
            self._results.append(self._work())
        except Exception as error:
            self._problem = error
            return
        self._work = _done  # what it held may go

    @property
    def is_done(self) -> bool:
        return bool(self._results) or self._problem is not None


def _done() -> int:
    raise AssertionError("a job is done once")


class Jobs:
    """All of a process. Threads help while there is something to do, so that none is left when there is nothing."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._waiting: dict[Job, None] = {}  # in order
        self._running: dict[Job, int] = {}  # and the thread that does it
        self._helpers = 0
        self._process = 0  # which forks

    def add(self, work: Callable[[], int], helpers: int) -> Job:
        """Do this some time, before its result is there for whoever asks; up to so many threads may help."""
        job = Job(self, work)
        with self._changed:
            self._waiting[job] = None
            starts = self._helpers < min(helpers, len(self._waiting)) and address_space.has_spare()
            self._helpers += starts
        if starts:
            try:
                threading.Thread(target=self._help, name="sardonyx-compile").start()
            except RuntimeError:  # the system gives no thread: who asks for the result does it
                with self._changed:
                    self._helpers -= 1
        return job

    def _help(self) -> None:
        """Do what waits, until nothing does; when the program ends, the rest stays undone."""
        while True:
            with self._changed:
                job = next(iter(self._waiting), None)
                if job is None or not threading.main_thread().is_alive():
                    self._helpers -= 1
                    return
                self._take(job)
            self._do(job)

    def finish(self, job: Job) -> None:
        """Do a job here, or wait for the thread that does it."""
        own = threading.get_ident()
        with self._changed:
            while self._running.get(job, own) != own:
                self._changed.wait()
            if job.is_done:
                return
            self._take(job)
        self._do(job)

    def _take(self, job: Job) -> None:
        self._waiting.pop(job, None)
        self._running[job] = threading.get_ident()

    def _do(self, job: Job) -> None:
        try:
            job.do()
        finally:
            with self._changed:
                self._running.pop(job, None)
                if not job.is_done:  # interrupted
                    self._waiting[job] = None
                self._changed.notify_all()

    def hold(self) -> None:
        """Let nothing begin or end until `release`."""
        self._changed.acquire()
        self._process = os.getpid()

    def release(self) -> None:
        """In a child, which has no other thread, what others were at is to be done still."""
        if os.getpid() != self._process:
            own = threading.get_ident()
            self._helpers = 0
            for job in [job for job, thread in self._running.items() if thread != own]:
                del self._running[job]
                if not job.is_done:
                    self._waiting[job] = None
        self._changed.release()


JOBS = Jobs()

around_forks(JOBS.hold, JOBS.release)
