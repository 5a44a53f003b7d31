"""The reader of LoRA adapters."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import ml_dtypes
import numpy as np

from sardonyx.api.options import adapter_file
from sardonyx.api.options.adapter_file import Adapter
from tests.robustness.guided.target import Target, with_other_bytes


def _seeds() -> list[bytes]:
    parameters = {
        "weights": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scalar": np.array(7, np.int64),
        "nothing": np.zeros((0, 4), np.float16),
        "small": np.arange(5).astype(ml_dtypes.int4),
    }
    return [adapter_file.write(Adapter(1, 2, 3, parameters)), adapter_file.write(Adapter(1, 0, 0, {}))]


def _change(data: bytes, choice: random.Random) -> bytes:
    """A file in which one of the numbers, which are aligned, is another one."""
    if choice.random() < 0.3:
        return with_other_bytes(data, choice)
    place = choice.randrange(len(data) // 4) * 4
    (number,) = struct.unpack_from("<I", data, place)
    other = choice.choice((0, 1, number + 4, number - 4, number + 1, number * 2, 2**31 - 1, 2**32 - 1, len(data)))
    return data[:place] + struct.pack("<I", other % 2**32) + data[place + 4 :]


def _check(data: bytes, _: Path) -> bool:
    """Parameters that are as large as the file at most, or the one error that its readers know."""
    try:
        found = adapter_file.read(memoryview(data))
    except RuntimeError:
        return False
    assert sum(array.nbytes for array in found.parameters.values()) <= 8 * len(data)
    assert adapter_file.read(memoryview(adapter_file.write(found))).parameters.keys() == found.parameters.keys()
    return True


def _found() -> list[bytes]:
    return [many_views(64 << 10), of_strings()]


def of_strings() -> bytes:
    """A file whose only parameter is said to be of strings."""
    data = adapter_file.write(Adapter(1, 0, 0, {"name": np.zeros(2, np.complex128)}))
    return data.replace(struct.pack("<I", 15), struct.pack("<I", 8))


def many_views(size: int) -> bytes:
    """A file of so many bytes whose parameters are all the same one, which takes half of it for its name."""
    count = size // 8
    head = struct.pack("<I4s", 24, adapter_file.IDENTIFIER) + struct.pack("<HH4H", 12, 20, 4, 8, 12, 16) + b"\0" * 4
    table = struct.pack("<iiiiI", 24 - 8, 1, 0, 0, 4)
    start = len(head + table)
    parameter = start + 4 + 4 * count + 12
    references = b"".join(struct.pack("<I", parameter - (start + 4 + 4 * item)) for item in range(count))
    vtable = struct.pack("<HH4H", 12, 16, 4, 0, 8, 12)
    body = struct.pack("<iIiIII", 12, 20, 1, 4, 4, 0)
    name = struct.pack("<I", size // 2) + b"n" * (size // 2)
    return head + table + struct.pack("<I", count) + references + vtable + body + name


ADAPTER = Target("adapter", _seeds, _check, _change, _found)
