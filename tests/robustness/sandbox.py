"""Runs models in a process of its own with bounded memory and time, so that a crash or a hang is an outcome."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntFlag
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

# What a model may take: seconds of the processor, all threads together, and addresses beside those of the process.
SECONDS_EACH = 5
MEMORY_BYTES = 3 << 30
# A run is asked to stop after so many seconds of the processor; how soon it does counts.
_SECONDS_TO_STOP = 2.0
# Of the clock: for the imports, for kernels that no cache has yet, and for a machine that others use.
_PATIENCE = 180.0

# What NumPy says where nobody has asked for the memory before; of more, no machine gives any.
_UNFORESEEN = ("Unable to allocate", "iB for an array")
_NEVER = (" PiB ", " EiB ")


class Finding(IntFlag):
    """What is wrong with an outcome; as the exit code of the fuzzer, several of them are added."""

    NONE = 0
    UNTYPED = 1  # an exception that is none of sardonyx.errors
    HANG = 2
    CRASH = 4  # or the end by a signal, such as that of a system without memory
    UNFORESEEN = 8  # memory that was taken without asking whether it is there


@dataclass(frozen=True)
class Outcome:
    """What came of a model: nothing to say of one that ran, else its error; `finding`: what is wrong with that."""

    text: str = ""
    finding: Finding = Finding.NONE

    @property
    def typed(self) -> bool:
        """Whether callers may expect it."""
        return self.finding is Finding.NONE


def outcome(data: bytes, folder: Path, kernels: str = "", feeds: Mapping[str, Any] | None = None) -> Outcome:
    """Load, build and run a model; `kernels` is the session config of that name.

    Inputs that are not among the `feeds` are drawn from the bytes of the model.
    """
    import sardonyx
    from sardonyx import errors

    options = sardonyx.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("sardonyx.cpu.kernels", kernels)
    path = folder / "model.onnx"
    path.write_bytes(data)
    stage = "build"
    try:
        session = sardonyx.InferenceSession(path, options)
        stage = "run"
        found = _feeds(session, random.Random(zlib.crc32(data)), feeds or {})
        if found is not None:
            with _stopped_in_time() as settings:
                session.run(None, found, settings)
    except errors.OnnxRuntimeError as error:
        text = f"{stage}: {type(error).__name__}: {error}"
        unforeseen = all(part in text for part in _UNFORESEEN) and not any(part in text for part in _NEVER)
        return Outcome(text, Finding.UNFORESEEN if unforeseen else Finding.NONE)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{stage}: {type(error).__name__}: {str(error)[:200]} at {where.filename}:{where.lineno}"
        return Outcome(text, Finding.UNTYPED)
    return Outcome()


@contextmanager
def _stopped_in_time() -> Iterator[Any]:
    """The options of a run that is asked to stop when it has taken long."""
    import sardonyx

    settings, done = sardonyx.RunOptions(), threading.Event()
    end = time.process_time() + _SECONDS_TO_STOP

    def watch() -> None:
        while not done.wait(0.05):
            if time.process_time() > end:
                settings.terminate = True

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield settings
    finally:
        done.set()
        thread.join()


def _feeds(session: Any, choice: random.Random, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is given for the inputs, and arrays for the others; None where one has no numbers of a known rank."""
    sizes: dict[str, int] = {}
    found = {
        value.name: given[value.name] if value.name in given else _feed(value, choice, sizes)
        for value in session.get_inputs()
    }
    return None if any(value is None and name not in given for name, value in found.items()) else found


# What may be large in a declaration is not made: a smaller array has to be refused, and at once.
_MOST_ELEMENTS = 1 << 20
_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(bool)": np.bool_,
    **{f"tensor({kind}{bits})": np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}


def _feed(value: Any, choice: random.Random, sizes: dict[str, int]) -> Any:
    """An array for an input: mostly zeros and sizes that agree with the names of dimensions, but not always."""
    dtype = _DTYPES.get(value.type)
    if dtype is None or value.shape is None:
        return None
    shape = []
    for dim in value.shape:
        size = choice.choice((0, 1, 1, 2, 3, 17))
        if isinstance(dim, int):
            shape.append(dim if 0 <= dim < _MOST_ELEMENTS else size)
        else:
            shape.append(size if dim is None or choice.random() < 0.1 else sizes.setdefault(dim, size))
    if len(shape) > 32 or int(np.prod([float(max(dim, 1)) for dim in shape])) > _MOST_ELEMENTS:
        shape = [min(dim, 2) for dim in shape[:16]]
    array = np.zeros(shape, dtype)
    if array.dtype.kind in "iu" and array.size and choice.random() < 0.5:
        bounds = np.iinfo(array.dtype)
        numbers = [
            number for number in (0, 1, 2, 5, -1, -6, 10, 1 << 40, bounds.max, bounds.min) if _holds(bounds, number)
        ]
        array.flat = [choice.choice(numbers[:7] if choice.random() < 0.9 else numbers) for _ in range(array.size)]
    return array


def _holds(bounds: Any, number: int) -> bool:
    return bool(bounds.min <= number <= bounds.max)


# What a process does with a model, in a folder: see `outcome`.
Work = Callable[[bytes, Path, str, "Mapping[str, Any] | None"], Outcome]


def _worker(pipe: Connection, folder: Path, work: Work) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    import sardonyx  # noqa: F401 - not on the account of the first model

    while True:
        request = pipe.recv()
        if request is None:
            return
        _limit()
        pipe.send(work(request[0], folder, *request[1:]))


def _limit() -> None:
    """Give the next model time and addresses of its own, whatever those before it have taken."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    _lower(resource.RLIMIT_CPU, int(used) + SECONDS_EACH + 1)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY_BYTES)


def _lower(which: int, soft: int) -> None:
    """Set the soft limit, as far as the hard one lets."""
    _, hard = resource.getrlimit(which)
    resource.setrlimit(which, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


class Sandbox:
    """A process that runs models, replaced when it dies or hangs."""

    def __init__(self, folder: Path, work: Work = outcome) -> None:
        self.folder, self._work = folder, work
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_worker, args=(other, self.folder, self._work), daemon=True)
        self._process.start()
        other.close()

    def run(self, data: bytes, kernels: str = "", feeds: Mapping[str, Any] | None = None) -> Outcome:
        """What comes of a model; one that hangs is tried again, as the first time it may have compiled kernels."""
        found = self._run(data, kernels, feeds)
        return self._run(data, kernels, feeds) if found.finding is Finding.HANG else found

    def _run(self, data: bytes, kernels: str, feeds: Mapping[str, Any] | None) -> Outcome:
        self._pipe.send((data, kernels, feeds))
        if not self._pipe.poll(_PATIENCE):
            self.close()
            self._start()
            return Outcome(f"hang: more than {_PATIENCE} seconds", Finding.HANG)
        try:
            found: Outcome = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            self._start()
            if code == -signal.SIGXCPU:
                return Outcome(f"hang: more than {SECONDS_EACH} seconds of the processor", Finding.HANG)
            return Outcome(f"crash: the process ended with {code}", Finding.CRASH)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.join()
