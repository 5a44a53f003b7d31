"""A mutation fuzzer: broken models must give typed errors, never a crash, a hang or an error of another kind.

``python -m tests.robustness.fuzz --seconds 600 --seed 1`` makes mutants of the models of `seeds`, each in a process
with bounded memory, and prints those whose outcome is not allowed, with the number that makes them again
(``--only N``).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.robustness.seeds import SEEDS

SECONDS_EACH = 5.0
MEMORY_BYTES = 3 << 30
_NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 64, 65, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
_TEXTS = (
    "",
    "x",
    "y",
    "Relu",
    "Add",
    "If",
    "Loop",
    "../w",
    "/etc/passwd",
    "a\0b",
    "\u00fc",
    "w" * 300,
    "ai.onnx",
    "1e9",
)


def mutant(number: int) -> tuple[str, bytes]:
    """The mutant of a number: the name of its seed and its bytes."""
    choice = random.Random(number)
    name = choice.choice(sorted(SEEDS))
    model = SEEDS[name]()
    for _ in range(choice.choice((0, 1, 1, 1, 2, 4))):
        _mutate_field(model, choice)
    data = bytearray(model.SerializeToString())
    if choice.random() < 0.3:
        _mutate_bytes(data, choice)
    return name, bytes(data)


def _mutate_bytes(data: bytearray, choice: random.Random) -> None:
    for _ in range(choice.choice((1, 1, 2, 8))):
        if not data:
            return
        place = choice.randrange(len(data))
        kind = choice.randrange(4)
        if kind == 0:
            data[place] ^= 1 << choice.randrange(8)
        elif kind == 1:
            data[place] = choice.randrange(256)
        elif kind == 2:
            del data[place:]
        else:
            end = min(len(data), place + choice.randrange(1, 32))
            data[place:place] = data[place:end]


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                yield from _messages(inner)


def _mutate_field(model: onnx.ModelProto, choice: random.Random) -> None:
    """Change one field of one message somewhere in the model to something that its type allows."""
    message = choice.choice(list(_messages(model)))
    field = choice.choice(message.DESCRIPTOR.fields)
    try:
        if field.is_repeated:
            _mutate_list(getattr(message, field.name), field, choice)
        elif field.message_type is not None:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, _scalar(field, choice, model))
    except (ValueError, TypeError, OverflowError):
        return  # protobuf does not take this value here: the model stays as it is


def _mutate_list(values: Any, field: Any, choice: random.Random) -> None:
    place = choice.randrange(len(values)) if len(values) else 0
    kind = choice.randrange(3)
    if kind == 0 and len(values):
        del values[place]
    elif field.message_type is not None:
        if len(values):
            values.append(values[place])
        else:
            values.add()
    elif kind == 1 and len(values):
        values[place] = _scalar(field, choice, None)
    else:
        values.append(_scalar(field, choice, None))


def _scalar(field: Any, choice: random.Random, model: onnx.ModelProto | None) -> Any:
    if field.enum_type is not None:
        return choice.choice(field.enum_type.values).number
    if field.cpp_type == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES:
            return choice.choice((b"", b"\xff\xfe", b"linear", bytes(choice.randrange(40))))
        names = [node.op_type for node in model.graph.node] if model is not None else []
        return choice.choice((*_TEXTS, *names))
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return choice.choice((0.0, -1.0, 1e30, float("inf"), float("nan")))
    return choice.choice(_NUMBERS)


def outcome(data: bytes, folder: Path) -> str:
    """Load, build and run a model; empty where the outcome is allowed, else what happened."""
    from sardonyx import errors, log
    from sardonyx.api.compiled_model import CompiledModel
    from sardonyx.graph.load import load_model
    from sardonyx.providers import registry
    from sardonyx.runtime.context import RunContext
    from sardonyx.runtime.executor import execute

    log.set_default_severity(4)
    stage = "load"
    stop = time.monotonic() + SECONDS_EACH / 2
    try:
        loaded = load_model(data, external_folder=folder)
        stage = "build"
        model = CompiledModel.build(loaded, [registry.create("CPUExecutionProvider", {})], log.DEFAULT)
        stage = "run"
        choice, sizes = random.Random(zlib.crc32(data)), {}
        feeds = [_feed(value, choice, sizes) for value in model.model.graph.inputs]
        if all(feed is not None for feed in feeds):
            execute(model.compiled.plan, RunContext(terminated=lambda: time.monotonic() > stop), feeds)
    except errors.OnnxRuntimeError:
        return ""
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{stage}: {type(error).__name__}: {str(error)[:200]} at {where.filename}:{where.lineno}"
    return ""


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
        number = pipe.recv()
        if number is None:
            return
        pipe.send(outcome(mutant(number)[1], folder))


class Fuzzer:
    """Runs mutants in a process of its own, which is replaced when it dies or hangs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "weights.bin").write_bytes(np.arange(64, dtype=np.float32).tobytes())
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_worker, args=(other, self.folder), daemon=True)
        self._process.start()
        other.close()
        self._fresh = True

    def run(self, number: int) -> str:
        """The outcome of a mutant; empty where it is allowed."""
        patience = SECONDS_EACH + (30.0 if self._fresh else 0.0)  # the first one pays for the imports
        self._fresh = False
        self._pipe.send(number)
        if not self._pipe.poll(patience):
            self.close()
            self._start()
            return f"hang: more than {SECONDS_EACH} seconds"
        try:
            return str(self._pipe.recv())
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            self._start()
            return f"crash: the process ended with {code}"

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run this mutant in this process and show its error")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.only is not None:
            Fuzzer(Path(name)).close()
            print(mutant(options.only)[0], outcome(mutant(options.only)[1], Path(name)) or "allowed")
            return 0
        fuzzer = Fuzzer(Path(name))
        number, bad = options.seed * 10_000_000, 0
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            found = fuzzer.run(number)
            if found:
                bad += 1
                print(f"{number} ({mutant(number)[0]}): {found}", flush=True)
            number += 1
        fuzzer.close()
    print(f"{number - options.seed * 10_000_000} mutants, {bad} outcomes that are not allowed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
