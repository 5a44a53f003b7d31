"""What a target of guided fuzzing is: seeds, a check that holds for any bytes, and changes that get past checksums."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sardonyx.runtime.files.opening import PRIVATE

Change = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Target:
    """One reader of bytes.

    `check` reads the bytes, with a folder of its own for files, and tells whether they were taken; it raises where that
    ends in any way that is not allowed. `change` makes other bytes of the same form, whose checksums are right; it may
    fail with a ValueError or a TypeError on what has no such form. `seeds` are taken, and `found` are inputs that once
    ended badly.
    """

    name: str
    seeds: Callable[[], Sequence[bytes]]
    check: Callable[[bytes, Path], bool]
    change: Change
    found: Callable[[], Sequence[bytes]] = lambda: ()

    def changed(self, data: bytes, choice: random.Random) -> bytes:
        """Other bytes of the same form, or, where these have none, one of the seeds."""
        try:
            return self.change(data, choice)
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
            return choice.choice(list(self.seeds()))


def write_private(path: Path | str, data: bytes) -> str:
    """Write a file as one that this user alone can have written; its path."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
    try:
        os.write(handle, data)
    finally:
        os.close(handle)
    return os.fspath(path)


def with_other_bytes(data: bytes, choice: random.Random) -> bytes:
    """The bytes with some of them changed, taken away, put in or repeated."""
    changed = bytearray(data)
    for _ in range(choice.choice((1, 1, 2, 4))):
        place = choice.randrange(len(changed) + 1)
        kind = choice.randrange(4)
        if kind == 0 and place < len(changed):
            changed[place] ^= 1 << choice.randrange(8)
        elif kind == 1:
            changed[place : place + 1] = bytes([choice.choice((0, 1, 0x7F, 0x80, 0xFF))])
        elif kind == 2:
            del changed[place : place + choice.randrange(1, 9)]
        else:
            changed[place:place] = changed[place : place + choice.randrange(1, 33)]
    return bytes(changed)
