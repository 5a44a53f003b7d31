"""A mutation fuzzer: broken models must give typed errors, never a crash, a hang or an error of another kind.

``python -m tests.robustness.fuzz --seconds 600 --seed 1`` makes mutants of the models of `seeds`, each in a process
with bounded memory, and prints those whose outcome is not allowed, with the number that makes them again
(``--only N``).
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.robustness.sandbox import Sandbox, outcome
from tests.robustness.seeds import FAMILIES, SEEDS

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
    name = choice.choice(sorted(SEEDS | FAMILIES))
    model = _seed(name)
    for _ in range(choice.choice((0, 1, 1, 1, 2, 4))):
        _mutate_field(model, choice)
    data = bytearray(model.SerializeToString())
    if choice.random() < 0.3:
        _mutate_bytes(data, choice)
    return name, bytes(data)


def _seed(name: str) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(_seed_bytes(name))


@functools.cache
def _seed_bytes(name: str) -> bytes:
    data: bytes = (SEEDS | FAMILIES)[name]().SerializeToString()
    return data


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


class Fuzzer:
    """Runs mutants."""

    def __init__(self, folder: Path) -> None:
        (folder / "weights.bin").write_bytes(np.arange(64, dtype=np.float32).tobytes())
        self._sandbox = Sandbox(folder)

    def run(self, number: int) -> str:
        """The outcome of a mutant; empty where it is allowed."""
        found = self._sandbox.run(mutant(number)[1])
        return "" if found.typed else found.text

    def close(self) -> None:
        self._sandbox.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run this mutant in this process and show its error")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.only is not None:
            Fuzzer(Path(name)).close()
            found = outcome(mutant(options.only)[1], Path(name))
            print(mutant(options.only)[0], "allowed:" if found.typed else "not allowed:", found.text or "it runs")
            return 0
        fuzzer = Fuzzer(Path(name))
        number, bad = options.seed * 10_000_000, 0
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            if bad_outcome := fuzzer.run(number):
                bad += 1
                print(f"{number} ({mutant(number)[0]}): {bad_outcome}", flush=True)
            number += 1
        fuzzer.close()
    print(f"{number - options.seed * 10_000_000} mutants, {bad} outcomes that are not allowed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
