"""A mutation fuzzer: broken models must give typed errors, never a crash, a hang or an error of another kind.

``python -m tests.robustness.fuzz --count 20000`` makes mutants of the models of `seeds` and of the node tests of
ONNX's backend suite, with the inputs of these. Each runs in a process with bounded memory and time (see `sandbox`).
Those whose outcome is not allowed are printed, with the number that makes them again (``--only N``). The seed is a
fresh one, which is printed, unless ``--seed`` gives it. ``--seconds`` ends the run after a time instead.

The exit code says what was found: the sum of 1 (an error that is not typed), 2 (a hang: more than five seconds of the
processor), 4 (a crash, or an end by a signal) and 8 (memory taken that nobody asked for before); 0 is nothing.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from tests.conformance import suite
from tests.robustness.sandbox import Finding, Outcome, Sandbox, outcome
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


# Sizes that some code may take for the number of its turns, and that are no mistake by themselves.
_SIZES = (0, 1, 3, 17, 1000, 10**6, 4 * 10**7, 10**9, 2**31 - 1, 2**31, 2**33, -1, -(2**31), 2**62)
# Of the elements of a tensor that may hold sizes.
_MOST_ELEMENTS = 16
# Seeds with more bytes take longer than they tell.
_MOST_BYTES = 1 << 20

Feeds = Mapping[str, Any]


class Mutant(NamedTuple):
    """A model to run: the name of its seed, its bytes, and what it is fed (None: what suits its inputs)."""

    name: str
    data: bytes
    feeds: Feeds | None = None


def mutant(number: int, *, suite_too: bool = True) -> Mutant:
    """The mutant of a number; of ONNX's node tests, too, with `suite_too`."""
    choice = random.Random(number)
    from_suite = suite_too and choice.random() < 0.75
    name = choice.choice(_suite_names() if from_suite else sorted(SEEDS | FAMILIES))
    data, feeds = _suite_seed(name) if from_suite else (_seed_bytes(name), None)
    model = onnx.ModelProto.FromString(data)
    for _ in range(choice.choice((0, 1, 1, 1, 2, 4))):
        if choice.random() < 0.5:
            mutate_field(model, choice)
        elif feeds is None or choice.random() < 0.6:
            _mutate_size(model, choice)
        else:
            feeds = _mutated_feeds(feeds, choice)
    changed = bytearray(model.SerializeToString())
    if choice.random() < (0.1 if from_suite else 0.3):
        _mutate_bytes(changed, choice)
    return Mutant(name, bytes(changed), feeds)


@functools.cache
def _seed_bytes(name: str) -> bytes:
    data: bytes = (SEEDS | FAMILIES)[name]().SerializeToString()
    return data


@functools.cache
def _suite_names() -> list[str]:
    """The node tests whose models and inputs are small."""
    found = ((name, test) for name, (kind, test) in suite.tests().items() if kind == "node" and test.model is not None)
    return sorted(name for name, test in found if test.data_sets and test.model.ByteSize() < _MOST_BYTES)


def _suite_seed(name: str) -> tuple[bytes, Feeds]:
    model, data_sets = suite.load(suite.tests()[name][1])
    return model.SerializeToString(), next(data_sets).feeds


def _mutate_size(model: onnx.ModelProto, choice: random.Random) -> None:
    """Put another size in the place of one that a dimension, an attribute or a small tensor of integers holds."""
    found: list[tuple[Any, str, int | None]] = []
    for message in messages_of(model):
        if isinstance(message, onnx.TensorShapeProto.Dimension):
            found.append((message, "dim_value", None))
        elif isinstance(message, onnx.AttributeProto) and message.type == onnx.AttributeProto.INT:
            found.append((message, "i", None))
        elif isinstance(message, onnx.AttributeProto) and message.type == onnx.AttributeProto.INTS:
            found += [(message, "ints", place) for place in range(len(message.ints))]
        elif isinstance(message, onnx.TensorProto) and _holds_sizes(message):
            found.append((message, "", None))
    if not found:
        return
    message, field, place = choice.choice(found)
    size = choice.choice(_SIZES)
    if not field:
        numbers = _with_size(numpy_helper.to_array(message), choice)
        message.CopyFrom(numpy_helper.from_array(numbers, message.name))
    elif place is None:
        setattr(message, field, size)
    else:
        getattr(message, field)[place] = size


