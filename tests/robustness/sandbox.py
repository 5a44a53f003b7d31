"""Runs models in a process of its own with bounded memory, so that a crash or a hang is an outcome and not the end."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import time
import traceback
import zlib
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

SECONDS_EACH = 5.0
# The first model pays for the imports, and any for kernels that no cache has yet.
SECONDS_TO_PREPARE = 120.0
MEMORY_BYTES = 3 << 30


@dataclass(frozen=True)
class Outcome:
    """What came of a model: nothing to say of one that ran, else its error; `typed`: one that callers may expect."""

    text: str = ""
    typed: bool = True


def outcome(data: bytes, folder: Path, kernels: str = "") -> Outcome:
    """Load, build and run a model with numbers drawn from its bytes; `kernels` is the session config of that name."""
    from sardonyx import errors, log
    from sardonyx.api.building.compiled_model import CompiledModel
    from sardonyx.graph.load import load_model
    from sardonyx.providers import registry
    from sardonyx.runtime.context import RunContext
    from sardonyx.runtime.executor import execute
    from sardonyx.runtime.settings import RunSettings

    log.set_default_severity(4)
    stage = "load"
    stop = time.monotonic() + SECONDS_EACH / 2
    try:
        loaded = load_model(data, external_folder=folder)
        stage = "build"
        provider = registry.create("CPUExecutionProvider", {})
        model = CompiledModel.build(loaded, [provider], log.DEFAULT, settings=RunSettings(kernels=kernels))
        stage = "run"
        choice, sizes = random.Random(zlib.crc32(data)), {}
        feeds = [_feed(value, choice, sizes) for value in model.model.graph.inputs]
        if all(feed is not None for feed in feeds):
            execute(model.compiled.plan, RunContext(terminated=lambda: time.monotonic() > stop), feeds)
    except errors.OnnxRuntimeError as error:
        return Outcome(f"{stage}: {type(error).__name__}: {error}")
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome(f"{stage}: {type(error).__name__}: {str(error)[:200]} at {where.filename}:{where.lineno}", False)
    return Outcome()


def _feed(value: Any, choice: random.Random, sizes: dict[Any, int]) -> Any:
    """An array for an input: mostly zeros and sizes that agree with the names of dimensions, but not always."""
    from sardonyx.graph.types import numpy_dtype

    if value.type is None or value.shape is None or value.dtype is None or type(value.type).__name__ != "TensorType":
        return None
    shape = []
    for dim in value.shape:
        size = choice.choice((0, 1, 1, 2, 3, 17))
        shape.append(
            dim if isinstance(dim, int) else size if choice.random() < 0.1 else sizes.setdefault(dim.value, size)
        )
    if int(np.prod([float(max(dim, 1)) for dim in shape])) > 1 << 20:
        return None
    array = np.zeros(shape, numpy_dtype(value.dtype))
    if array.dtype.kind in "iu" and array.size and choice.random() < 0.5:
        bounds = np.iinfo(array.dtype)
        numbers = [
            number for number in (0, 1, 2, 5, -1, -6, 10, 1 << 40, bounds.max, bounds.min) if _holds(bounds, number)
        ]
        array.flat = [choice.choice(numbers[:7] if choice.random() < 0.9 else numbers) for _ in range(array.size)]
    return array


def _holds(bounds: Any, number: int) -> bool:
    return bool(bounds.min <= number <= bounds.max)


def _worker(pipe: Connection, folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    while True:
        request = pipe.recv()
        if request is None:
            return
        data, kernels = request
        pipe.send(outcome(data, folder, kernels))


class Sandbox:
    """A process that runs models, replaced when it dies or hangs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_worker, args=(other, self.folder), daemon=True)
        self._process.start()
        other.close()

    def run(self, data: bytes, kernels: str = "") -> Outcome:
        patience = SECONDS_EACH + SECONDS_TO_PREPARE
        self._pipe.send((data, kernels))
        if not self._pipe.poll(patience):
            self.close()
            self._start()
            return Outcome(f"hang: more than {patience} seconds", False)
        try:
            found: Outcome = self._pipe.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            self._start()
            return Outcome(f"crash: the process ended with {code}", False)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.join()
