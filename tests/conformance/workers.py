"""Runs tests in processes of their own, so that a crash or a hang of one is an outcome and not the end."""

from __future__ import annotations

import functools
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np

from tests.conformance import suite
from tests.conformance.engine import Engine

DEFAULT = Engine()

Status = Literal["passed", "failed", "crashed", "timeout", "skipped"]


@dataclass(frozen=True)
class Outcome:
    kind: str
    name: str
    status: Status
    reason: str = ""
    seconds: float = 0.0
    host_steps: tuple[str, ...] | None = None  # where they were asked for, and the test is about numbers


def run_all(names: Sequence[str], workers: int, timeout: float, engine: Engine = DEFAULT) -> list[Outcome]:
    """Outcomes of the named tests, in that order."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    outcomes: dict[str, Outcome] = {}
    drivers = [threading.Thread(target=_drive, args=(waiting, outcomes, timeout, engine)) for _ in range(workers)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    return [outcomes[name] for name in names]


def _drive(waiting: queue.SimpleQueue[str], outcomes: dict[str, Outcome], timeout: float, engine: Engine) -> None:
    """Feed one worker from the queue; a worker that dies or hangs is replaced."""
    worker: _Worker | None = None
    while True:
        try:
            name = waiting.get_nowait()
        except queue.Empty:
            break
        worker = worker or _Worker(engine)
        outcomes[name] = worker.run(name, timeout)
        if outcomes[name].status in ("crashed", "timeout"):
            worker = None
    if worker is not None:
        worker.stop()


class _Worker:
    """A process that runs one test at a time."""

    def __init__(self, engine: Engine) -> None:
        context = _context()
        self.connection, child = context.Pipe()
        self.process = context.Process(target=_serve, args=(child, engine), daemon=True)
        self.process.start()
        child.close()
        self.connection.recv()  # it has loaded the suite

    def run(self, name: str, timeout: float) -> Outcome:
        kind = suite.tests()[name][0]
        try:
            self.connection.send(name)
            if self.connection.poll(timeout):
                answer: Outcome = self.connection.recv()
                return answer
        except (EOFError, OSError):
            self.process.join()
            return Outcome(kind, name, "crashed", _how_it_ended(self.process.exitcode))
        self.process.kill()
        self.process.join()
        return Outcome(kind, name, "timeout", f"no answer in {timeout:g} s", timeout)

    def stop(self) -> None:
        self.connection.close()
        self.process.join()


@functools.cache
def _context() -> Any:
    """Makes processes, from one that has the suite in it where the system can: it takes long to load."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.conformance.loaded"])
    return context


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the process died of {signal.Signals(-code).name}"
    return f"the process ended with exit code {code}"


def _serve(connection: Connection, engine: Engine) -> None:
    os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"  # the suite tests operator sets before their release
    np.seterr(all="ignore")
    suite.tests()
    connection.send("ready")
    while True:
        try:
            name = connection.recv()
        except EOFError:
            return
        connection.send(_outcome(engine, name))


def _outcome(engine: Engine, name: str) -> Outcome:
    start = time.perf_counter()
    kind, test = suite.tests()[name]
    status: Status = "passed"
    reason = ""
    hosts = None
    try:
        model, sets = suite.load(test)
        if engine.counts_host_steps and suite.is_numeric(model):
            hosts = tuple(engine.host_steps(model))
        run = functools.partial(engine.run, model) if engine.constants else engine.session(model)
        compared = 0
        for data in sets:
            suite.compare(data.expected, run(data.feeds), test)
            compared += 1
        if not compared:
            raise suite.UnavailableError("it has no data to compare with")
    except suite.UnavailableError as error:
        status, reason = "skipped", str(error)
    except Exception as error:  # whatever the engine raises is a failed test
        status, reason = "failed", f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]
    return Outcome(kind, name, status, reason, time.perf_counter() - start, hosts)