def _holds_sizes(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type not in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
        return False
    if tensor.external_data or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return False
    try:
        return 0 < numpy_helper.to_array(tensor).size <= _MOST_ELEMENTS
    except (ValueError, TypeError):  # broken before
        return False


def _with_size(array: np.ndarray[Any, Any], choice: random.Random) -> np.ndarray[Any, Any]:
    """The integers with a size in the place of one of them."""
    bounds, changed = np.iinfo(array.dtype), array.copy()
    changed.flat[choice.randrange(array.size)] = max(bounds.min, min(bounds.max, choice.choice(_SIZES)))
    return changed


def _mutated_feeds(feeds: Feeds, choice: random.Random) -> Feeds:
    """The feeds with another size in one of the small ones, or with one of another shape."""
    arrays = {name: value for name, value in feeds.items() if isinstance(value, np.ndarray) and value.size}
    sizes = [name for name, array in arrays.items() if array.dtype.kind in "iu" and array.size <= _MOST_ELEMENTS]
    if sizes and choice.random() < 0.8:
        name = choice.choice(sizes)
        return {**feeds, name: _with_size(arrays[name], choice)}
    if not arrays:
        return feeds
    name = choice.choice(list(arrays))
    array = arrays[name]
    axis = choice.randrange(array.ndim) if array.ndim else 0
    shape = (0,) if not array.ndim else (*array.shape[:axis], choice.choice((0, 1, 2)), *array.shape[axis + 1 :])
    return {**feeds, name: np.resize(array, shape)}


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


def messages_of(message: Any) -> Iterator[Any]:
    """A message and all those in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                yield from messages_of(inner)


def mutate_field(model: onnx.ModelProto, choice: random.Random) -> None:
    """Change one field of one message somewhere in the model to something that its type allows."""
    message = choice.choice(list(messages_of(model)))
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

    def run(self, found: Mutant) -> Outcome:
        """The outcome of a mutant."""
        return self._sandbox.run(found.data, feeds=found.feeds)

    def close(self) -> None:
        self._sandbox.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, help="how many mutants to run; as many as the seconds allow if not given")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when to end")
    parser.add_argument("--seed", type=int, help="where the numbers begin; a fresh one if not given")
    parser.add_argument("--only", type=int, help="run this mutant in this process and show its error")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.only is not None:
            return _show(options.only, Path(name))
        seconds = options.seconds if options.count is not None or options.seconds < float("inf") else 60.0
        seed = int.from_bytes(os.urandom(4), "little") if options.seed is None else options.seed
        return int(_hunt(seed, options.count, time.monotonic() + seconds, Path(name)))


def _show(number: int, folder: Path) -> int:
    """Run one mutant in this process, so that a debugger sees it."""
    Fuzzer(folder).close()
    one = mutant(number)
    found = outcome(one.data, folder, feeds=one.feeds)
    print(one.name, "allowed:" if found.typed else "not allowed:", found.text or "it runs")
    return int(found.finding)


def _hunt(seed: int, count: int | None, end: float, folder: Path) -> Finding:
    """Run mutants and print what is found, all of which is returned."""
    first = seed * 10_000_000
    print(f"seed {seed}: mutants from {first} on", flush=True)
    fuzzer, kinds, number = Fuzzer(folder), Counter[Finding](), first
    for number in itertools.count(first):
        if number - first == count or time.monotonic() > end:
            break
        if number > first and (number - first) % 1000 == 0:
            print(f"{number - first} mutants so far", flush=True)
        one = mutant(number)
        found = fuzzer.run(one)
        if not found.typed:
            kinds[found.finding] += 1
            print(f"{number} ({one.name}): {found.text}", flush=True)
    fuzzer.close()
    named = ", ".join(f"{kinds[kind]} {kind.name}" for kind in Finding if kind)
    print(f"{number - first} mutants of seed {seed}: {named}")
    return functools.reduce(Finding.__or__, kinds, Finding.NONE)


if __name__ == "__main__":
    sys.exit(main())
