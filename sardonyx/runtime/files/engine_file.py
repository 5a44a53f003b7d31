"""Engines on disk: a description and arrays of bytes in one file, which nobody trusts before it was checked.

A file begins with a head, which a digest covers; behind it lie the sections. What tells torn, truncated and damaged
contents is in the head: of engines that are *kept* for the user, two sums of the words of each mebibyte, which are
checked until the file was found whole as it is; of *sealed* ones, which are passed on, cryptographic digests, so that
whoever knows the head knows every byte. Files are mapped, never copied to memory, and replaced in one step. The folder
of kept ones is the user's alone and bounded, as that of the kernels is.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Protocol, TypeVar

import numpy as np

from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.file_state import state_of
from sardonyx.runtime.files.cache_folder import prepare_folder
from sardonyx.runtime.files.digest import sha256
from sardonyx.runtime.files.opening import (
    PRIVATE,
    READABLE,
    TEMPORARY,
    StrPath,
    is_private,
    open_private,
    open_shared,
    replacing,
)
from sardonyx.runtime.files.own_files import ENGINE, ENGINE_HEAD, LOCK, bound_folder
from sardonyx.runtime.helpers import Helpers
from sardonyx.runtime.json_text import parsed
from sardonyx.runtime.memory.arena_layout import ALIGNMENT
from sardonyx.runtime.memory.constant_memory import constant_empty
from sardonyx.runtime.memory.mapped_pages import map_open_file

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Sections = Mapping[str, Sequence[Bytes]]
Item = TypeVar("Item")

# Bytes that all engines of a folder may take; half of it for one of them.
MOST_BYTES = 4 << 30

_MAGIC = ENGINE_HEAD + b"2\n"
_DIGEST_BYTES = 32
_HEAD = len(_MAGIC) + 8 + _DIGEST_BYTES
_LARGEST_HEAD = 64 << 20
_PAGE = 4096
_WORD = 8
_BLOCK = 1 << 20  # what two sums are of
_STRIPE = 4 << 20  # what a thread reads at a time
_SEALED_BLOCK = 16 << 20  # what a digest is of
_READERS = 4
# A file that was used again so soon is not noted as used: its times say that it is as it was.
_USED_SECONDS = 3600.0


class DamagedError(Exception):
    """What is wrong with a file that ought to be an engine."""


@dataclass(frozen=True)
class Engine:
    """What a file holds: a description, as JSON has it, and its sections in memory, at multiples of 128 bytes."""

    content: Mapping[str, Any]
    sections: Mapping[str, Bytes]


# Engines that are kept


def write_engine(path: StrPath, content: Mapping[str, Any], sections: Sections) -> bool:
    """Keep an engine whose sections are made of arrays, one behind the other; whether that was possible.

    A full or read-only disk is no error. The sizes of a section's arrays are multiples of 8 bytes, but for the last.
    """
    import shutil

    needed = sum(part.nbytes for parts in sections.values() for part in parts)
    with contextlib.suppress(OSError):
        folder = os.path.dirname(path)
        if prepare_folder(folder) or needed > MOST_BYTES // 2 or shutil.disk_usage(folder).free < 2 * needed:
            return False
        sums = {name: [_sums(block) for block in _blocks(parts, _BLOCK)] for name, parts in sections.items()}
        _write(path, content, sections, sums, PRIVATE)
        bound_folder(folder, ENGINE, MOST_BYTES)
        return True
    return False


@contextlib.contextmanager
def only_writer(path: StrPath) -> Iterator[bool]:
    """Inside the block: whether no other process writes this engine, so that only one of many at a time does."""
    import fcntl  # engines are written on Linux alone

    folder, name = os.path.split(path)
    if prepare_folder(folder):
        yield False
        return
    # What a process that was killed leaves goes with the other temporary files.
    mark = os.path.join(folder, TEMPORARY + os.path.splitext(name)[0] + LOCK)
    with contextlib.ExitStack() as open_files:
        try:
            lock = open_files.enter_context(open_shared(mark))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who had the lock before has removed the file, and somebody else may have made another one.
            alone = os.path.samestat(os.fstat(lock.fileno()), os.lstat(mark))
        except OSError:
            alone = False
        try:
            yield alone
        finally:
            with contextlib.suppress(OSError):
                if alone and not os.fstat(lock.fileno()).st_size:
                    os.unlink(mark)


def read_content(path: StrPath) -> Mapping[str, Any] | None:
    """The description alone; None where there is no file that can be trusted."""
    with contextlib.suppress(OSError, DamagedError), open_private(path) as file:
        content: Mapping[str, Any] = _head(file).content
        return content
    return None


class WholeFiles(Protocol):
    """What remembers which files were found whole: by the digest of their heads and their states (`state_of`)."""

    def was_whole(self, digest: str, state: Sequence[int]) -> bool: ...

    def note_whole(self, digest: str, state: Sequence[int]) -> None: ...


def read_engine(
    path: StrPath,
    is_wanted: Callable[[Mapping[str, Any]], bool] = lambda _: True,
    known: WholeFiles | None = None,
) -> Engine | None:
    """The engine that is kept in a file, if its description is that of a wanted one; None where there is none.

    It is mapped. Unless it is known to be whole, all of it is read before. DamagedError for one that cannot be trusted,
    down to its last byte.
    """
    try:
        with open_private(path) as file:
            status = os.fstat(file.fileno())
            head = _head(file)
            if not is_wanted(head.content):
                return None
            # Before there is memory for them.
            if any(place + size > status.st_size for place, size, _ in head.sections.values()):
                raise DamagedError("it ends too early")
            sections = _mapped(file, path, head)
            if known is None or not known.was_whole(head.digest, state_of(status)):
                for place, size, sums in head.sections.values():
                    _check(file.fileno(), place, size, sums)
                if known is not None:
                    known.note_whole(head.digest, state_of(status))
            if time.time() - status.st_mtime > _USED_SECONDS:
                os.utime(file.fileno())  # the folder forgets first what was used longest ago
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ENOMEM:  # of address space: the file is none the worse
            return None
        raise DamagedError(str(error)) from error
    return Engine(head.content, sections)


# Engines that are passed on


def write_sealed(path: StrPath, content: Mapping[str, Any], sections: Sections) -> str:
    """Write an engine for whoever is given the file; what identifies it. OSError where it cannot be written."""
    seals = {name: [_seal(block) for block in _blocks(parts, _SEALED_BLOCK)] for name, parts in sections.items()}
    return _write(path, content, sections, seals, READABLE)


@dataclass(frozen=True)
class SealedEngine:
    """An engine in a file that is mapped, or in memory; `digest` is that of its head, which holds those of the rest.

    `state` says by size, times, inode and device which file it is, and how it is (None: no file); `is_private` whether
    nobody but the owner of this process can change it.
    """

    engine: Engine
    digest: str
    seals: Mapping[str, Sequence[str]]
    state: list[int] | None
    is_private: bool

    def verify(self) -> None:
        """Read everything; DamagedError where a byte is not what it was."""
        blocks = [
            (name, section[place : place + _SEALED_BLOCK], seal)
            for name, section in self.engine.sections.items()
            for place, seal in zip(range(0, section.size, _SEALED_BLOCK), self.seals[name], strict=True)
        ]

        def check(block: tuple[str, Bytes, str]) -> None:
            name, part, seal = block
            if _seal(part) != seal:
                raise DamagedError(f"its section '{name}' is not what was written")

        _for_each(check, blocks)


def map_sealed(file: BinaryIO, path: str) -> SealedEngine:
    """The engine of an open file, mapped; DamagedError, OSError."""
    status = os.fstat(file.fileno())
    if not status.st_size:
        raise DamagedError("it is empty")
    return sealed_engine(map_open_file(file.fileno(), path), status)


def sealed_engine(data: memoryview, status: os.stat_result | None) -> SealedEngine:
    """The engine in these bytes, mapped from a file of this status (None: no file); its sections are not read.

    DamagedError where it contradicts itself, or ends too early or too late.
    """
    head = _parsed(bytes(data[:_HEAD]), lambda length: bytes(data[_HEAD : _HEAD + length]))
    whole = np.frombuffer(data, np.uint8)
    sections: dict[str, Bytes] = {}
    seals: dict[str, Sequence[str]] = {}
    for name, (place, size, found) in head.sections.items():
        section = whole[place : place + size]
        if section.size != size:
            raise DamagedError(f"it ends after {whole.size} bytes, in the middle of its section '{name}'")
        if len(found) != -(-size // _SEALED_BLOCK) or not all(isinstance(seal, str) for seal in found):
            raise DamagedError("it is one of those that are kept for a user, not made to be passed on")
        sections[name], seals[name] = _aligned_memory(section), found
    end = max((place + size for place, size, _ in head.sections.values()), default=head.end)
    if whole.size != end:
        raise DamagedError(f"{whole.size - end} bytes follow its end")
    engine = Engine(head.content, sections)
    if status is None:
        return SealedEngine(engine, head.digest, seals, None, True)
    return SealedEngine(engine, head.digest, seals, state_of(status), is_private(status))


def _aligned_memory(section: Bytes) -> Bytes:
    """A section at a multiple of 128 bytes: as it is in a file of its own, copied where it lies within another."""
    if int(section.__array_interface__["data"][0]) % (2 * ALIGNMENT) == 0:
        return section
    memory = constant_empty(section.size, np.dtype(np.uint8))
    memory[:] = section
    return memory


# The form of both


@dataclass(frozen=True)
class _Head:
    """The description, where each section lies, its size and what it is checked by, and where the head ends."""

    content: Mapping[str, Any]
    sections: Mapping[str, tuple[int, int, list[Any]]]
    digest: str
    end: int


def _write(
    path: StrPath, content: Mapping[str, Any], sections: Sections, checks: Mapping[str, Sequence[Any]], mode: int
) -> str:
    """Write a file of this mode in one step; the digest of its head."""
    sizes = {name: sum(part.nbytes for part in parts) for name, parts in sections.items()}
    described = [[name, sizes[name], checks[name]] for name in sections]
    text = json.dumps({"content": content, "sections": described}).encode()
    digest = sha256(text)
    with replacing(path, mode, durable=True) as file:  # what is found whole in memory is so on the disk
        file.write(_MAGIC + len(text).to_bytes(8, "little") + digest.digest() + text)
        for parts in sections.values():
            file.seek(_aligned(file.tell()))
            for part in parts:
                file.write(part.data)
        file.truncate()
    return digest.hexdigest()


def _head(file: BinaryIO) -> _Head:
    return _parsed(file.read(_HEAD), file.read)


def _parsed(start: bytes, read: Callable[[int], bytes]) -> _Head:
    """The head from its beginning and what gives the rest of it; DamagedError unless it is whole."""
    if not start.startswith(_MAGIC):
        raise DamagedError("it does not begin as engines of this version do")
    length = int.from_bytes(start[len(_MAGIC) : len(_MAGIC) + 8], "little")
    if len(start) < _HEAD or length > _LARGEST_HEAD:
        raise DamagedError("its head is not whole")
    text = read(length)
    digest = sha256(text)
    if len(text) != length or digest.digest() != start[-_DIGEST_BYTES:]:
        raise DamagedError("its head is not what was written")
    try:
        found = parsed(text)
        place = _HEAD + length
        sections: dict[str, tuple[int, int, list[Any]]] = {}
        for name, size, checks in found["sections"]:
            place = _aligned(place)
            if type(name) is not str or name in sections or type(size) is not int or size < 0:
                raise ValueError("a section has no name, or that of another one, or no size")
            sections[name] = place, size, list(checks)
            place += size
        if not isinstance(content := found["content"], dict):
            raise ValueError("its description is none")
        return _Head(content, sections, digest.hexdigest(), place)
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"its head contradicts itself: {error}") from error


def _aligned(place: int) -> int:
    return -(-place // _PAGE) * _PAGE


def _mapped(file: BinaryIO, path: StrPath, head: _Head) -> dict[str, Bytes]:
    """The sections of a file, mapped."""
    whole = np.frombuffer(map_open_file(file.fileno(), path), np.uint8)
    return {name: whole[place : place + size] for name, (place, size, _) in head.sections.items()}


def _check(handle: int, place: int, size: int, sums: Sequence[Any]) -> None:
    """Read a section of the file by several threads; DamagedError where its sums do not agree, OSError.

    It is read into one block after the other and not through a map: there, a file that became shorter or a disk that
    fails would end the process.
    """

    def read(start: int) -> None:
        block = np.empty(min(_BLOCK, size - start), np.uint8)
        for begin in range(start, min(size, start + _STRIPE), _BLOCK):
            part = block[: size - begin]
            view, filled = memoryview(part.data), 0
            while filled < part.size:
                count = os.preadv(handle, [view[filled:]], place + begin + filled)
                if not count:
                    raise DamagedError("it ends too early")
                filled += count
            if sums[begin // _BLOCK] != _sums(part):
                raise DamagedError("a section is not what was written")

    if len(sums) != -(-size // _BLOCK):
        raise DamagedError("sums are missing")
    _for_each(read, range(0, size, _STRIPE))


def _for_each(work: Callable[[Item], None], items: Sequence[Item]) -> None:
    """Do the work of all items on several threads; the first error of one of them comes through."""
    rest = iter(items)

    def go_on() -> None:
        for item in rest:
            work(item)

    count = min(_READERS, os.cpu_count() or 1, len(items)) - 1
    with Helpers(count, "sardonyx-engine-reader") as helpers:
        helpers.share(go_on, count)


def _sums(block: Bytes) -> list[int]:
    """Of the 64-bit words of a block, the last one filled up with zeros: all exclusive-or, and added."""
    whole = block.size // _WORD * _WORD
    words = block[:whole].view(np.uint64)
    last = int.from_bytes(block[whole:].tobytes(), "little")
    return [int(np.bitwise_xor.reduce(words)) ^ last, (int(np.add.reduce(words)) + last) & (1 << 64) - 1]


def _seal(block: Bytes) -> str:
    import hashlib  # OpenSSL's, for all of a file

    return hashlib.sha256(block.data).hexdigest()


def _blocks(parts: Sequence[Bytes], size: int) -> Iterator[Bytes]:
    """A section in blocks of so many bytes, the last of fewer; each is valid until the next one."""
    block = np.empty(size, np.uint8)
    filled = 0
    for part in parts:
        taken = 0
        while taken < part.size:
            count = min(size - filled, part.size - taken)
            block[filled : filled + count] = part[taken : taken + count]
            filled, taken = filled + count, taken + count
            if filled == size:
                yield block
                filled = 0
    if filled:
        yield block[:filled]
