"""Engines on disk: a description and arrays of bytes in one file, which nobody trusts before it was checked.

A file begins with a head, which a digest covers; behind it lie the sections. Each mebibyte of a section has two sums of
its words in the head, which tell torn, truncated and damaged contents while they are read. A file is replaced in one
step. The folder is the user's alone and bounded, as that of the kernels is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sardonyx.runtime.constant_memory import constant_empty
from sardonyx.runtime.kernel_cache import TEMPORARY, bound_folder, is_private, prepare_folder

Bytes = NDArray[np.uint8]

SUFFIX = ".engine"
_LOCK = ".lock"
# Bytes that all engines of a folder may take; half of it for one of them.
MOST_BYTES = 4 << 30

_MAGIC = b"SARDONYX ENGINE 1\n"
_DIGEST_BYTES = 32
_HEAD = len(_MAGIC) + 8 + _DIGEST_BYTES
_LARGEST_HEAD = 64 << 20
_PAGE = 4096
_WORD = 8
_BLOCK = 1 << 20  # what two sums are of
_STRIPE = 4 << 20  # what a thread reads at a time
_READERS = 4


@dataclass(frozen=True)
class Engine:
    """What a file holds: a description, as JSON has it, and its sections in memory, at multiples of 128 bytes."""

    content: Mapping[str, Any]
    sections: tuple[Bytes, ...]


def write_engine(path: Path, content: Mapping[str, Any], sections: Sequence[Sequence[Bytes]]) -> bool:
    """Write an engine whose sections are made of arrays, one behind the other; whether that was possible.

    A full or read-only disk is no error. The sizes of a section's arrays are multiples of 8 bytes, but for the last.
    """
    sizes = [sum(part.nbytes for part in parts) for parts in sections]
    needed = sum(sizes)
    with contextlib.suppress(OSError):
        if prepare_folder(path.parent) or needed > MOST_BYTES // 2 or shutil.disk_usage(path.parent).free < 2 * needed:
            return False
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY)
        try:
            with os.fdopen(handle, "wb") as file:
                described = [[size, _sums_of(parts)] for size, parts in zip(sizes, sections, strict=True)]
                text = json.dumps({"content": content, "sections": described}).encode()
                file.write(_MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text)
                for parts in sections:
                    file.seek(_aligned(file.tell()))
                    for part in parts:
                        file.write(part.data)
                file.truncate()
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        bound_folder(path.parent, SUFFIX, MOST_BYTES)
        return True
    return False


@contextlib.contextmanager
def only_writer(path: Path) -> Iterator[bool]:
    """Inside the block: whether no other process writes this engine, so that only one of many at a time does."""
    import fcntl  # engines are written on Linux alone

    if prepare_folder(path.parent):
        yield False
        return
    with contextlib.ExitStack() as open_files:
        try:
            lock = open_files.enter_context(path.with_suffix(_LOCK).open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            path.with_suffix(_LOCK).unlink(missing_ok=True)


def read_content(path: Path) -> Mapping[str, Any] | None:
    """The description alone; None where there is no file that can be trusted."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        head = _head(file)
        return None if head is None else head[0]["content"]
    return None


def read_engine(path: Path) -> Engine | None:
    """The engine of a file; None where there is none that can be trusted, down to its last byte."""
    try:
        with path.open("rb") as file:
            found = _head(file)
            if found is None:
                return None
            head, place = found
            sections: list[Bytes] = []
            for size, sums in head["sections"]:
                place = _aligned(place)
                section = _section(file.fileno(), place, int(size), np.array(sums, np.uint64).reshape(-1, 2))
                if section is None:
                    return None
                sections.append(section)
                place += int(size)
            os.utime(file.fileno())  # the folder forgets first what was used longest ago
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return Engine(head["content"], tuple(sections))


def _head(file: BinaryIO) -> tuple[dict[str, Any], int] | None:
    """The head and where it ends; None unless it is whole and only the user can have written it."""
    if not is_private(os.fstat(file.fileno())):
        return None
    start = file.read(_HEAD)
    length = int.from_bytes(start[len(_MAGIC) : len(_MAGIC) + 8], "little")
    if not start.startswith(_MAGIC) or length > _LARGEST_HEAD:
        return None
    text = file.read(length)
    if hashlib.sha256(text).digest() != start[-_DIGEST_BYTES:]:
        return None
    head = json.loads(text)
    return head, _HEAD + length


def _aligned(place: int) -> int:
    return -(-place // _PAGE) * _PAGE


def _section(handle: int, place: int, size: int, sums: NDArray[np.uint64]) -> Bytes | None:
    """A section of the file, read by several threads; None where its sums do not agree."""
    memory = constant_empty(-(-size // _WORD) * _WORD, np.dtype(np.uint8))
    memory[size:] = 0
    view = memoryview(memory.data)

    def read(start: int) -> bool:
        for begin in range(start, min(size, start + _STRIPE), _BLOCK):
            end = min(size, begin + _BLOCK)
            if os.preadv(handle, [view[begin:end]], place + begin) != end - begin:
                return False
            if tuple(sums[begin // _BLOCK].tolist()) != _sums(memory[begin : -(-end // _WORD) * _WORD]):
                return False
        return True

    starts = range(0, size, _STRIPE)
    if len(sums) != -(-size // _BLOCK):
        return None
    if len(starts) < 2:
        good = all(map(read, starts))
    else:
        with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1, len(starts)), "sardonyx-engine") as pool:
            good = all(list(pool.map(read, starts)))
    return memory[:size] if good else None


def _sums(block: Bytes) -> tuple[int, int]:
    """Of the 64-bit words of a block: all of them exclusive-or, and added."""
    words = block.view(np.uint64)
    return int(np.bitwise_xor.reduce(words)), int(np.add.reduce(words))


def _sums_of(parts: Sequence[Bytes]) -> list[tuple[int, int]]:
    """The sums of all blocks of a section."""
    found: list[tuple[int, int]] = []
    block = np.zeros(_BLOCK, np.uint8)
    filled = 0
    for part in parts:
        taken = 0
        while taken < part.size:
            count = min(_BLOCK - filled, part.size - taken)
            block[filled : filled + count] = part[taken : taken + count]
            filled, taken = filled + count, taken + count
            if filled == _BLOCK:
                found.append(_sums(block))
                filled = 0
    if filled:
        block[filled:] = 0
        found.append(_sums(block[: -(-filled // _WORD) * _WORD]))
    return found
