"""Object code of many kernels in one file, which a distribution brings along: a pack, for one target.

A kernel is found by the digest of its key, and is the entry of a cache, compressed: it counts only if its checksum and
its whole key agree. A pack that others can have written than those who could change this package itself, or that is
damaged, counts as absent.

    magic · entries (u32) · bytes of the note (u32) · note (JSON, of how it was made) · table · compressed entries

The table has a line for each kernel, in the order of their digests: the digest (20 bytes), where the entry begins
(u64), and its bytes (u32).
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from sardonyx.runtime.files.kernel_cache import opened, sealed, short_digest
from sardonyx.runtime.files.opening import READABLE, StrPath, open_installed, replacing
from sardonyx.runtime.json_text import parsed
from sardonyx.runtime.memory.mapped_pages import map_open_file

SUFFIX = ".pack"

_HEAD = struct.Struct("<16sII")
_LINE = struct.Struct("<20sQI")
_MAGIC = b"SARDONYX PACK 1\n"
_DIGEST_BYTES = 20

# Object code beyond this many bytes is no kernel of ours: the largest has 300 KB.
_MOST_BYTES = 8 << 20


class KernelPack:
    """One file. It is opened when the first kernel is asked for, and not looked at again where it is of no use."""

    def __init__(self, path: StrPath) -> None:
        self.path = os.fspath(path)
        self.problem = ""  # why it is not used, known once it was opened
        self._view: memoryview | None = None
        self._table = memoryview(b"")
        self._note = memoryview(b"")

    def __len__(self) -> int:
        """How many kernels it has."""
        self._open()
        return len(self._table) // _LINE.size

    @property
    def note(self) -> Mapping[str, Any]:
        """What is said of how it was made; nothing where that cannot be read."""
        self._open()
        with contextlib.suppress(ValueError):
            found = parsed(bytes(self._note))
            return found if isinstance(found, dict) else {}
        return {}

    def find(self, key: str) -> bytes | None:
        """The object code of the kernel of this key, or None."""
        self._open()
        wanted = short_digest(key)
        place = bisect_left(range(len(self._table) // _LINE.size), wanted, key=lambda line: self._line(line)[0])
        if place * _LINE.size >= len(self._table):
            return None
        digest, start, size = self._line(place)
        if digest != wanted:
            return None
        text = _inflated(self._bytes(start, size))
        return None if text is None else opened(text, key)

    def _line(self, number: int) -> tuple[bytes, int, int]:
        found: tuple[bytes, int, int] = _LINE.unpack_from(self._table, number * _LINE.size)
        return found

    def _bytes(self, start: int, size: int) -> memoryview:
        assert self._view is not None
        return self._view[start : start + size]

    def _open(self) -> None:
        """Map the file, unless that was tried before."""
        if self._view is not None:
            return
        self._view = memoryview(b"")
        try:
            with open_installed(self.path) as file:
                view = map_open_file(file.fileno(), self.path)
        except OSError as error:
            self.problem = f"{self.path} cannot be used: {error.strerror or error}"
            return
        magic, count, note = _HEAD.unpack_from(view) if len(view) >= _HEAD.size else (b"", 0, 0)
        start = _HEAD.size + note
        table = view[start : start + count * _LINE.size]
        if magic != _MAGIC or len(table) != count * _LINE.size:
            self.problem = f"{self.path} is no pack of kernels"
            return
        self._view, self._table, self._note = view, table, view[_HEAD.size : start]


def write_pack(path: StrPath, kernels: Mapping[str, bytes], note: Mapping[str, Any]) -> int:
    """Write a pack of object code by its keys, and a note of how it was made; its bytes. OSError."""
    import zlib

    told = json.dumps(note, sort_keys=True).encode() + b"\n"
    entries = sorted((short_digest(key), zlib.compress(sealed(key, code), 9)) for key, code in kernels.items())
    start = _HEAD.size + len(told) + len(entries) * _LINE.size
    lines = []
    for digest, text in entries:
        lines.append(_LINE.pack(digest, start, len(text)))
        start += len(text)
    with replacing(path, READABLE) as file:
        file.write(_HEAD.pack(_MAGIC, len(entries), len(told)) + told)
        file.writelines(lines)
        file.writelines(text for _, text in entries)
    return start


def _inflated(text: memoryview) -> bytes | None:
    """What was compressed; None where that is damaged or larger than any kernel, or Python cannot do it."""
    with contextlib.suppress(ImportError):
        import zlib

        with contextlib.suppress(zlib.error):
            expander = zlib.decompressobj()
            found = expander.decompress(text, _MOST_BYTES)
            return found if expander.eof else None
    return None
